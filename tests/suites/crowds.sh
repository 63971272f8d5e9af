#!/bin/bash
# Waiters that are cut off, and many at once: fifty hosts through a restart of Redis and through cut connections; a program with many threads.
. "$(dirname "$0")/../lib.sh"

N=50
[ -z "${TEST_ASAN:-}" ] || N=12 # a sanitizer makes the start of each process slow
KEY=lock:crowd/x
QUEUE="netflock:{$KEY}:queue"
QUIET=(NETFLOCK_LOG="$W/log" NETFLOCK_ON_LOST=log)

stat() { R info "$1" | sed -n "s/\r//; s/^$2://p"; }
connections() { stat stats total_connections_received; }
waiting() { [ "$(R zcard "$QUEUE")" = "${1:-$N}" ]; }

# A host that has the lock until it is told otherwise, and $N that wait for it. $CROWD is their parent.
crowd() {
	C=$(mktemp -d "$W/crowd.XXXXXX")
	actor a 1 NETFLOCK_PREFIX="$D=crowd" "${QUIET[@]}"
	ask a open x c "$F" >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	env NETFLOCK_URL="${1:-$NF_URL}" NETFLOCK_TTL=3s "${QUIET[@]}" "$PROBES/crowd" "$C" "$N" 5 >"$C/out" 2>"$C/err" & CROWD=$!
	must waiting 20 "all of them wait:"
}

# All have been served, each of them once, one after another.
all_served() {
	must '[ -s "$C/out" ]' 40 "all come to an end:"
	assertEquals "$(tail -n 20 "$W/log" 2>/dev/null)" "failed 0 overlaps 0" "$(cat "$C/out" "$C/err")"
	assertEquals "each of them once" "$(seq "$N" | sort)" "$(sort "$C/served")"
	{ wait "$CROWD"; } 2>/dev/null
}

test_fifty_hosts_that_wait_while_redis_restarts_are_served_once_each() {
	local before
	crowd
	redis_stop
	sleep 1.5 # so long is it away
	redis_start
	before=$(connections)
	assertBetween "connections before" 0 $((2 * N)) "$before"
	ask a flock x UN >/dev/null
	all_served
	# Each comes back with one connection for asking, which serves for waiting as well.
	assertBetween "connections since the restart" "$N" $((2 * N + 20)) "$(connections)"
}

test_fifty_hosts_whose_connections_are_cut_again_and_again_are_served_once_each() {
	local i before
	crowd
	before=$(connections)
	for i in 1 2 3 4 5; do
		R client kill type normal skipme yes >/dev/null
		must waiting 5 "round $i, all wait again:"
		# All are connected: the holder with one, and redis-cli.
		must '[ "$(stat clients blocked_clients)" = $N ]' 5 "round $i, all sleep again:"
		assertEquals "round $i: the holder still has it, and nobody else" "" "$(cat "$C/served")"
	done
	assertBetween "connections for five cuts" $((5 * N)) $((6 * N + 20)) $(($(connections) - before))
	assertEquals OK "$(ask a flock x UN)"
	all_served
	ask a close x >/dev/null
	assertNoKeys
}

# A door in front of Redis. While the file "shut" is there it turns all away, those that are inside first, and notes when
# somebody came.
test_a_crowd_that_is_cut_off_asks_less_and_less_often_and_not_in_step() {
	cat >"$W/door.py" <<-'S'
		import os, selectors, socket, sys, time
		target, folder = sys.argv[1:3]
		s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(200)
		open(folder + "/port.new", "w").write(str(s.getsockname()[1])); os.rename(folder + "/port.new", folder + "/port")
		calls = open(folder + "/calls", "w", buffering=1)
		watch = selectors.DefaultSelector(); watch.register(s, selectors.EVENT_READ)
		other = {}
		def end(a):
		    for x in a, other.pop(a): other.pop(x, None); watch.unregister(x); x.close()
		while True:
		    ready = watch.select(0.01)
		    shut = os.path.exists(folder + "/shut")
		    while shut and other: end(next(iter(other)))
		    for a in [key.fileobj for key, _ in ready]:
		        if a is s:
		            c, _ = s.accept()
		            if shut: print(int(time.monotonic() * 1000), file=calls); c.close(); continue
		            r = socket.socket(socket.AF_UNIX); r.connect(target)
		            for x, y in (c, r), (r, c): other[x] = y; watch.register(x, selectors.EVENT_READ)
		        elif a in other:
		            try:
		                d = a.recv(65536)
		                if d: other[a].sendall(d)
		                else: end(a)
		            except OSError: end(a)
	S
	local door first worst
	door=$(mktemp -d "$W/door.XXXXXX")
	/usr/bin/python3 "$W/door.py" "$SOCK" "$door" & local keeper=$!
	must '[ -s "$door/port" ]'
	crowd "redis://127.0.0.1:$(cat "$door/port")"
	: >"$door/shut"
	must '[ -s "$door/calls" ]'
	first=$(head -n 1 "$door/calls")
	sleep 4
	awk -v from="$first" '$1 < from + 4000' "$door/calls" >"$door/all"
	awk -v from="$first" '$1 > from + 2000' "$door/all" >"$door/late"
	assertBetween "calls of $N hosts in 4 s" $((4 * N)) $((11 * N)) "$(count <"$door/all")"
	assertBetween "in the last 2 s of them" $((N / 2)) $((3 * N)) "$(count <"$door/late")"
	# All began in the same moment. Later no tenth of a second sees many.
	worst=$(awk -v from="$first" '$1 > from + 500 { n[int(($1 - from) / 100)]++ } END { for (i in n) if (n[i] > m) m = n[i]; print m + 0 }' \
		"$door/all")
	assertBetween "at most at once" 1 $((N / 2)) "$worst"
	rm "$door/shut"
	must waiting 10 "all wait again:"
	assertEquals OK "$(ask a flock x UN)"
	all_served
	kill "$keeper"; { wait "$keeper"; } 2>/dev/null
	true
}

