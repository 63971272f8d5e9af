#!/bin/bash
# PID 1 of a PID namespace ends, and with it everything in the namespace, keepers too: its locks are free for other hosts at
# once. The lease is longer than anybody waits here.
. "$(dirname "$0")/../lib.sh"

# contained N [VAR=VALUE...] CMD...: PID 1 of a namespace of its own, with a /proc of its own, on host N.
contained() { H "$1" unshare -pf --mount-proc env "${@:2}"; }
free_after() { # MESSAGE STATUS: PID 1 has ended with this status
	assertEquals "$1: its exit status" 0 "$2"
	must '[ "$(busy "$F")" = 0 ]' '' "$1: free for another host;"
	assertNoKeys
}

test_flock_with_a_command() { contained 1 flock "$F" sleep 0.1; free_after flock $?; }
test_flock_with_a_command_and_the_proc_of_the_outer_namespace() {
	H 1 unshare -pf flock "$F" sleep 0.1; free_after flock $?
}

test_a_shell_with_a_descriptor() {
	contained 1 bash -c "exec 9>$F; flock 9; true; exit 0"; free_after bash $?
	contained 1 dash -c "exec 9>$F; flock 9; true; exit 0"; free_after dash $?
	contained 1 bash -c "exec 9>$F; flock -s 9; exit 0"; free_after "bash, shared" $?
	contained 1 bash -c "(flock 9; true) 9>$F; exit 0"; free_after "a subshell" $?
	contained 1 bash -c "exec 9>$F; flock 9; exec 9>&-; exit 0"; free_after "closed at the end" $?
}

test_python_and_perl_that_leave_it_to_the_exit() {
	local how
	for how in 'sys.exit(0)' 'os._exit(0)' 'subprocess.run("true"); os._exit(0)' 'subprocess.Popen(["sleep", "60"], close_fds=False); os._exit(0)' \
		'os.fork() or signal.pause(); os._exit(0)' 'fcntl.lockf(f, fcntl.LOCK_EX); os._exit(0)'; do
		contained 1 python3 -c "import fcntl, os, signal, subprocess, sys
f = open(sys.argv[1], 'a'); os.set_inheritable(f.fileno(), True); fcntl.flock(f, fcntl.LOCK_EX)
$how" "$F"
		free_after "python: $how" $?
	done
	contained 1 perl -e 'open F, ">", $ARGV[0]; flock F, 2; exit 0' "$F"; free_after perl $?
	contained 1 perl -MPOSIX -e 'open F, ">", $ARGV[0]; flock F, 2; system "true"; POSIX::_exit(0)' "$F"; free_after "perl _exit" $?
}

test_an_exec_that_fails() {
	contained 1 bash -c "exec 9>$F; flock 9; exec /nonexistent" 2>/dev/null; free_after "exec" $(($? - 127))
}

test_those_who_work_under_the_lock_end_before_it_is_free() {
	# The child writes as fast as it can until it is killed. What the next holder sees stays as it is.
	rm -f "$W/shared/log"
	contained 1 bash -c "exec 9>$F; flock 9; (while :; do echo working; done >>$W/shared/log) & until [ -s $W/shared/log ]; do :; done; exit 0"
	assertEquals 0 $?
	H 2 flock "$F" sh -c "wc -c <$W/shared/log"  >"$W/first"
	sleep 0.1
	assertEquals "nobody writes any more" "$(cat "$W/first")" "$(wc -c <"$W/shared/log")"
	assertNoKeys
}

test_the_last_words_of_a_program_come_before_its_lock_is_free() {
	local how
	for how in main exit quick_exit _exit destructor thread; do
		rm -f "$W/shared/data"
		# The other one waits while it runs, and reads what it has left as soon as it is in.
		spawn_told "$KEYS" 1 unshare -pf --mount-proc sh -c "until [ -e $W/shared/go ]; do sleep 0.01; done; exec '$PROBES/last' $how $F $W/shared/data"
		local p=$PID
		touch "$W/shared/go"
		must '[ -e $W/shared/data ]'
		H 2 flock "$F" cat "$W/shared/data" >"$W/seen"
		assertEquals "$how" "last words$([ $how != destructor ] || echo ' by a handler')" "$(paste -sd' ' "$W/seen")"
		wait $p; free_after "$how" $?
		rm "$W/shared/go"
	done
}
# spawn_told FILE N CMD...: like spawn, with FILE as standard input, which "spawn ... <FILE" would not be.
spawn_told() { "$TESTS/host" -s "${@:2}" <"$1" & PID=$!; }
suite_setup() { KEYS=$W/keys; mkfifo "$KEYS"; exec 8<>"$KEYS"; }

test_without_a_keeper() {
	contained 1 NETFLOCK_KEEPER=never flock "$F" true; free_after "flock" $?
	contained 1 NETFLOCK_KEEPER=never perl -e 'open F, ">", $ARGV[0]; flock F, 2; exit 0' "$F"; free_after perl $?
	contained 1 NETFLOCK_KEEPER=always perl -e 'open F, ">", $ARGV[0]; flock F, 2; exit 0' "$F"; free_after "perl, always" $?
}

