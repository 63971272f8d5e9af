#!/bin/bash
# Programs that people use for locking, unmodified, each on two hosts.
. "$(dirname "$0")/../lib.sh"

# Record locks are for a later version; programs that use them must at least run as ever.
has_record_locks() { nm -D --defined-only "$PLAIN_SO" | grep -qw lockf; }

# excludes WORDS...: "WORDS FILE sleep N" on host 1 keeps the same out on host 2 (any status but 0), for longer than a
# lease; afterwards host 2 gets in. All WORDS at once, each with a file of its own.
excludes() {
	local words i=0 files=()
	for words; do
		spawn 1 NETFLOCK_TTL=1s $words "$D/$i" sleep 60
		files+=("$D/$i") i=$((i + 1))
	done
	for i in "${files[@]}"; do wait_held "$i"; done
	stays '[ "$(R exists "${files[@]/#/lock:}")" = ${#files[@]} ]' 1500 "all are held:"
	i=0
	for words; do
		timeout $PATIENCE "$TESTS/host" -s 2 $words "$D/$i" true >/dev/null 2>&1
		case $? in 0 | 124) fail "$words on host 2 gets in, or waits" ;; esac
		i=$((i + 1))
	done
	assertEquals "flock on host 2" 1 "$(busy "$D/0")"
	freed_by kill_strays "${files[@]}"
	i=0
	for words; do
		H 2 $words "$D/$i" true; assertEquals "$words on host 2, afterwards" 0 $?
		i=$((i + 1))
	done
	assertNoKeys
}

# asan: no: the calls of lifetime.sh and fork.sh, by other people's programs
test_flock_in_all_its_forms() { excludes "flock -n" "flock -n -F" "flock -n -o" "flock -w 0.5"; }
# asan: no: as the one above
test_daemontools_setlock_and_runit_chpst() { need setlock chpst || return 0; excludes "setlock -n" "chpst -L"; }

# asan: no: waiting is tested in queue.sh
test_setlock_and_chpst_wait_for_the_other_host() {
	local c
	need setlock chpst || return 0
	for c in setlock 'chpst -l'; do
		spawn 1 $c "$F" sh -c "until [ -e $W/shared/go ]; do sleep 0.02; done"; local p=$PID
		wait_held "$F"
		spawn 2 $c "$F" touch "$W/shared/in"
		must '[ "$(R exists "netflock:{lock:$F}:queue")" = 1 ]'
		assertFalse "$c" '[ -e $W/shared/in ]'
		touch "$W/shared/go"; wait $p
		must '[ -e $W/shared/in ]'
		rm -f "$W/shared/go" "$W/shared/in"
	done
}

test_lckdo_and_with_lock_ex() {
	need lckdo with-lock-ex || return 0
	H 1 lckdo "$F" sh -c 'exit 7'; assertEquals lckdo 7 $?
	H 1 with-lock-ex -f "$F" sh -c 'exit 7'; assertEquals with-lock-ex 7 $?
	has_record_locks || return 0
	local c
	for c in 'lckdo' 'with-lock-ex -f'; do
		spawn 1 NETFLOCK_TTL=1s $c "$F" sleep 60; local p=$PID
		must '[ -n "$(leftover_keys)" ]'
		timeout $PATIENCE "$TESTS/host" -s 2 $c "$F" true >/dev/null 2>&1
		case $? in 0 | 124) fail "$c on host 2 gets in, or waits" ;; esac
		# A killed holder's record lock ends with the lease, this one's.
		pkill -KILL -P $p; kill -KILL $p; { wait $p; } 2>/dev/null
		assertNoKeys
		H 2 $c "$F" true >/dev/null 2>&1; assertEquals "$c afterwards" 0 $?
	done
}

# asan: no: the calls of lifetime.sh and fork.sh, by other people's programs
test_a_script_that_locks_itself() {
	cat >"$W/self" <<-'S'
		#!/bin/sh
		[ "$FLOCKER" != "$0" ] && exec env FLOCKER="$0" flock -en "$1" "$0" "$@" || :
		touch "$2"; sleep 60
	S
	chmod +x "$W/self"
	spawn 1 "$W/self" "$F" "$W/shared/self"; local p=$PID
	must '[ -e $W/shared/self ]'
	assertEquals 1 "$(busy "$F")"
	H 2 "$W/self" "$F" "$W/shared/self2"; assertEquals 1 $?
	assertFalse '[ -e $W/shared/self2 ]'
}

