#!/bin/bash
# Programs that people use for locking, unmodified, each on two hosts.
. "$(dirname "$0")/../lib.sh"

export NF_TTL=1s

# Record locks are for a later version; programs that use them must at least run as ever.
has_record_locks() { nm -D --defined-only "$PLAIN_SO" | grep -qw lockf; }

# excludes NAME WORDS...: "WORDS FILE sleep N" on host 1 keeps the same out on host 2 (any status but 0), for
# longer than a lease; afterwards host 2 gets in.
excludes() {
	local name=$1; shift
	spawn 1 "$@" "$F" sleep 60; local p=$PID
	wait_held "$F"
	local end=$(($(now_ms) + 1400))
	while [ "$(now_ms)" -lt $end ]; do held "$F" || { fail "$name: the key is gone"; break; }; sleep 0.05; done
	timed H 2 timeout 5 "$@" "$F" true >/dev/null 2>&1
	assertNotEquals "$name on host 2 (0: it got in, 124: it waits)" 0 $RC
	assertEquals "flock on host 2" 1 "$(busy "$F")"
	pkill -KILL -P $p; kill -KILL $p 2>/dev/null; { wait $p; } 2>/dev/null
	must '[ "$(busy "$F")" = 0 ]' 2 "$name: free after the end;"
	H 2 timeout 5 "$@" "$F" true; assertEquals "$name on host 2, afterwards" 0 $?
	must '[ -z "$(leftover_keys)" ]' 3
}

test_flock_file_command()        { excludes "flock -n" flock -n; }
test_flock_which_execs()         { excludes "flock -n -F" flock -n -F; }
test_flock_which_closes()        { excludes "flock -n -o" flock -n -o; }
test_flock_with_a_time_limit()   { excludes "flock -w" flock -w 0.5; }
test_daemontools_setlock()       { need setlock || return 0; excludes setlock setlock -n; }
test_runit_chpst()               { need chpst || return 0; excludes chpst chpst -L; }

test_setlock_and_chpst_wait_for_the_other_host() {
	local c
	need setlock chpst || return 0
	for c in setlock 'chpst -l'; do
		spawn 1 $c "$F" sh -c "until [ -e $W/shared/go ]; do sleep 0.02; done"; local p=$PID
		wait_held "$F"
		spawn 2 $c "$F" touch "$W/shared/in"
		wait_until '[ "$(R exists "netflock:{lock:$F}:queue")" = 1 ]' 0.5
		assertFalse "$c" '[ -e $W/shared/in ]'
		touch "$W/shared/go"; wait $p
		must '[ -e $W/shared/in ]' 4
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
		spawn 1 $c "$F" sleep 60; local p=$PID
		must '[ -n "$(leftover_keys)" ]'
		H 2 timeout 5 $c "$F" true >/dev/null 2>&1; assertNotEquals "$c on host 2" 0 $?
		pkill -KILL -P $p; kill -KILL $p; { wait $p; } 2>/dev/null
		must 'H 2 timeout 5 $c "$F" true >/dev/null 2>&1' 3 "$c afterwards;"
	done
}

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

test_exec_9_or_exit_with_E() {
	spawn 1 sh -c "exec 9>$F; flock -n 9 || exit 1; touch $W/shared/s9; sleep 60"
	must '[ -e $W/shared/s9 ]'
	H 2 sh -c "exec 9>$F; flock -n -E 9 9 || exit; exit 0"; assertEquals "-E 9" 9 $?
}

test_flock_s_exit_status_and_time_limit_against_another_host() {
	spawn 1 flock "$F" sleep 60; wait_held "$F"
	H 2 flock -n "$F" true; assertEquals "-n" 1 $?
	H 2 flock -n -E 9 "$F" true; assertEquals "-n -E 9" 9 $?
	timed H 2 flock -w 1 "$F" true; assertEquals "-w 1" 1 $RC
	assertBetween "milliseconds of -w 1" 1000 1900 $MS
	timed H 2 flock -w 1 -E 7 -s "$F" true; assertEquals "-w 1 -E 7 -s" 7 $RC
	assertEquals "nobody waits any more" "lock:$F" "$(leftover_keys)"
	pkill -KILL -P $PID; kill -KILL $PID; { wait $PID; } 2>/dev/null
	must '[ "$(busy "$F")" = 0 ]' 2
	H 2 flock -w 1 "$F" sh -c 'exit 5'; assertEquals "the command's own status" 5 $?
	assertNoKeys
}

