#!/bin/bash
# A signal during a wait does what it does in the plain kernel, wherever the wait is: every kind is tried without the shim
# first, and then under it must come out the same, in the kernel and in Redis.
. "$(dirname "$0")/../lib.sh"

free() { bare "$1" flock -n "$F" true && echo free || echo taken; }
queued() { [ "$(R zcard "netflock:{lock:$F}:queue")" = "${1:-1}" ]; }

# trial HOST VAR KIND HANDLER: a on host 1 is in the way of b on HOST. KIND: EX, SH, UP (both read, and b wants to write). In
# $RESULT what came of it.
trial() {
	local op=$3 first=EX
	[ "$3" = UP ] && op=EX first=SH
	actor a 1 "$2"; actor b "$1" "$2"
	ask a open x c "$F" >/dev/null; ask b open x c "$F" >/dev/null
	RESULT="$(ask a flock x $first)"
	[ "$3" = UP ] && RESULT="$RESULT $(ask b flock x SH)"
	ask b alarm 200 "$4" >/dev/null
	tell b flock x $op
	if [ "$4" = norestart ]; then
		RESULT="$RESULT $(reply b 5)"
		# Nothing is left of the wait: not b's lock, nor its place, though b still lives.
		[ -z "$(leftover_keys | grep -v "^lock:$F$")" ] || RESULT="$RESULT keys:$(leftover_keys | paste -sd,)"
		RESULT="$RESULT $(ask a flock x UN) $(free "$1") $(wait_until '[ -z "$(leftover_keys)" ]' 1; echo $?)"
		RESULT="$RESULT $(H 3 "$2" flock -n "$F" true; echo $?)"
	else
		RESULT="$RESULT $(reply b 0.7)"
		RESULT="$RESULT $(ask a flock x UN) $(reply b 5) $(free "$1") $(ask b flock x UN) $(free "$1")"
	fi
	actors_close
	kill_strays
	R flushall >/dev/null
}

every_kind() { # HOST: where b waits, seen from host 1
	local kind handler plain
	for kind in EX SH UP; do
		for handler in restart norestart; do
			trial 1 NETFLOCK_DISABLE=1 $kind $handler; plain=$RESULT
			assertContains "$kind $handler: the plain kernel's answer, to compare with: $plain" "$plain" \
				"$([ $handler = restart ] && echo "no answer OK OK taken OK free" || echo "EINTR OK free")"
			trial "$1" NETFLOCK_DISABLE=0 $kind $handler
			assertEquals "$kind $handler" "$plain" "$RESULT"
		done
	done
}

test_a_wait_in_the_kernel_is_interrupted_as_without_the_shim() { every_kind 1; }
test_a_wait_in_redis_is_interrupted_as_one_in_the_kernel() { every_kind 2; }

test_a_wait_behind_a_plain_client_is_interrupted_too() {
	actor b 2
	ask b open x c "$F" >/dev/null
	R set "lock:$F" plain-1 px 20000 >/dev/null
	ask b alarm 300 norestart >/dev/null
	assertEquals EINTR "$(ask b flock x EX)"
	assertEquals "lock:$F" "$(leftover_keys)"
}

contended() { # host 1 has F until it is killed
	spawn 1 flock "$F" sleep 30
	wait_held "$F"
}
no_wait_left() { assertEquals "nobody waits any more" "" "$(leftover_keys | grep -v "^lock:$F$")"; }

test_alarm_in_python_ends_the_wait() {
	contended
	timed H 2 python3 -c 'if 1:
		import fcntl, signal, sys
		def late(*_): raise TimeoutError
		signal.signal(signal.SIGALRM, late); signal.alarm(1)
		try: fcntl.flock(open(sys.argv[1], "a"), fcntl.LOCK_EX)
		except TimeoutError: sys.exit(7)' "$F"
	assertEquals 7 $RC
	assertBetween "milliseconds" 1000 2000 $MS
	no_wait_left
}

# Python runs a handler that returns, and goes on waiting: the call is made again, and queues again.
test_a_handler_in_python_that_returns_does_not_end_the_wait() {
	contended; local holder=$PID
	spawn 2 python3 -c 'if 1:
		import fcntl, signal, sys
		n = 0
		def count(*_):
		    global n
		    n += 1
		signal.signal(signal.SIGUSR1, count)
		fcntl.flock(open(sys.argv[1], "a"), fcntl.LOCK_EX)
		print(n)' "$F" >"$W/out"; local p=$PID i
	for i in 1 2 3; do
		must queued
		kill -USR1 $p
		must '[ "$(grep -c "^SigPnd:.*[1-9a-f]" /proc/'$p'/status)" = 0 ]'
	done
	must queued
	pkill -P $holder; { wait $holder; } 2>/dev/null
	wait $p; assertEquals 0 $?
	assertTrue "handlers that ran: $(cat "$W/out")" '[ "$(cat "$W/out")" -ge 1 ]'
	assertNoKeys
}

test_timeout_1_flock_ends_in_time() {
	contended
	timed H 2 timeout 1 flock "$F" true
	assertEquals 124 $RC
	assertBetween "milliseconds" 1000 2000 $MS
	# flock was killed by SIGTERM, and said nothing: its place dies with it.
	bare 2 flock -n "$F" true; assertEquals "the kernel's lock" 0 $?
}

test_ctrl_c_in_a_terminal_ends_the_wait() {
	contended; local holder=$PID
	cat >"$W/terminal.py" <<-'S'
		import os, pty, signal, sys, time
		pid, tty = pty.fork()
		if pid == 0:
		    signal.signal(signal.SIGINT, signal.SIG_DFL) # the shell has it ignored in the background
		    os.execvp("flock", ["flock", sys.argv[1], "true"])
		open(sys.argv[2], "w").close()
		while not os.path.exists(sys.argv[3]): time.sleep(0.01)
		t = time.monotonic(); os.write(tty, b"\x03")
		_, status = os.waitpid(pid, 0)
		print(os.WTERMSIG(status), time.monotonic() - t < 0.5)
	S
	rm -f "$W/shared/press"
	spawn 2 python3 "$W/terminal.py" "$F" "$W/started" "$W/shared/press" >"$W/out"; local p=$PID
	must queued
	touch "$W/shared/press"
	wait $p; assertEquals 0 $?
	assertEquals "SIGINT, at once" "2 True" "$(cat "$W/out")"
	pkill -P $holder; { wait $holder; } 2>/dev/null
	timed H 3 flock -w 5 "$F" true
	assertEquals 0 $RC
	assertBetween "milliseconds" 0 1500 $MS
}

. /usr/share/shunit2/shunit2
