#!/bin/bash
# A signal during a wait does what it does in the plain kernel, wherever the wait is: everything here is done in three places
# at the same time, and what comes of it must be the same. "bare" is without the shim, on host 9; "kernel" waits for a
# process of the own host, 1; "redis", on host 2, waits for host 1.
. "$(dirname "$0")/../lib.sh"

PLACES='bare kernel redis'
declare -A ON=([bare]=9 [kernel]=1 [redis]=2)
declare -A P # the process of each place or case

at() { # PLACE CMD...: there, in the background
	local place=$1; shift
	if [ "$place" = bare ]; then spawn_bare 9 "$@"; else spawn "${ON[$place]}" "$@"; fi
}
blocked() { grep -q -e "-> FLOCK .*:$(stat -c %i "$HOSTS/$1/${2##*/}") " /proc/locks; } # HOST FILE: in the kernel
queued() { [ "$(R zcard "netflock:{lock:$1}:queue")" = "${2:-1}" ]; }
asleep() { if [ "$1" = redis ]; then queued "$2"; else blocked "${ON[$1]}" "$2"; fi; } # PLACE FILE
ended() { { wait "${P[$1]}"; RC=$?; } 2>/dev/null; }
# tries HOST FILE...: what a flock -n of each says
tries() { local h=$1; shift; H "$h" bash -c 'for f; do flock -n "$f" true; echo $?; done' bash "$@" | paste -sd' '; }

# hold NAME PLACE OP FILE...: locks all of them, until $W/shared/go is there
hold() {
	at "$2" python3 -c 'if 1:
		import fcntl, os, sys, time
		fs = [open(p, "a") for p in sys.argv[3:]]
		for f in fs: fcntl.flock(f, getattr(fcntl, "LOCK_" + sys.argv[1]))
		open(sys.argv[2] + ".in", "w")
		while not os.path.exists(os.path.dirname(sys.argv[2]) + "/go"): time.sleep(0.01)
		for f in fs: f.close()' "$3" "$W/shared/$1" "${@:4}"
	P[$1]=$PID
}
holders() { # OP [PLACE-FILE...]: one for the bare places and one, on host 1, for the others
	local op=$1 bare=() ours=() f; shift
	rm -f "$W"/shared/*
	for f; do if [[ $f == */bare* ]]; then bare+=("$f"); else ours+=("$f"); fi; done
	hold holder9 bare "$op" "${bare[@]}"
	hold holder1 kernel "$op" "${ours[@]}"
	must '[ -e $W/shared/holder9.in ] && [ -e $W/shared/holder1.in ]'
}
let_go() { touch "$W/shared/go"; ended holder9; ended holder1; }

# --- every kind of wait and of handler, by a probe that says what became of the call -------------------------

# matrix EX|SH|UP: UP reads, beside another reader, and wants to write.
matrix() {
	local place way c cases=() f first=EX
	local over="$D/kernel.norestart $D/redis.norestart" on="$D/kernel.restart $D/redis.restart"
	for place in $PLACES; do cases+=("$place.norestart" "$place.restart"); done
	[ "$1" != UP ] || first=SH
	holders $first "${cases[@]/#/$D/}"
	for c in "${cases[@]}"; do
		at "${c%.*}" "$PROBES/sigwait" "$D/$c" "${c#*.}" "$1" "$W/shared/$c.mark" >"$W/$c"
		P[$c]=$PID
	done
	for c in "${cases[@]}"; do must "asleep ${c%.*} $D/$c"; kill -ALRM "${P[$c]}"; done
	for c in "${cases[@]}"; do must "[ -e $W/shared/$c.mark ]" '' "$c: the handler runs;"; done
	for place in $PLACES; do
		must "grep -q handlers $W/$place.norestart" '' "$place: the call returns;"
		must "asleep $place $D/$place.restart" '' "$place: with SA_RESTART the wait goes on;"
		assertFalse "$place: nobody waits in the kernel" "blocked ${ON[$place]} $D/$place.norestart"
		assertEquals "$place: with SA_RESTART the call has not returned" "" "$(grep handlers "$W/$place.restart")"
	done
	# The interrupted waiters are alive. Of their wait nothing is left, and the holders have what they had.
	# shellcheck disable=SC2086 # words
	assertEquals "the holder is undisturbed" "1 1" "$(tries 3 $over)"
	assertEquals "left in Redis besides the holder's" "" "$(leftover_keys | grep -e '[.]norestart' | grep -vx "lock:$D/.*")"
	for f in $over; do [ "$1" != UP ] || assertEquals "tokens besides the holder's" 1 "$(R zcard "lock:$f")"; done
	let_go
	for place in $PLACES; do must "grep -q handlers $W/$place.restart" '' "$place: the restarted wait ends;"; done
	# shellcheck disable=SC2086 # words
	assertEquals "what the interrupted have not got is free, and what the others have got is not" "0 0 1 1" "$(tries 3 $over $on)"
	for place in $PLACES; do
		bare "${ON[$place]}" flock -n "$D/$place.norestart" true; assertEquals "$place: free in the kernel" 0 $?
		for way in norestart restart; do
			assertEquals "$place, $way" "$(cat "$W/bare.$way")" "$(cat "$W/$place.$way")"
		done
	done
	assertContains "the plain kernel, to compare with" "$(cat "$W/bare.norestart")" "EINTR handlers 1 holds nothing"
	assertContains "the plain kernel, to compare with" "$(cat "$W/bare.restart")" "OK handlers 1 holds a"
	# Another signal ends the probes.
	for c in "${cases[@]}"; do must "! kill -ALRM ${P[$c]} 2>/dev/null"; done
	assertNoKeys
}