test_flock_u_by_another_program_lets_the_other_host_in_when_it_returns() {
	local i
	for i in 1 2 3 4 5; do
		spawn 1 NETFLOCK_TTL=20s sh -c "exec 9>$F; flock 9; touch $W/shared/u1; until [ -e $W/shared/u2 ]; do sleep 0.01; done
			flock -u 9; touch $W/shared/u3; sleep 60"
		must '[ -e $W/shared/u1 ]'
		assertEquals "before" 1 "$(busy "$F")"
		touch "$W/shared/u2"; must '[ -e $W/shared/u3 ]'
		assertEquals "after" 0 "$(busy "$F")"
		pkill -KILL -P $PID; kill -KILL $PID; { wait $PID; } 2>/dev/null
		rm -f "$W"/shared/u?
	done
	H 1 NETFLOCK_TTL=20s sh -c "exec 9>$F; flock 9; flock -u 9; flock -n 9 && flock -u 9"; assertEquals "at once, and again" 0 $?
	assertEquals 0 "$(busy "$F")"
	assertNoKeys
}

test_python_s_pass_fds_on_two_hosts() {
	spawn 1 python3 -c 'if 1:
		import fcntl, subprocess, sys
		f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX)
		subprocess.Popen(["sleep", "60"], pass_fds=[f.fileno()]); open(sys.argv[2], "w")' "$F" "$W/shared/passed"
	wait $PID; assertEquals 0 $?
	local end=$(($(now_ms) + 1500)) # more than a lease
	while [ "$(now_ms)" -lt $end ]; do held "$F" || { fail "the key is gone"; break; }; sleep 0.05; done
	assertEquals "the program is gone, its child has the lock" 1 "$(busy "$F")"
	kill_strays
	must '[ "$(busy "$F")" = 0 ]' 2
	assertNoKeys
}

test_a_pre_forking_server_that_locks_before_it_forks_on_two_hosts() {
	cat >"$W/server.py" <<-'S'
		import fcntl, os, sys, time
		f = open(sys.argv[1], "a")
		try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
		except BlockingIOError: sys.exit(3)
		for i in range(3):
		    if os.fork() == 0: time.sleep(60)
		time.sleep(60)
	S
	spawn 1 python3 "$W/server.py" "$F"; local p=$PID
	must '[ "$(pgrep -P $p | count)" = 3 ]'
	H 2 python3 "$W/server.py" "$F"; assertEquals "on host 2" 3 $?
	kill -KILL $p; { wait $p; } 2>/dev/null
	local end=$(($(now_ms) + 1500)) # more than a lease
	while [ "$(now_ms)" -lt $end ]; do held "$F" || { fail "the key is gone"; break; }; sleep 0.05; done
	H 2 python3 "$W/server.py" "$F"; assertEquals "the workers still have it" 3 $?
	kill_strays
	must '[ "$(busy "$F")" = 0 ]' 2
	assertNoKeys
}

