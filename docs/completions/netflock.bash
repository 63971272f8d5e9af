# bash completion for netflock(1)
_netflock() {
	local cur=$2 prev=$3 i
	local settings="--prefix --url --password-file --connect-timeout"
	COMPREPLY=()
	if [ "$COMP_CWORD" -eq 1 ]; then
		mapfile -t COMPREPLY < <(compgen -W "run lock fence status release doctor help --help --version" -- "$cur")
		return
	fi
	case $prev in
	--prefix | --local) mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return ;;
	--password-file | --log) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--on-outage) mapfile -t COMPREPLY < <(compgen -W "block error local" -- "$cur"); return ;;
	--grace) mapfile -t COMPREPLY < <(compgen -W "auto always off" -- "$cur"); return ;;
	--check) mapfile -t COMPREPLY < <(compgen -W "strict warn off" -- "$cur"); return ;;
	--on-lost) mapfile -t COMPREPLY < <(compgen -W "term kill log" -- "$cur"); return ;;
	--keeper) mapfile -t COMPREPLY < <(compgen -W "auto always never" -- "$cur"); return ;;
	--log-level) mapfile -t COMPREPLY < <(compgen -W "error warn info debug" -- "$cur"); return ;;
	--url | --ttl | --container-ttl | --connect-timeout | --host) return ;;
	--pid) mapfile -t COMPREPLY < <(compgen -W "$(cd /proc && printf '%s ' [0-9]*)" -- "$cur"); return ;;
	-w | -E | --timeout | --wait | --conflict-exit-code | --outage-exit-code) [ "${COMP_WORDS[1]}" != lock ] || return ;;
	esac
	case ${COMP_WORDS[1]} in
	run)
		# After the options comes a command, with a completion of its own.
		for ((i = 2; i < COMP_CWORD; i++)); do
			case ${COMP_WORDS[i]} in
			--) i=$((i + 1)); break ;;
			--help | --strict) ;;
			--*) i=$((i + 1)) ;;
			*) break ;;
			esac
		done
		if [ "$i" -lt "$COMP_CWORD" ] && declare -F _command_offset >/dev/null; then
			_command_offset "$i"
		elif [[ $cur == -* ]]; then
			mapfile -t COMPREPLY < <(compgen -W "--strict $settings --ttl --container-ttl --on-outage --grace --check --on-lost --keeper --local --host --log --log-level --help --" -- "$cur")
		else
			mapfile -t COMPREPLY < <(compgen -c -- "$cur")
		fi
		;;
	lock)
		# A file, and options on both sides of it; then a command. -c takes one of the shell's.
		local files=0
		for ((i = 2; i < COMP_CWORD; i++)); do
			case ${COMP_WORDS[i]} in
			--) [ "$files" = 0 ] || { i=$((i + 1)); break; } ;;
			--shared | --exclusive | --nonblock | --nb | --close | --no-fork | --unlock | --verbose | --version | --help) ;;
			-w | -E | -c | --*) i=$((i + 1)) ;;
			-*) ;;
			*) [ "$files" = 0 ] || break; files=1 ;;
			esac
		done
		if [ "$i" -lt "$COMP_CWORD" ] && declare -F _command_offset >/dev/null; then
			_command_offset "$i"
		elif [[ $cur == -* ]]; then
			mapfile -t COMPREPLY < <(compgen -W "-s -x -e -u -n -w -E -o -F -c -v -V --shared --exclusive --unlock --nonblock --nb --timeout --wait
				--conflict-exit-code --outage-exit-code --close --no-fork --command --verbose --version $settings --ttl --container-ttl --on-outage
				--on-lost --keeper --local --host --log --log-level --help --" -- "$cur")
		elif [ "$files" = 0 ]; then
			mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		else
			mapfile -t COMPREPLY < <(compgen -c -- "$cur")
		fi
		;;
	fence)
		if [[ $cur == -* ]]; then
			mapfile -t COMPREPLY < <(compgen -W "$settings --host --help" -- "$cur")
		else
			mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		fi
		;;
	status)
		if [[ $cur == -* ]]; then
			mapfile -t COMPREPLY < <(compgen -W "--json $settings --help" -- "$cur")
		else
			mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		fi
		;;
	release)
		if [[ $cur == -* ]]; then
			mapfile -t COMPREPLY < <(compgen -W "--yes $settings --help" -- "$cur")
		else
			mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		fi
		;;
	doctor)
		# Paths, and behind -- a command.
		for ((i = 2; i < COMP_CWORD; i++)); do
			[ "${COMP_WORDS[i]}" != -- ] || { i=$((i + 1)); break; }
		done
		if [ "$i" -lt "$COMP_CWORD" ] && declare -F _command_offset >/dev/null; then
			_command_offset "$i"
		elif [ "${COMP_WORDS[COMP_CWORD - 1]}" = -- ]; then
			mapfile -t COMPREPLY < <(compgen -c -- "$cur")
		elif [[ $cur == -* ]]; then
			mapfile -t COMPREPLY < <(compgen -W "--json --pid $settings --ttl --container-ttl --on-outage --on-lost --keeper --local --host --log --log-level --help --" -- "$cur")
		else
			mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		fi
		;;
	help) mapfile -t COMPREPLY < <(compgen -W "run lock fence status release doctor" -- "$cur") ;;
	esac
}
complete -o filenames -F _netflock netflock