test_an_exclusive_lock() { matrix EX; }
# (asan: no: the same code as for an exclusive one)
test_a_shared_lock() { matrix SH; }
test_a_conversion() { matrix UP; }

test_a_wait_behind_a_plain_client_is_interrupted_too() {
	R set "lock:$F" plain-1 px 90000 >/dev/null
	spawn 2 "$PROBES/sigwait" "$F" norestart EX "$W/mark" >"$W/out"
	must 'queued $F'
	kill -ALRM $PID
	must 'grep -q handlers "$W/out"'
	assertEquals "EINTR handlers 1 holds nothing" "$(cat "$W/out")"
	assertEquals "lock:$F" "$(leftover_keys)"
}

# A profiler's timer fires all the time, and its handler asks for EINTR. LOCK_NB and LOCK_UN never say so.
test_what_does_not_wait_is_not_interrupted() {
	local place
	cat >"$W/storm.py" <<-'S'
		import ctypes, fcntl, os, signal, sys
		c = ctypes.CDLL(None, use_errno=True)
		signal.signal(signal.SIGALRM, lambda *a: None); signal.siginterrupt(signal.SIGALRM, True)
		signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
		said = set()
		for i in range(200):
		    fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
		    for op in "LOCK_EX", "LOCK_SH", "LOCK_UN":
		        r = c.flock(fd, getattr(fcntl, op) | fcntl.LOCK_NB)
		        said.add(op + (" " + os.strerror(ctypes.get_errno()) if r else " done"))
		    os.close(fd)
		signal.setitimer(signal.ITIMER_REAL, 0)
		print(*sorted(said), sep=", ")
	S
	for place in bare redis; do at $place python3 "$W/storm.py" "$F" >"$W/$place"; P[$place]=$PID; done
	for place in bare redis; do ended $place; assertEquals $place 0 $RC; done
	assertEquals "free" "LOCK_EX done, LOCK_SH done, LOCK_UN done" "$(cat "$W/bare")"
	assertEquals "free" "$(cat "$W/bare")" "$(cat "$W/redis")"
	assertNoKeys
	holders EX "$D/bare" "$F"
	for place in bare redis; do
		at $place python3 "$W/storm.py" "$([ $place = bare ] && echo "$D/bare" || echo "$F")" >"$W/$place"; P[$place]=$PID
	done
	for place in bare redis; do ended $place; assertEquals $place 0 $RC; done
	assertContains "held" "$(cat "$W/bare")" "LOCK_EX Resource temporarily unavailable, LOCK_SH Resource"
	assertEquals "held" "$(cat "$W/bare")" "$(cat "$W/redis")"
	let_go
}

# --- as programs and people do it ---------------------------------------------------------------------------

contended() { holders EX "$D/bare" "$D/kernel" "$D/redis"; }
# beside CMD...: in each place, with the place's file as its last argument, and its output in $W/PLACE.
beside() { local place; for place in $PLACES; do at "$place" "$@" "$D/$place" >"$W/$place"; P[$place]=$PID; done; }
all_end() { local place; for place in $PLACES; do ended "$place"; assertEquals "$place: status" "${1:-0}" $RC; done; }
all_say() {
	local place
	for place in $PLACES; do assertEquals "$place" "$1" "$(cat "$W/$place")"; done
}
# Whoever comes next does not wait for those who are gone: their places are skipped, and no grant to one of them runs out.
the_next_gets_in() {
	local next
	R config set notify-keyspace-events Ex >/dev/null
	rm -f "$W/expired"
	R psubscribe '__keyevent@0__:expired' >"$W/expired" &
	must 'grep -q psubscribe "$W/expired"'
	spawn 3 flock "$D/redis" true; next=$PID
	must '[ -n "$(waits_on 3)" ]'
	let_go
	wait $next; assertEquals "the next" 0 $?
	R set mark 1 px 1 >/dev/null
	must 'grep -qx mark "$W/expired"'
	assertEquals "a lock that ran out" "" "$(grep '^lock:' "$W/expired")"
	R config set notify-keyspace-events '' >/dev/null
}
waits_on() { "$NETFLOCK" status --url "$NF_URL" | awk -v h="host$1" '/waits/ && $0 ~ h'; }