# asan: no: the calls of lifetime.sh and fork.sh, by other people's programs
test_exec_9_or_exit_with_E() {
	spawn 1 sh -c "exec 9>$F; flock -n 9 || exit 1; touch $W/shared/s9; sleep 60"
	must '[ -e $W/shared/s9 ]'
	H 2 sh -c "exec 9>$F; flock -n -E 9 9 || exit; exit 0"; assertEquals "-E 9" 9 $?
}

# asan: no: the calls of lifetime.sh and fork.sh, by other people's programs
test_flock_s_exit_status_and_time_limit_against_another_host() {
	spawn 1 flock "$F" sleep 60; wait_held "$F"
	H 2 flock -n "$F" true; assertEquals "-n" 1 $?
	H 2 flock -n -E 9 "$F" true; assertEquals "-n -E 9" 9 $?
	# Not longer than a plain wait of 20 seconds that began before it, and not shorter than it was told.
	bare 3 flock "$D/plain" sleep 60 &
	must '[ "$(bare 3 flock -n "$D/plain" true; echo $?)" = 1 ]'
	: >"$W/order"
	(bare 3 flock -w 20 "$D/plain" true; echo late >>"$W/order") & local late=$!
	(H 2 flock -w 1 -E 7 -s "$F" true; echo "shared $?" >>"$W/order") & local shared=$!
	timed H 2 flock -w 1 "$F" true; echo "exclusive $RC" >>"$W/order"
	assertTrue "after a second, not after $MS ms" "[ $MS -ge 1000 ]"
	wait $shared
	assertEquals "before a wait of 20 seconds ends" "exclusive 1 shared 7" "$(sort "$W/order" | paste -sd' ')"
	kill $late; pkill -P $late
	assertEquals "nobody waits any more" "lock:$F" "$(leftover_keys)"
	freed_by kill_strays
	H 2 flock -w 1 "$F" sh -c 'exit 5'; assertEquals "the command's own status" 5 $?
	assertNoKeys
}

# asan: no: the calls of lifetime.sh and fork.sh, by other people's programs
test_flock_u_by_another_program_lets_the_other_host_in_when_it_returns() {
	local i
	for i in 1 2 3; do
		spawn 1 sh -c "exec 9>$F; flock 9; touch $W/shared/u1; until [ -e $W/shared/u2 ]; do sleep 0.01; done
			flock -u 9; touch $W/shared/u3; sleep 60"
		must '[ -e $W/shared/u1 ]'
		assertEquals "before" 1 "$(busy "$F")"
		touch "$W/shared/u2"; must '[ -e $W/shared/u3 ]'
		assertEquals "after" 0 "$(busy "$F")"
		pkill -KILL -P $PID; kill -KILL $PID; { wait $PID; } 2>/dev/null
		rm -f "$W"/shared/u?
	done
	H 1 sh -c "exec 9>$F; flock 9; flock -u 9; flock -n 9 && flock -u 9"; assertEquals "at once, and again" 0 $?
	assertEquals 0 "$(busy "$F")"
	assertNoKeys
}

# daemon_excludes NAME WORDS...: they become a daemon that holds $D/NAME by a pid file.
daemon_excludes() {
	local f=$D/$1 pid; shift
	H 1 NETFLOCK_TTL=1s "$@" "$f"; assertEquals "it starts" 0 $?
	wait_held "$f"
	must '[ -s $HOSTS/1/${f##*/} ]'; pid=$(cat "$HOSTS/1/${f##*/}")
	keeps "$f" 1500
	H 2 "$@" "$f" >/dev/null; assertNotEquals "the daemon on host 2" 0 $?
	H 1 "$@" "$f" >/dev/null; assertNotEquals "a second one on host 1" 0 $?
	freed_by "kill $pid" "$f"
	H 2 "$@" "$f"; assertEquals "the daemon on host 2, afterwards" 0 $?
}
test_libbsd_s_pidfile_open_and_daemon() { daemon_excludes libbsd "$PROBES/pidfile"; }
# asan: no: the calls of lifetime.sh and fork.sh, by other people's programs
test_a_daemon_that_locks_its_pid_file_and_then_calls_daemon() {
	cat >"$W/plaind" <<-S
		#!/bin/sh
		exec $PROBES/pidfile "\$1" plain
	S
	chmod +x "$W/plaind"
	daemon_excludes plain "$W/plaind"
}