# daemon WORDS...: becomes a daemon that holds $F by a pid file.
daemon_excludes() {
	H 1 "$@" "$F"; assertEquals "it starts" 0 $?
	wait_held "$F"
	local pid; must '[ -s $HOSTS/1/x ]'; pid=$(cat "$HOSTS/1/x")
	local end=$(($(now_ms) + 1500))
	while [ "$(now_ms)" -lt $end ]; do held "$F" || { fail "the key is gone"; break; }; sleep 0.05; done
	H 2 "$@" "$F" >/dev/null; assertNotEquals "the daemon on host 2" 0 $?
	H 1 "$@" "$F" >/dev/null; assertNotEquals "a second one on host 1" 0 $?
	kill "$pid"
	must '[ "$(busy "$F")" = 0 ]' 2
	H 2 "$@" "$F"; assertEquals "the daemon on host 2, afterwards" 0 $?
	rm -f "$HOSTS/1/x" "$HOSTS/2/x"
}
test_libbsd_s_pidfile_open_and_daemon() { daemon_excludes "$PROBES/pidfile"; }
test_a_daemon_that_locks_its_pid_file_and_then_calls_daemon() {
	cat >"$W/plaind" <<-S
		#!/bin/sh
		exec $PROBES/pidfile "\$1" plain
	S
	chmod +x "$W/plaind"
	daemon_excludes "$W/plaind"
}

test_children_of_start_stop_daemon() {
	need start-stop-daemon || return 0
	H 1 start-stop-daemon --start --background --make-pidfile --pidfile "$W/ssd.pid" --exec /usr/bin/flock -- -n "$F" sleep 60
	assertEquals 0 $?
	wait_held "$F"
	local end=$(($(now_ms) + 1500))
	while [ "$(now_ms)" -lt $end ]; do held "$F" || { fail "the key is gone"; break; }; sleep 0.05; done
	assertEquals 1 "$(busy "$F")"
	H 1 start-stop-daemon --stop --pidfile "$W/ssd.pid" --signal KILL >/dev/null; assertEquals "stopped" 0 $?
	assertEquals "its child still has it" 1 "$(busy "$F")"
	kill_strays
	must '[ "$(busy "$F")" = 0 ]' 2
	assertNoKeys
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
	H 2 timeout 10 logrotate -f -s "$st" "$W/lr.conf" >"$W/out" 2>&1; assertNotEquals "logrotate on host 2" 0 $?
	assertContains "$(cat "$W/out")" lock
	touch "$W/shared/rotated"
	wait $p; assertEquals 0 $?
	must '[ "$(busy "$st")" = 0 ]' 2
	must '[ -z "$(leftover_keys)" ]' 2
}

test_anacron_runs_its_jobs() {
	need anacron || return 0
	mkdir -p "$HOSTS/1/spool" "$HOSTS/2/spool"
	printf '1 0 job touch %s/shared/anacron.ran\n' "$W" >"$W/anacrontab"
	H 1 anacron -d -n -f -t "$W/anacrontab" -S "$D/spool" 2>"$W/err"; status_is 0 $? "" "$W/err"
	assertTrue '[ -e $W/shared/anacron.ran ]'
	rm -rf "$HOSTS"/?/spool
	must '[ -z "$(leftover_keys)" ]' 3
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
	timeout 20 "$TESTS/host" -s 2 anacron -d -f -t "$W/anacrontab" -S "$D/spool" 2>"$W/err2"; status_is 0 $? "on host 2" "$W/err2"
	assertContains "$(cat "$W/err2")" "locked by another anacron"
	assertFalse "it has not run the job" '[ -e $W/shared/job ]'
	touch "$W/shared/over"; wait $p; status_is 0 $? "on host 1" "$W/err"
	must '[ -z "$(leftover_keys)" ]' 3
	H 2 anacron -d -f -t "$W/anacrontab" -S "$D/spool" 2>"$W/err2"
	assertTrue "afterwards it runs it: $(cat "$W/err2")" '[ -e $W/shared/job ]'
	rm -rf "$HOSTS"/?/spool "$W/shared/job" "$W/shared/over"
	must '[ -z "$(leftover_keys)" ]' 3
}

test_programs_piped_together_under_one_lock() {
	H 1 flock "$F" sh -c 'seq 1000 | sort -n | tail -1 | grep -q 1000'; assertEquals 0 $?
	assertEquals x "$(H 1 sh -c "(flock 9; echo x) 9>$F" | cat)"
	must '[ -z "$(leftover_keys)" ]' 2
}

. /usr/share/shunit2/shunit2
