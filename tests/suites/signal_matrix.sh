#!/bin/bash
# Every way to be interrupted while waiting, beside what the kernel's flock does without the shim; and the ways in which
# programs and people use it.
. "$(dirname "$0")/../lib.sh"

KEY=lock:$F QUEUE="netflock:{lock:$F}:queue"

# A process waits in the kernel for the lock of host N's file.
blocked() { grep -q -e "-> FLOCK .*:$(stat -c %i "$HOSTS/$1/x") " /proc/locks; }
queued() { [ "$(R zcard "$QUEUE")" = 1 ]; }

# outcome HOW WHERE RESTART MODE: HOW bare: without the shim. WHERE kernel: both processes on host 1; redis: on two hosts.
# $OUTCOME is what the probe says, and what is found of it afterwards.
outcome() {
	local how=$1 where=$2 restart=$3 mode=$4 waiter holder h=EX on=1 asleep='blocked 1'
	local out=$W/shared/out mark=$W/shared/mark
	rm -f "$out" "$mark" "$W/shared/go"
	[ "$where" = kernel ] || on=2 asleep=queued
	[ "$mode" = UP ] && h=SH
	local run=spawn; [ "$how" = shim ] || run=spawn_bare
	$run 1 python3 -c "import fcntl, os, sys, time
f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_$h); open(sys.argv[2], 'w')
while not os.path.exists(sys.argv[3]): time.sleep(0.01)" "$F" "$W/shared/in" "$W/shared/go"
	holder=$PID
	must '[ -e $W/shared/in ]'
	$run $on "$PROBES/sigwait" "$F" "$restart" "$mode" "$mark" >"$out"
	waiter=$PID
	must "$asleep" 5 "$*: it waits;"
	kill -ALRM "$waiter"
	must '[ -e $mark ]' 5 "$*: the handler runs;"
	# With SA_RESTART the wait goes on, until the holder lets go.
	if [ "$restart" = restart ]; then
		must "$asleep" 5 "$*: it waits on;"
		assertFalse "$*: it has not returned" "grep -q handlers $out"
		touch "$W/shared/go"
	fi
	must 'grep -q handlers $out' 5 "$*: the call returns;"
	OUTCOME=$(grep handlers "$out")
	if [ "$how" = shim ] && [ "$restart" = norestart ]; then
		assertEquals "$*: left in Redis besides the holder's" "" "$(leftover_keys | grep -vx "$KEY")"
		[ "$h" = EX ] || assertEquals "$*: tokens besides the holder's" 1 "$(R zcard "$KEY")"
	fi
	assertFalse "$*: somebody waits in the kernel" "blocked 1"
	touch "$W/shared/go"
	{ wait "$holder"; } 2>/dev/null
	# The waiter is still there. What it has not got is free for others.
	if [ "$restart" = norestart ]; then
		if [ "$how" = shim ]; then H 3 flock -n "$F" true; assertEquals "$*: free for another host" 0 $?; fi
		bare $on flock -n "$F" true; assertEquals "$*: free in the kernel" 0 $?
	elif [ "$how" = shim ]; then
		assertEquals "$*: held for other hosts" 1 "$(busy "$F" 3)"
	fi
	kill -KILL "$waiter"; { wait "$waiter"; } 2>/dev/null
	rm -f "$W/shared/in"
	[ "$how" != shim ] || must '[ "$(busy "$F" 3)" = 0 ]' 5
}

matrix() { # MODE
	local restart plain
	for restart in norestart restart; do
		outcome bare kernel $restart "$1"; plain=$OUTCOME
		assertContains "$plain" "$([ $restart = restart ] && echo OK || echo EINTR)"
		outcome shim kernel $restart "$1"
		assertEquals "$1, $restart, waiting in the kernel" "$plain" "$OUTCOME"
		outcome shim redis $restart "$1"
		assertEquals "$1, $restart, waiting in Redis" "$plain" "$OUTCOME"
	done
}

test_an_exclusive_lock() { matrix EX; }
test_a_shared_lock() { matrix SH; }
test_a_conversion() { matrix UP; }