test_behind_an_init_that_no_preload_reaches() {
	local i
	for i in 1 2 3 4 5; do
		H 1 unshare -pf --mount-proc "$PROBES/init" flock "$F" true; free_after "flock, $i" $?
		H 1 unshare -pf --mount-proc "$PROBES/init" bash -c "exec 9>$F; flock 9; exit 0"; free_after "bash, $i" $?
		H 1 unshare -pf --mount-proc "$PROBES/init" perl -e 'open F, ">", $ARGV[0]; flock F, 2; exit 0' "$F"; free_after "perl, $i" $?
	done
}

test_what_a_process_outside_holds_too_is_not_given_back() {
	# The description came from outside of the namespace, where it lives on.
	H 1 NETFLOCK_CONNECT_TIMEOUT=200ms bash -c "exec 9>$F; unshare -pf --mount-proc bash -c 'flock 9; exit 0'; mkdir $W/shared/inner-over; exec sleep 60" &
	must '[ -d $W/shared/inner-over ]'
	assertEquals "the kernel still has the lock" 1 "$(bare 1 flock -n "$F" true; echo $?)"
	assertEquals "so has Redis" 1 "$(busy "$F")"
}

test_a_sick_redis_does_not_hold_up_the_exit() {
	spawn_told "$KEYS" 1 unshare -pf --mount-proc env NETFLOCK_CONNECT_TIMEOUT=300ms bash -c 'exec 9>"$0"; flock 9; touch "$1"; read -r _; exit 0' "$F" "$W/shared/in"
	local p=$PID
	must '[ -e "$W/shared/in" ]'
	kill -STOP "$REDIS_PID"
	echo >&8
	must '! kill -0 $p 2>/dev/null' '' "it ends while Redis hangs:"
	kill -CONT "$REDIS_PID"
	rm -f "$W/shared/in"
}

# --- PID 1 is killed ----------------------------------------------------------------------------------------------

test_a_killed_container_s_lock_is_free_after_its_own_short_lease() {
	# Twenty times as long would be everybody's lease. The server's clock tells what the lock was given.
	NF_CONTAINER_TTL=2s spawn 1 unshare -pf --kill-child --mount-proc bash -c "exec 9>$F; flock 9; sleep 60"
	wait_held "$F"
	assertBetween "its lease" 1 2000 "$(R pttl "lock:$F")"
	keeps "$F" 3000 # renewed by the keeper inside
	kill -KILL $PID; { wait $PID; } 2>/dev/null
	must '[ "$(busy "$F")" = 0 ]' '' "free when that lease is over;"
	assertNoKeys
}

test_only_a_pid_namespace_has_a_short_lease_and_only_if_it_is_shorter() {
	NF_CONTAINER_TTL=2s spawn 1 flock "$F" sleep 60; wait_held "$F"
	assertBetween "outside" 2001 90000 "$(R pttl "lock:$F")"
	kill_strays; wait_free "$F"
	NF_CONTAINER_TTL=off spawn 1 unshare -pf --kill-child --mount-proc flock "$F" sleep 60; wait_held "$F"
	assertBetween "off" 2001 90000 "$(R pttl "lock:$F")"
	kill_strays; R flushall >/dev/null
	NF_TTL=2s NF_CONTAINER_TTL=5s spawn 1 unshare -pf --kill-child --mount-proc flock "$F" sleep 60; wait_held "$F"
	assertBetween "the other is shorter" 1 2000 "$(R pttl "lock:$F")"
	kill_strays
	R flushall >/dev/null
}

test_the_grace_after_a_restart_is_as_long_as_the_others_lease() {
	# Somebody in a container notices the restart; a holder elsewhere renews more rarely than a container's lease lasts.
	R set "netflock:{lock:$F}:run" 0123456789abcdef >/dev/null
	NF_CONTAINER_TTL=1s spawn 1 unshare -pf --kill-child --mount-proc flock "$F" true
	must '[[ $(R get "netflock:{lock:$F}:run") == *:* ]]'
	local note now; note=$(R get "netflock:{lock:$F}:run")
	now=$(R time | head -n 1)
	assertTrue "the grace ends in more than a container's lease" "[ $((${note#*:} / 1000 - now)) -gt 60 ]"
}

test_doctor_says_what_a_pid_namespace_means() {
	local told
	told() { bare 1 env NETFLOCK_PREFIX="$D" NETFLOCK_URL="$NF_URL" "$@" "$NETFLOCK" doctor "$F" 2>&1 | grep -i 'pid namespace'; }
	assertEquals "outside" "" "$(told)"
	inside() { told NETFLOCK_TTL=40s NETFLOCK_CONTAINER_TTL="$1" unshare -pf --mount-proc; }
	assertContains "$(inside 7s)" "killed after 7s"
	assertContains "$(inside off)" "whole lease, 40s"
}

. /usr/share/shunit2/shunit2
