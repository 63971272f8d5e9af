#!/bin/bash
# Waiting for another host obeys signals and time limits as waiting in the kernel does.
. "$(dirname "$0")/../lib.sh"

# Host 1 holds F; actor b on host 2 is to wait for it.
contended() {
	actor a 1; actor b 2
	ask a open x c "$F" >/dev/null; ask b open x c "$F" >/dev/null
	assertEquals OK "$(ask a flock x EX)"
}
took() { local t; t=$(ask "$1" took); echo "${t#OK }"; }
queued() { # somebody waits, by what Redis knows, or at least (a waiter may poll) for a moment
	wait_until '[ "$(R exists "netflock:{lock:$F}:queue")" = 1 ]' 0.5; }

test_a_handler_without_sa_restart_ends_the_wait_with_eintr() {
	contended
	ask b alarm 500 norestart >/dev/null
	assertEquals EINTR "$(ask b flock x EX)"
	assertBetween "milliseconds" 480 900 "$(took b)"
	assertEquals "host 2 waits no longer" "" "$(leftover_keys | grep -v "^lock:$F$")"
	assertEquals "the holder is undisturbed" 1 "$(busy "$F" 3)"
	# After an interrupted wait the kernel's lock must be free again: a local program tries the same.
	assertEquals OK "$(ask a flock x UN)"
	H 2 flock -n "$F" true; assertEquals 0 $?
}

test_a_handler_with_sa_restart_does_not_end_the_wait() {
	contended
	ask b alarm 200 restart >/dev/null
	tell b flock x EX
	queued; sleep 0.6       # the alarm falls into this time
	assertEquals OK "$(ask a flock x UN)"
	assertEquals OK "$(reply b 4)"
	assertBetween "milliseconds" 500 4000 "$(took b)"
}

test_eintr_while_waiting_for_a_shared_lock() {
	contended
	ask b alarm 300 norestart >/dev/null
	assertEquals EINTR "$(ask b flock x SH)"
	assertBetween "milliseconds" 280 700 "$(took b)"
}

test_an_interrupted_upgrade_leaves_nothing_locked() {
	actor a 1; actor b 2
	ask a open x c "$F" >/dev/null; ask b open x c "$F" >/dev/null
	assertEquals OK "$(ask a flock x SH)"; assertEquals OK "$(ask b flock x SH)"
	ask b alarm 300 norestart >/dev/null
	assertEquals EINTR "$(ask b flock x EX)"
	assertEquals OK "$(ask a flock x UN)"
	assertNoKeys
}

test_a_local_wait_is_interrupted_too() {
	actor a 1; actor b 1
	ask a open x c "$F" >/dev/null; ask b open x c "$F" >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	ask b alarm 300 norestart >/dev/null
	assertEquals EINTR "$(ask b flock x EX)"
}

test_lock_nb_never_says_eintr() {
	contended
	assertEquals "answers other than EWOULDBLOCK in a storm of signals" "OK 0" "$(ask b nbstorm x 200)"
}

test_flock_w_gives_up_at_its_limit() {
	spawn 1 flock "$F" sleep 30
	wait_held "$F"
	timed H 2 flock -w 1 "$F" true
	assertEquals 1 $RC
	assertBetween "milliseconds" 980 1500 $MS
	timed H 2 flock -w 0.3 -E 9 "$F" true
	assertEquals 9 $RC
	assertBetween "milliseconds" 280 800 $MS
	assertEquals "nobody waits any more" "" "$(leftover_keys | grep -v "^lock:$F$")"
}

test_exit_codes_of_flock() {
	spawn 1 flock "$F" sleep 30; local p=$PID
	wait_held "$F"
	H 2 flock -n "$F" true; assertEquals -n 1 $?
	H 2 flock -E 75 -n "$F" true; assertEquals "-E 75 -n" 75 $?
	H 2 flock -w 0 "$F" true; assertEquals "-w 0" 1 $?
	kill $p $(pgrep -P $p); { wait $p; } 2>/dev/null
	must '[ "$(busy "$F")" = 0 ]'
	H 2 flock -n "$F" -c 'exit 42'; assertEquals "-n -c" 42 $?
	H 2 flock -w 1 "$F" -c 'exit 43'; assertEquals "-w 1 -c" 43 $?
	H 2 flock -n -o "$F" -c 'exit 44'; assertEquals "-n -o -c" 44 $?
	H 2 flock -F -n "$F" sh -c 'exit 45'; assertEquals "-F -n" 45 $?
	H 2 sh -c 'exec 9>"$1"; flock -n 9 && flock -u 9' sh "$F"; assertEquals "-n 9, -u 9" 0 $?
}

test_sigterm_ends_a_waiting_program_and_nothing_is_left() {
	spawn 1 flock "$F" sleep 30; local h=$PID
	wait_held "$F"
	spawn 2 flock "$F" true; local w=$PID
	queued
	kill $w; { wait $w; RC=$?; } 2>/dev/null
	assertEquals 143 $RC
	kill $h $(pgrep -P $h); { wait $h; } 2>/dev/null
	# A waiter that died is skipped: the next host gets in without its share of waiting.
	timed H 3 flock -w 5 "$F" true
	assertEquals 0 $RC
	assertBetween "milliseconds" 0 3500 $MS
	# What was pushed to the dead waiter is gone within a lease.
	must '[ -z "$(leftover_keys)" ]' 5
}

test_signals_do_not_break_uncontended_locking() {
	# A profiler's timer fires all the time; each handler asks for EINTR.
	H 1 python3 -c 'if 1:
		import fcntl, signal, sys
		signal.signal(signal.SIGALRM, lambda *a: None)
		signal.siginterrupt(signal.SIGALRM, True)
		signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
		for i in range(500):
		    f = open(sys.argv[1], "a")
		    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
		    fcntl.flock(f, fcntl.LOCK_UN)
		    f.close()
		signal.setitimer(signal.ITIMER_REAL, 0)' "$F"
	assertEquals 0 $?
	assertNoKeys
}

. /usr/share/shunit2/shunit2