test_many_threads_that_wait_for_different_files_use_a_connection_each_and_no_more() {
	local n=30 before
	mkdir -p "$HOSTS/1/many" "$HOSTS/2/many"
	mkfifo "$W/go"; exec 8<>"$W/go"
	H 1 python3 -c 'if 1:
		import fcntl, sys
		all = [open("%s/%d" % (sys.argv[1], i), "a") for i in range(int(sys.argv[2]))]
		for f in all: fcntl.flock(f, fcntl.LOCK_EX)
		print("in", flush=True); sys.stdin.readline()' "$D/many" $n <"$W/go" >"$W/holder" 8<&- & local holder=$!
	must 'grep -q in "$W/holder"'
	before=$(connections)
	spawn 2 "$PROBES/waiters" all "$D/many" $n 1 >"$W/out"; local p=$PID
	must '[ "$(stat clients blocked_clients)" = '$n' ]' 5 "every thread sleeps:"
	# Over several rounds of asking again, none is made anew.
	sleep 6
	assertEquals $n "$(stat clients blocked_clients)"
	assertBetween "connections of $n waiting threads" $n $((n + 8)) $(($(connections) - before))
	before=$(stat clients connected_clients)
	echo >&8
	wait $p; assertEquals 0 $?
	assertEquals "failed 0" "$(cat "$W/out")"
	wait $holder
	exec 8>&-; rm "$W/go"
	must '[ "$(stat clients connected_clients)" = 1 ]' 3 "all connections are closed:"
	assertNoKeys
}

test_threads_that_are_done_waiting_leave_few_connections() {
	local n=30
	mkdir -p "$HOSTS/1/many" "$HOSTS/2/many"
	# Two hosts, thirty threads each, on the same files: each thread waits again and again.
	R config resetstat >/dev/null
	spawn 1 "$PROBES/waiters" all "$D/many" $n 40 >"$W/out1"; local p=$PID
	spawn 2 "$PROBES/waiters" all "$D/many" $n 40 >"$W/out2"; local q=$PID
	wait $p; assertEquals 0 $?
	wait $q; assertEquals 0 $?
	assertEquals "failed 0 failed 0" "$(cat "$W/out1" "$W/out2" | paste -sd' ')"
	# 2400 locks: hundreds of waits, which would be thousands of connections if each made its own.
	assertBetween "connections for $((n * 80)) locks" 2 $((n * 6)) "$(connections)"
	assertNoKeys
}

test_a_waiter_whose_sockets_are_closed_by_its_program_gets_the_lock_and_touches_no_file() {
	printf precious >"$W/shared/data"
	spawn 1 flock "$F" sh -c "until [ -e $W/shared/over ]; do sleep 0.02; done"; local holder=$PID
	wait_held "$F"
	spawn 2 "$PROBES/waiters" robbed "$F" "$W/shared/data" "$W/shared/go" >"$W/out" 2>"$W/err"; local p=$PID
	must '[ "$(stat clients blocked_clients)" = 1 ]'
	: >"$W/shared/go"
	must 'grep -q robbed "$W/out"'
	assertNotEquals "a socket of ours was there to be closed" "robbed 0" "$(cat "$W/out")"
	: >"$W/shared/over"
	wait $p; assertEquals "$(cat "$W/err")" 0 $?
	wait $holder
	assertEquals "robbed locked again kept" "$(sed 's/ [0-9]*$//' "$W/out" | paste -sd' ')"
	assertEquals precious "$(cat "$W/shared/data")"
	assertNoKeys
	rm -f "$W/shared/over" "$W/shared/go"
}

# What nobody fetches was granted to a dead waiter, and is taken back. But a waiter that was cut off, and then found the file
# free, has no message to fetch: an old one that still lies there says nothing.
test_a_lock_got_at_once_is_not_taken_back_for_a_message_from_an_earlier_wait() {
	local mode token
	for mode in EX SH; do
		actor a 1; actor b 2
		ask a open x c "$F" >/dev/null; ask b open x c "$F" >/dev/null
		assertEquals OK "$(ask a flock x EX)"
		tell b flock x $mode
		must '[ "$(R zcard "netflock:{lock:$F}:queue")" = 1 ]'
		kill -STOP "${ACT_PID[b]}"
		token=$(R zrange "netflock:{lock:$F}:queue" 0 0)
		R client kill type normal skipme yes >/dev/null
		R rpush "netflock:{lock:$F}:wait:${token#?:}" '' >/dev/null
		R pexpire "netflock:{lock:$F}:wait:${token#?:}" 1700 >/dev/null
		R del "netflock:{lock:$F}:queue" "netflock:{lock:$F}:alive" "lock:$F" >/dev/null
		kill -CONT "${ACT_PID[b]}"
		assertEquals "$mode" OK "$(reply b)"
		H 3 flock -w 0.6 "$F" true
		assertEquals "$mode: another host" 1 $?
		actors_close; kill_strays; R flushall >/dev/null
	done
}

. /usr/share/shunit2/shunit2