# (asan: no: flock(1) and Python are interrupted as the probe is above)
test_programs_that_limit_their_wait() {
	local place
	contended
	cat >"$W/limits" <<-'S'
		flock -w 1 "$1" true & a=$!
		flock -w 0.3 -E 9 "$1" true & b=$!
		python3 -c '
		import fcntl, signal, sys
		def late(*_): raise TimeoutError
		signal.signal(signal.SIGALRM, late); signal.alarm(1)
		try: fcntl.flock(open(sys.argv[1], "a"), fcntl.LOCK_EX)
		except TimeoutError: sys.exit(7)' "$1" & c=$!
		wait $a; a=$?; wait $b; b=$?; wait $c; echo $a $b $?
	S
	# One that has more time, and has been there before, still waits when all of them have given up.
	spawn_bare 9 flock -w 15 "$D/bare" true
	must 'blocked 9 $D/bare'
	beside bash "$W/limits"
	all_end
	assertTrue "in time" 'blocked 9 $D/bare'
	all_say "1 9 7"
	assertEquals "nobody waits any more" "" "$(leftover_keys | grep -v '^lock:')"
	assertFalse "nobody waits in the kernel" 'blocked 1 $D/kernel'
	# Who has time enough does not give up.
	kill $PID
	beside bash -c 'flock -w 60 "$0" true'
	for place in $PLACES; do must "asleep $place $D/$place"; done
	let_go
	all_end
	assertNoKeys
}

# (asan: no: they are killed, without any code of ours)
test_timeout_ends_a_waiting_flock() {
	contended
	cat >"$W/ended" <<-'S'
		timeout 1 flock "$1" true & a=$!
		timeout --preserve-status 1 flock "$1" true & b=$!
		wait $a; a=$?; wait $b; echo $a $?
	S
	spawn_bare 9 flock -w 15 "$D/bare" true
	must 'blocked 9 $D/bare'
	beside bash "$W/ended"
	all_end
	assertTrue "in time" 'blocked 9 $D/bare'
	all_say "124 143"
	assertEquals "the holder is undisturbed" 1 "$(busy "$D/redis" 3)"
	bare 2 flock -n "$D/redis" true; assertEquals "the kernel's lock is free where they waited" 0 $?
	the_next_gets_in
	assertNoKeys # what was pushed to the dead expires
}

# (asan: no: as above)
test_ctrl_c_in_a_terminal_ends_a_waiting_flock() {
	local place
	contended
	cat >"$W/terminal.py" <<-'S'
		import os, pty, signal, sys, time
		pid, tty = pty.fork()
		if pid == 0:
		    signal.signal(signal.SIGINT, signal.SIG_DFL) # the shell has it ignored in the background
		    os.execvp("flock", ["flock", sys.argv[2], "true"])
		while not os.path.exists(sys.argv[1]): time.sleep(0.01)
		os.write(tty, b"\x03")
		print(os.WTERMSIG(os.waitpid(pid, 0)[1]))
	S
	beside python3 "$W/terminal.py" "$W/shared/press"
	for place in $PLACES; do must "asleep $place $D/$place"; done
	touch "$W/shared/press"
	all_end
	all_say 2 # SIGINT
	assertEquals "the holder is undisturbed" 1 "$(busy "$D/redis" 3)"
	the_next_gets_in
}

# Python runs a handler that returns, and goes on waiting (PEP 475): the call is made again, and queues again.
test_a_handler_in_python_that_returns_does_not_end_the_wait() {
	local place
	contended
	cat >"$W/count.py" <<-'S'
		import fcntl, signal, sys
		n = 0
		def count(*_):
		    global n
		    n += 1
		    open(sys.argv[1] + str(n), "w")
		signal.signal(signal.SIGUSR1, count)
		fcntl.flock(open(sys.argv[2], "a"), fcntl.LOCK_EX)
		print(n)
	S
	for place in $PLACES; do
		at $place python3 "$W/count.py" "$W/shared/$place." "$D/$place" >"$W/$place"; P[$place]=$PID
	done
	for n in 1 2 3; do
		for place in $PLACES; do must "asleep $place $D/$place"; kill -USR1 "${P[$place]}"; done
		for place in $PLACES; do must "[ -e $W/shared/$place.$n ]"; done
	done
	for place in $PLACES; do must "asleep $place $D/$place"; done
	all_say ""
	let_go
	all_end
	all_say 3
	assertNoKeys
}

# (asan: no: flock(1)'s)
test_exit_codes_of_flock() {
	contended
	beside bash -c 'for o in -n "-E 75 -n" "-w 0"; do flock $o "$0" true; echo $?; done | paste -sd" "'
	all_end
	all_say "1 75 1"
	let_go
	beside bash -c 'f=$0; {
		flock -n "$f" -c "exit 42"; echo $?
		flock -w 1 "$f" -c "exit 43"; echo $?
		flock -n -o "$f" -c "exit 44"; echo $?
		flock -F -n "$f" sh -c "exit 45"; echo $?
		exec 9>"$f"; flock -n 9 && flock -u 9; echo $?; } | paste -sd" "'
	all_end
	all_say "42 43 44 45 0"
	assertNoKeys
}

. /usr/share/shunit2/shunit2
