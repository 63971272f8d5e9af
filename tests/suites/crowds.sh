#!/bin/bash
# Waiters that are cut off, and many at once: fifty hosts through a restart of Redis and through cut connections; a program with many threads.
. "$(dirname "$0")/../lib.sh"

N=50
[ -z "${TEST_ASAN:-}" ] || N=12 # a sanitizer makes the start of each process slow
KEY=lock:crowd/x
QUEUE="netflock:{$KEY}:queue"

# The hosts log in, and nobody else does: so their connections can be counted, without those of redis-cli. (By default each
# password is right.)
suite_setup() { NF_URL=redis://default:any@127.0.0.1:$PORT; }

stat() { R info "$1" | sed -n "s/\r//; s/^$2://p"; }
calls() { R info commandstats | tr -d '\r' | awk -F'[:=,]' -v what="^cmdstat_($1)\$" '$1 ~ what { n += $3 } END { print n + 0 }'; }
connections() { calls auth; }
waiting() { [ "$(R zcard "$QUEUE")" = "${1:-$N}" ]; }
sleeping() { [ "$(stat clients blocked_clients)" = "${1:-$N}" ]; }

# A host that has the lock until it is told otherwise, and $N that wait for it. $CROWD is their parent.
crowd() {
	C=$(mktemp -d "$W/crowd.XXXXXX")
	local quiet=(NETFLOCK_LOG="$C/log" NETFLOCK_ON_LOST=log)
	actor a 1 NETFLOCK_PREFIX="$D=crowd" "${quiet[@]}"
	ask a open x c "$F" >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	env NETFLOCK_URL="${1:-$NF_URL}" NETFLOCK_TTL="${NF_TTL:-$AGES}" "${quiet[@]}" "$PROBES/crowd" "$C" "$N" 5 >"$C/out" 2>"$C/err" & CROWD=$!
	must sleeping "" "all of them wait:"
}

# All have been served, each of them once, one after another.
all_served() {
	must '[ -s "$C/out" ]' "" "all come to an end:"
	assertEquals "$(tail -n 20 "$C/log" 2>/dev/null)" "failed 0 overlaps 0" "$(cat "$C/out" "$C/err")"
	assertEquals "each of them once" "$(seq "$N" | sort)" "$(sort "$C/served")"
	{ wait "$CROWD"; } 2>/dev/null
}

test_fifty_hosts_that_wait_while_redis_restarts_are_served_once_each() {
	export NF_TTL=3s # which is how long newcomers may have to wait after the restart
	R config resetstat >/dev/null
	crowd
	assertEquals "connections before: one each" $((N + 1)) "$(connections)"
	redis_stop
	must '[ "$(grep -cs "no usable answer" "$C/log")" -ge '"$N"' ]' # all of them have noticed
	redis_start
	ask a flock x UN >/dev/null
	all_served
	# Each comes back with one connection for asking, which serves for waiting as well; its lease may want another one.
	assertBetween "connections since the restart" "$N" $((2 * N + 2)) "$(connections)"
	unset NF_TTL
}

test_fifty_hosts_whose_connections_are_cut_again_and_again_are_served_once_each() {
	local i before
	crowd
	before=$(connections)
	for i in 1 2 3; do
		R client kill type normal skipme yes >/dev/null
		must '[ "$(connections)" -ge $((before + i * N)) ] && sleeping' "" "round $i, all sleep again:"
		waiting || fail "round $i: not all wait"
		assertEquals "round $i: the holder still has it, and nobody else" "" "$(cat "$C/served")"
	done
	assertBetween "connections for three cuts" $((3 * N)) $((3 * N + 3)) $(($(connections) - before))
	assertEquals OK "$(ask a flock x UN)"
	all_served
	ask a close x >/dev/null
	assertNoKeys
}

# A door in front of Redis. While the file "shut" is there it turns all away, those that are inside first, and notes who came
# when.
# (asan: no: the same calls as around a restart)
test_a_crowd_that_is_cut_off_asks_less_and_less_often_and_not_in_step() {
	cat >"$W/door.py" <<-'S'
		import os, selectors, socket, struct, sys, time
		target, folder = sys.argv[1:3]
		s = socket.socket(socket.AF_UNIX); s.bind(folder + "/sock"); s.listen(200); os.chmod(folder + "/sock", 0o666)
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
		            if shut:
		                pid = struct.unpack("3i", c.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
		                print(pid, int(time.monotonic() * 1000), file=calls); c.close(); continue
		            r = socket.socket(socket.AF_UNIX); r.connect(target)
		            for x, y in (c, r), (r, c): other[x] = y; watch.register(x, selectors.EVENT_READ)
		        elif a in other:
		            try:
		                d = a.recv(65536)
		                if d: other[a].sendall(d)
		                else: end(a)
		            except OSError: end(a)
	S
	local door
	door=$(mktemp -d "$W/door.XXXXXX")
	/usr/bin/python3 "$W/door.py" "$SOCK" "$door" & local keeper=$!
	must '[ -e "$door/calls" ]'
	crowd "unix://$door/sock"
	: >"$door/shut"
	# Each pauses for 20 or 40 ms after the first call, then for twice as long each time, give or take a half.
	must '[ "$(awk "{ n[\$1]++ } END { for (p in n) if (n[p] >= 6) all++; print all + 0 }" "$door/calls")" = $N ]'
	awk '{
			if ($1 in last) { k = ++n[$1]; gap = $2 - last[$1]
				if (k <= 5 && gap + 1 < 5 * 2 ^ k) print "after call " k " a pause of " gap " ms"
				if (k == 5) { if (!min || gap < min) min = gap; if (gap > max) max = gap }
			}
			last[$1] = $2
		}
		END { if (max - min < 100) print "all fifth pauses lie within " min "..." max " ms" }' "$door/calls" >"$door/faults"
	assertEquals "" "$(cat "$door/faults")"
	rm "$door/shut"
	must sleeping "" "all wait again:"
	assertEquals OK "$(ask a flock x UN)"
	all_served
	kill "$keeper"; { wait "$keeper"; } 2>/dev/null
	true
}

test_many_threads_that_wait_for_different_files_use_a_connection_each_and_no_more() {
	local n=30 before asked
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
	must "sleeping $n" "" "every thread sleeps:"
	# Each asks again after a second: none is made anew.
	asked=$(calls blpop)
	must '[ "$(calls blpop)" -ge $((asked + n)) ] && sleeping '$n
	assertEquals "connections of $n waiting threads" $n $(($(connections) - before))
	echo >&8
	wait $p; assertEquals 0 $?
	assertEquals "failed 0" "$(cat "$W/out")"
	wait $holder
	exec 8>&-; rm "$W/go"
	must '[ "$(stat clients connected_clients)" = 1 ]' "" "all connections are closed:"
	assertNoKeys
}

test_threads_that_are_done_waiting_leave_few_connections() {
	local n=30 before
	mkdir -p "$HOSTS/1/many" "$HOSTS/2/many"
	# Two hosts, thirty threads each, on the same files: each thread waits again and again.
	before=$(connections)
	spawn 1 "$PROBES/waiters" all "$D/many" $n 40 >"$W/out1"; local p=$PID
	spawn 2 "$PROBES/waiters" all "$D/many" $n 40 >"$W/out2"; local q=$PID
	wait $p; assertEquals 0 $?
	wait $q; assertEquals 0 $?
	assertEquals "failed 0 failed 0" "$(cat "$W/out1" "$W/out2" | paste -sd' ')"
	# 2400 locks: hundreds of waits, which would be thousands of connections if each made its own.
	assertBetween "connections for $((n * 80)) locks" 2 $((n * 2 + 2)) $(($(connections) - before))
	assertNoKeys
}

test_a_waiter_whose_sockets_are_closed_by_its_program_gets_the_lock_and_touches_no_file() {
	printf precious >"$W/shared/data"
	spawn 1 flock "$F" sh -c "until [ -e $W/shared/over ]; do sleep 0.02; done"; local holder=$PID
	wait_held "$F"
	spawn 2 "$PROBES/waiters" robbed "$F" "$W/shared/data" "$W/shared/go" >"$W/out" 2>"$W/err"; local p=$PID
	must 'sleeping 1'
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
	local mode token f keys
	actor a 1; actor b 2
	for mode in EX SH; do
		f=$D/$mode keys="netflock:{lock:$D/$mode}"
		ask a open x c "$f" >/dev/null; ask b open x c "$f" >/dev/null
		assertEquals OK "$(ask a flock x EX)"
		tell b flock x $mode
		must '[ "$(R zcard "$keys:queue")" = 1 ] && sleeping 1'
		kill -STOP "${ACT_PID[b]}"
		token=$(R zrange "$keys:queue" 0 0); token=${token#?:}
		R client kill type normal skipme yes >/dev/null
		R rpush "$keys:wait:$token" '' >/dev/null
		R pexpire "$keys:wait:$token" 1700 >/dev/null
		R del "$keys:queue" "$keys:alive" "lock:$f" >/dev/null
		kill -CONT "${ACT_PID[b]}"
		assertEquals "$mode" OK "$(reply b)"
		# Another host asks, and has to wait.
		spawn 3 flock "$f" true
		must 'sleeping 1'
		assertContains "$mode: who has it" "$(R eval 'if redis.call("TYPE", KEYS[1]).ok == "string" then return redis.call("GET", KEYS[1]) end
			return redis.call("ZRANGE", KEYS[1], 0, -1)' 1 "lock:$f")" ":${ACT_PID[b]}:"
		assertEquals OK "$(ask b flock x UN)"
		wait "$PID"; assertEquals 0 $?
	done
}

. /usr/share/shunit2/shunit2