# --- as programs and people do it ---------------------------------------------------------------------------

holder_on_1() { spawn 1 flock "$F" sleep 60; HOLDER=$PID; wait_held "$F"; }
let_go() { pkill -P "$HOLDER"; { wait "$HOLDER"; } 2>/dev/null; }
nobody_waits() { must '[ -z "$(leftover_keys | grep -vx "$KEY")" ]' 3 "$1 $(leftover_keys):"; }

test_python_s_signal_alarm() {
	# A handler that raises ends the wait; one that returns does not (PEP 475).
	local out
	holder_on_1
	timed H 2 python3 -c 'import fcntl, signal, sys
def late(*a): raise TimeoutError
signal.signal(signal.SIGALRM, late); signal.setitimer(signal.ITIMER_REAL, 0.5)
try: fcntl.flock(open(sys.argv[1], "a"), fcntl.LOCK_EX)
except TimeoutError: sys.exit(7)' "$F"
	assertEquals 7 $RC
	assertBetween "milliseconds" 450 1500 $MS
	nobody_waits "python"
	assertEquals 1 "$(busy "$F")"
	spawn 2 python3 -c 'import fcntl, signal, sys
signal.signal(signal.SIGALRM, lambda *a: open(sys.argv[2], "w")); signal.setitimer(signal.ITIMER_REAL, 0.3)
fcntl.flock(open(sys.argv[1], "a"), fcntl.LOCK_EX); open(sys.argv[3], "w")' "$F" "$W/shared/alarm" "$W/shared/in"
	local p=$PID
	must '[ -e $W/shared/alarm ]'
	must queued
	assertFalse "it is in" "[ -e $W/shared/in ]"
	let_go
	must '[ -e $W/shared/in ]'
	wait $p; assertEquals 0 $?
	rm -f "$W/shared/alarm" "$W/shared/in"
}

test_timeout_ends_a_waiting_flock() {
	holder_on_1
	timed H 2 timeout 1 flock "$F" true
	assertEquals 124 $RC
	assertBetween "milliseconds" 980 1800 $MS
	assertEquals "host 1 has it" 1 "$(busy "$F" 3)"
	let_go
	# Whoever comes next does not wait for the one that is gone.
	timed H 3 flock -w 5 "$F" true
	assertEquals 0 $RC
	assertBetween "milliseconds" 0 1000 $MS
	must '[ -z "$(leftover_keys)" ]' 3
}

test_ctrl_c_in_a_terminal_ends_a_waiting_flock() {
	need script || return 0
	local p
	holder_on_1
	mkfifo "$W/keys"
	exec {keys}<>"$W/keys"
	# A terminal of its own, whose Ctrl-C goes to the foreground program; the shell in it says how that ended.
	H 2 script -qec "sh -c 'trap : INT; flock $F true; echo ended with \$?'" /dev/null <"$W/keys" >"$W/screen" 2>&1 &
	p=$!
	must queued
	printf '\003' >&"$keys"
	must 'grep -q "ended with" "$W/screen"' 3
	assertContains "$(cat "$W/screen")" "ended with 130"
	exec {keys}>&-
	{ wait $p; } 2>/dev/null
	assertEquals "host 1 has it" 1 "$(busy "$F" 3)"
	rm -f "$W/keys"
}

test_lock_nb_is_not_interrupted_where_it_would_succeed_either() {
	# A storm of signals whose handlers ask for EINTR, while nobody else has the lock.
	H 2 python3 -c 'import ctypes, fcntl, os, signal, sys
c = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGALRM, lambda *a: None); signal.siginterrupt(signal.SIGALRM, True)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
odd = 0
for i in range(300):
    for op in fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_SH | fcntl.LOCK_NB, fcntl.LOCK_UN:
        odd += c.flock(fd, op) != 0
signal.setitimer(signal.ITIMER_REAL, 0)
sys.exit(odd > 0)' "$F"
	assertEquals "none fails" 0 $?
	assertNoKeys
}

. /usr/share/shunit2/shunit2
