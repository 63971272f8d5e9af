# shellcheck shell=bash
# lib-records.sh: what the suites on record locks need besides lib.sh, which it sources.
#
# Their actors are probes/records. The plain kernel is the judge of most of these tests: WORLD=kernel runs a suite
# with all hosts on one inode and without the shim, and it must pass; WORLD=apart with each host on inodes of its own
# and without the shim, and whatever is about two hosts must fail.

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PROBE=records
export WORLD=${WORLD:-}
declare -A ACT_HOST
MAX=9223372036854775807 # the last offset

# with_shim: a test of what only the shim has calls it first: "with_shim || return 0".
with_shim() {
	[ -z "$WORLD" ] || { startSkipping; return 1; }
}
[ -z "$WORLD" ] || assertNoKeys() { :; }

# spawn_told FILE N CMD...: like spawn, with FILE as standard input, which "spawn ... <FILE" would not be.
spawn_told() { "$TESTS/host" -s "${@:2}" <"$1" & PID=$!; }

# cast NAME@HOST...: actors with $F open as x, for reading and writing.
cast() {
	local a
	for a; do
		actor "${a%@*}" "${a#*@}"
		ACT_HOST[${a%@*}]=${a#*@}
		says OK "${a%@*}" open x rw keep "$F"
	done
}

# hear NAME [SECONDS]: its answer in $SAID, without a process: there are thousands of them.
hear() { read -r -t "${2:-$PATIENCE}" -u "${ACT_OUT[$1]}" SAID || SAID="no answer"; }
# answers ANSWER NAME COMMAND...: is that what it says?
answers() {
	local want=$1
	shift
	tell "$@"
	hear "$1"
	[ "$SAID" = "$want" ]
}
# says ANSWER NAME COMMAND...
says() {
	if answers "$@"; then assertTrue 0; else fail "${*:2}: it says \"$SAID\", not \"$1\""; fi
}
# is_told ANSWER NAME...: each of them has something to say by itself.
is_told() {
	local n
	for n in "${@:2}"; do
		hear "$n"
		if [ "$SAID" = "$1" ]; then assertTrue 0; else fail "$n says \"$SAID\", not \"$1\""; fi
	done
}

# finds "TYPE START LEN" OWNER NAME COMMAND...: what F_GETLK reports; the pid is negative if the owner is on another
# host, and -1 if that is an open file description.
finds() {
	local want=$1 pid
	case $2 in
	description) pid=-1 ;;
	*)
		pid=${ACT_PID[$2]}
		[ "${ACT_HOST[$2]}" = "${ACT_HOST[$3]}" ] || [ -n "$WORLD" ] || pid=-$pid
		;;
	esac
	shift 2
	says "OK $want $pid" "$@"
}

# in_wait NAME: it waits for the kernel, in fcntl(), or in a queue in Redis.
in_wait() {
	local nr cmd _
	read -r nr _ cmd _ <"/proc/${ACT_PID[$1]}/syscall" 2>/dev/null
	case $nr:$cmd in 72:0x7 | 72:0x26 | 25:0x7 | 25:0x26) return 0 ;; esac
	[ -z "$WORLD" ] && R eval 'local r = {}
		for _, k in ipairs(redis.call("KEYS", "*:rqueue")) do r[#r + 1] = table.concat(redis.call("ZRANGE", k, 0, -1), "\n") end
		return r' 0 | grep -q ":${ACT_PID[$1]}:"
}

# starts_waiting NAME COMMAND...: it is told, and does not answer but waits.
starts_waiting() {
	tell "$@"
	wait_until "in_wait $1" || { hear "$1" 0.1; fail "$*: does not wait; $SAID"; }
}
# still_waits NAME [MS]: it says nothing and is where one waits. Who has been let in has left the queue, or the kernel's, by
# then: a moment is enough.
still_waits() {
	local line
	if read -r -t "0.${2:-050}" -u "${ACT_OUT[$1]}" line; then fail "$1 should still wait, and says $line"; fi
	in_wait "$1" || fail "$1 should still wait"
}
# is_in NAME [ANSWER]: its wait has ended.
is_in() { is_told "${2:-OK}" "$1"; }
# killed NAME...
killed() {
	local n
	for n; do kill -KILL "${ACT_PID[$n]}"; done
	for n; do { wait "${ACT_PID[$n]}"; } 2>/dev/null; done
}

# free NAME START LEN, taken NAME START LEN: can it have the range, exclusively? It gives it back at once, so it must
# not hold any of it.
free() { says OK "$1" pset x w set "$2" "$3" && says OK "$1" pset x u set "$2" "$3"; }
taken() { says EAGAIN "$1" pset x w set "$2" "$3"; }
# gets_free NAME START LEN: sooner or later; see lib.sh on what that says.
gets_free() {
	wait_until "answers OK $1 pset x w set $2 $3" || fail "$2+$3 does not become free: $SAID"
	says OK "$1" pset x u set "$2" "$3"
}
quiet_end() { actors_end "$@"; assertNoKeys; }
# actors_end [NAME...]: they leave by themselves.
actors_end() {
	local n
	[ $# -gt 0 ] || set -- "${!ACT_IN[@]}"
	for n; do tell "$n" exit 0; done
	for n; do { wait "${ACT_PID[$n]}"; } 2>/dev/null; done
}