# asan: no: the calls of lifetime.sh and fork.sh, by other people's programs
test_children_of_start_stop_daemon() {
	need start-stop-daemon || return 0
	H 1 NETFLOCK_TTL=1s start-stop-daemon --start --background --make-pidfile --pidfile "$W/ssd.pid" --exec /usr/bin/flock -- -n "$F" sleep 60
	assertEquals 0 $?
	wait_held "$F"
	keeps "$F" 1500
	assertEquals 1 "$(busy "$F")"
	H 1 start-stop-daemon --stop --pidfile "$W/ssd.pid" --signal KILL >/dev/null; assertEquals "stopped" 0 $?
	assertEquals "its child still has it" 1 "$(busy "$F")"
	freed_by kill_strays
}

test_logrotate_on_two_hosts() {
	need logrotate || return 0
	local st=$D/logrotate.status
	# It locks no state file that everybody may read, or that is not there yet.
	local h; for h in 1 2; do mkdir -p "$HOSTS/$h"; echo 'logrotate state -- version 2' >"$HOSTS/$h/logrotate.status"; done
	chmod 640 "$HOSTS"/?/logrotate.status
	mkdir -p "$W/shared/log"; echo a >"$W/shared/log/a.log"
	cat >"$W/lr.conf" <<-S
		$W/shared/log/a.log {
			rotate 3
			prerotate
				touch $W/shared/rotating; until [ -e $W/shared/rotated ]; do sleep 0.05; done
			endscript
		}
	S
	chmod 644 "$W/lr.conf"
	spawn 1 logrotate -f -s "$st" "$W/lr.conf"; local p=$PID
	must '[ -e $W/shared/rotating ]'
	assertEquals "the state file is locked for host 2" 1 "$(busy "$st")"
	H 2 timeout $PATIENCE logrotate -f -s "$st" "$W/lr.conf" >"$W/out" 2>&1; assertNotEquals "logrotate on host 2" 0 $?
	assertContains "$(cat "$W/out")" lock
	touch "$W/shared/rotated"
	wait $p; assertEquals 0 $?
	assertNoKeys
}

# asan: no: the calls of lifetime.sh and fork.sh, by other people's programs
test_anacron_runs_its_jobs() {
	need anacron || return 0
	mkdir -p "$HOSTS/1/spool" "$HOSTS/2/spool"
	printf '1 0 job touch %s/shared/anacron.ran\n' "$W" >"$W/anacrontab"
	H 1 anacron -d -n -f -t "$W/anacrontab" -S "$D/spool" 2>"$W/err"; status_is 0 $? "" "$W/err"
	assertTrue '[ -e $W/shared/anacron.ran ]'
	rm -rf "$HOSTS"/?/spool
	assertNoKeys
}

test_anacron_on_two_hosts() {
	need anacron || return 0
	has_record_locks || return 0
	# It locks the time stamp of each job (a record lock), and leaves out what another one has locked.
	mkdir -p "$HOSTS/1/spool" "$HOSTS/2/spool"
	printf '1 0 job touch %s/shared/job; until [ -e %s/shared/over ]; do sleep 0.05; done\n' "$W" "$W" >"$W/anacrontab"
	spawn 1 anacron -d -f -t "$W/anacrontab" -S "$D/spool" 2>"$W/err"; local p=$PID
	must '[ -e $W/shared/job ]'
	rm "$W/shared/job"
	timeout $PATIENCE "$TESTS/host" -s 2 anacron -d -f -t "$W/anacrontab" -S "$D/spool" 2>"$W/err2"; status_is 0 $? "on host 2" "$W/err2"
	assertContains "$(cat "$W/err2")" "locked by another anacron"
	assertFalse "it has not run the job" '[ -e $W/shared/job ]'
	touch "$W/shared/over"; wait $p; status_is 0 $? "on host 1" "$W/err"
	assertNoKeys
	H 2 anacron -d -f -t "$W/anacrontab" -S "$D/spool" 2>"$W/err2"
	assertTrue "afterwards it runs it: $(cat "$W/err2")" '[ -e $W/shared/job ]'
	rm -rf "$HOSTS"/?/spool "$W/shared/job" "$W/shared/over"
	assertNoKeys
}

# asan: no: the calls of lifetime.sh and fork.sh, by other people's programs
test_programs_piped_together_under_one_lock() {
	H 1 flock "$F" sh -c 'seq 1000 | sort -n | tail -1 | grep -q 1000'; assertEquals 0 $?
	assertEquals x "$(H 1 sh -c "(flock 9; echo x) 9>$F" | cat)"
	assertNoKeys
}

. /usr/share/shunit2/shunit2
