#!/bin/bash
# What netflock status shows of record locks: those of real programs, and what others may have put into Redis.
. "$(dirname "$0")/../lib.sh"

suite_setup() {
	json_start
	# rec.py FILE KIND:MODE:START:LENGTH...: p lockf(), o an open file description; SIGUSR1: gives all of it up.
	cat >"$W/rec.py" <<-'PY'
	import fcntl, os, signal, struct, sys
	f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o666)
	F_OFD_SETLK, TYPES = 37, {"x": fcntl.F_WRLCK, "s": fcntl.F_RDLCK, "u": fcntl.F_UNLCK}
	def lock(kind, mode, start, length):
	    if kind == "p":
	        fcntl.lockf(f, {"x": fcntl.LOCK_EX, "s": fcntl.LOCK_SH, "u": fcntl.LOCK_UN}[mode], length, start)
	    else:
	        fcntl.fcntl(f, F_OFD_SETLK, struct.pack("hhqqi4x", TYPES[mode], 0, start, length, 0))
	signal.signal(signal.SIGUSR1, lambda *_: lock(sys.argv[2][0], "u", 0, 0))
	for a in sys.argv[2:]:
	    kind, mode, start, length = a.split(":")
	    lock(kind, mode, int(start), int(length))
	print("LOCKED", flush=True)
	while True:
	    signal.pause()
	PY
	# Commands of any bytes; M and T are parts of what a file's keys hold.
	cat >"$W/redis_raw.py" <<-'PY'
	import os, socket, time
	s = socket.socket(socket.AF_UNIX); s.connect(os.environ["NF_URL"][7:]); f = s.makefile("rb")
	def send(*a):
	    a = [x if isinstance(x, bytes) else str(x).encode() for x in a]
	    s.sendall(b"*%d\r\n" % len(a) + b"".join(b"$%d\r\n%s\r\n" % (len(x), x) for x in a))
	def c(*a):
	    send(*a); r = f.readline(); assert r[:1] != b"-", r
	NOW = int(time.time() * 1000)
	def R(start, end): return b"%016x%016x" % (start, end)
	def T(id, host="alpha", pid=11, command="one"):
	    return f"nf1:{'0' * 32}:1:2:{id}:{host}:{pid}:{command}:{NOW - 5000}".encode()
	def K(file, name): return b"netflock:{lock:%s}:%s" % (file.encode() if isinstance(file, str) else file, name.encode())
	def owner(file, id, ms=600000, token=None, seq=1):
	    c("HSET", K(file, "owners"), id, b"%d " % seq + (token or T(id)))
	    c("ZADD", K(file, "leases"), NOW + ms, id)
	def segment(file, start, end, holders): c("ZADD", K(file, "ranges"), 0, R(start, end) + (holders if isinstance(holders, bytes) else holders.encode()))
	def waiter(file, mode, start, end, token, ago=1000, ms=600000):
	    m = mode.encode() + R(start, end) + token
	    c("ZADD", K(file, "rqueue"), (NOW - ago) * 1000, m)
	    c("ZADD", K(file, "ralive"), NOW + ms, m)
	END = 1 << 63
	PY
	export PYTHONPATH=$W
}

# An answer of many megabytes may take its time.
nf() { NETFLOCK_URL=${URL:-$NF_URL} NETFLOCK_PREFIX=$D NETFLOCK_CONNECT_TIMEOUT=${PATIENCE}s "$NETFLOCK" "$@"; }
status() { nf status "$@" >"$W/out" 2>"$W/err"; RC=$?; }
# now EXPRESSION: of what status --json prints now
now() { nf status --json >"$W/json"; json "$W/json" "$1"; }
rows() { now '" ".join("%s%s-%s" % ({"exclusive": "x", "shared": "s"}[r["mode"]], r["start"], r["end"]) for r in h)'; } # x0-9 s5-None ...
segments() { R zcard "netflock:{lock:${1:-$F}}:ranges"; }
waiting() { R zcard "netflock:{lock:$F}:rqueue"; }
so_far() { echo $(($(now_ms) - TEST_T0)); }             # nothing that a test did is older, in ms
# rec HOST FILE RANGE...: in the background; rec_held: the same, and waits until it has them all
rec() { local n=$1; shift; : >"$W/rec.$n"; spawn "$n" python3 "$W/rec.py" "$@" >"$W/rec.$n"; }
rec_held() { rec "$@"; must "grep -q LOCKED '$W/rec.$1'"; }

test_who_holds_which_range() {
	rec_held 1 "$F" p:x:0:10 p:s:10:5 p:x:100:0; local p1=$PID
	rec_held 2 "$F" o:s:12:1 o:x:20:5; local p2=$PID
	status; assertEquals "$(cat "$W/err")" 0 $RC
	assertContains "$(head -1 "$W/out")" "FENCE  RANGE  "
	local row; for row in "exclusive  host1  $p1 .* 0-9 " "shared     host1  $p1 .* 10-14 " "exclusive  host1  $p1 .* 100-end " \
		"shared     host2  $p2 .* 12 (ofd) " "exclusive  host2  $p2 .* 20-24 (ofd) "; do
		assertTrue "$row: $(cat "$W/out")" "grep -qE '^holds *$(printf %s "$row" | sed 's/[()]/\\&/g') *lock:$F\$' '$W/out'"
	done
	assertEquals "rows, by range" "x0-9 s10-14 s12-12 x20-24 x100-None" "$(rows)"
	assertEquals "['process', 'process', 'ofd', 'ofd', 'process']" "$(now '[r["owner"] for r in h]')"
	assertEquals "host1 $p1 python3 True None" "$(now '"%s %s %s %s %s" % tuple(h[0][k] for k in ("host", "pid", "command", "confirmed", "fence"))')"
	assertBetween "left, ms" 1 $((${AGES%s} * 1000)) "$(now 'h[0]["left_ms"]')"
	local age; age=$(now 'h[0]["age_ms"]')
	assertBetween "age, ms" 0 "$(so_far)" "$age"
	assertContains "the token of the owner" "$(now 'h[0]["token"]')" "nf1:"
	assertEquals "no flock()" "1 [] [] None" "$(now '"%d %s %s %s" % (len(d), d[0]["holders"], d[0]["waiters"], d[0]["mode"])')"
}

# Others cut the table in Redis into segments; a program's one range stays one row.
test_ranges_that_follow_each_other_are_one_row() {
	rec_held 1 "$F" p:s:0:50 p:s:50:50
	rec_held 2 "$F" p:s:20:10
	assertEquals segments 3 "$(segments)"
	assertEquals "s0-99 s20-29" "$(rows)"
	assertEquals "host1 host2" "$(now '" ".join(r["host"] for r in h)')"
}

test_columns_are_aligned() {
	rec_held 1 "$F" p:x:0:10
	rec_held 2 "$F" o:x:123456789012:1
	spawn 1 flock "$F" sleep 31; wait_held "$F"
	status
	assertEquals 4 "$(count <"$W/out")"
	assertEquals "$(cat "$W/out")" 1 "$(awk '{ print match($0, /(KEY|lock:[^ ]*)$/) }' "$W/out" | sort -u | count)"
	assertEquals "$(cat "$W/out")" 1 "$(awk '{ print match($0, /(RANGE|-|0-9|123456789012 \(ofd\)) *(KEY|lock:[^ ]*)$/) }' "$W/out" | sort -u | count)"
}

test_flock_and_record_locks_of_one_file_stand_apart() {
	rec_held 1 "$F" p:x:5:1
	spawn 2 flock -s "$F" sleep 31; wait_held "$F"
	assertEquals "1 1 1 shared" "$(now '"%d %d %d %s" % (len(d), len(d[0]["holders"]), len(h), d[0]["mode"])')"
	assertEquals "False" "$(now '"start" in d[0]["holders"][0]')"
	status
	assertTrue "$(cat "$W/out")" 'grep -Eq "^holds +shared +host2 .* - +- +lock:" "$W/out" && grep -Eq "^holds +exclusive +host1 .* - +5 +lock:" "$W/out"'
}

test_waiters_with_their_ranges_in_order() {
	rec_held 1 "$F" p:x:0:100
	rec 2 "$F" p:x:50:0; local p2=$PID; must '[ "$(waiting)" = 1 ]'
	rec 3 "$F" p:s:7:1; must '[ "$(waiting)" = 2 ]'
	status
	assertTrue "$(cat "$W/out")" 'grep -Eq "^waits 1 +exclusive +host2 +$p2 .* 50-end +lock:$F$" "$W/out"'
	assertTrue 'grep -Eq "^waits 2 +shared +host3 .* 7 +lock:$F$" "$W/out"'
	assertEquals "[(1, 'host2', 50, None, 'process', True), (2, 'host3', 7, 7, 'process', True)]" \
		"$(now '[(r["position"], r["host"], r["start"], r["end"], r["owner"], r["alive"]) for r in w]')"
	local age; age=$(now 'w[0]["age_ms"]')
	assertBetween "age, ms" 0 "$(so_far)" "$age"
	assertEquals "no such thing of a waiter" False "$(now '"confirmed" in w[0]')"
}

test_a_waiter_that_is_gone() {
	python3 - <<-'PY'
	from redis_raw import *
	owner("q", "p1.1"); segment("q", 0, 10, "xp1.1")
	waiter("q", "x", 0, 5, T("p2.0~1", "beta", 22), ago=9000000, ms=-1)
	waiter("q", "s", 3, END, T("o3.0~1", "gamma", 33), ago=4000000)
	PY
	status
	assertTrue "$(cat "$W/out")" 'grep -Eq "^waits 1 +exclusive +beta +22 .* gone +- +0-4 +lock:q$" "$W/out"'
	assertTrue 'grep -Eq "^waits 2 +shared +gamma +33 .* 3-end \(ofd\) +lock:q$" "$W/out"'
	assertFalse 'grep "waits 2" "$W/out" | grep -q gone'
	assertEquals "[(False, 9), (True, 4)]" "$(now '[(r["alive"], r["age_ms"] // 1000000) for r in w]')"
	R zrem 'netflock:{lock:q}:ranges' "$(printf '%016x%016xxp1.1' 0 10)" >/dev/null
	assertEquals "without a holder" "([], 2)" "$(now '(h, len(w))')"
}

# The waiter is stopped when its turn comes: what it was granted is its own for a moment, and then nobody's. Somebody watches
# for that moment, and makes it a long one.
test_a_range_that_was_granted_and_not_confirmed() {
	rec_held 1 "$F" p:x:0:10; local p1=$PID
	rec 2 "$F" p:x:3:4; must '[ "$(waiting)" = 1 ]'
	kill -STOP "$PID"
	timeout "$PATIENCE" python3 - "$F" <<-'PY' &
	import sys
	from redis_raw import *
	look = """for _, id in ipairs(redis.call("ZRANGE", KEYS[1], 0, -1)) do
	    if id:find("~", 1, true) then redis.call("ZINCRBY", KEYS[1], 600000, id) return 1 end
	end
	return 0"""
	while True:
	    send("EVAL", look, 1, K(sys.argv[1], "leases"))
	    if f.readline() == b":1\r\n": break
	    time.sleep(0.002)
	PY
	local watcher=$!
	kill -USR1 "$p1"
	{ wait $watcher; } 2>/dev/null
	status
	assertTrue "$(cat "$W/out")" 'grep -Eq "^granted +exclusive +host2 +$PID .* 3-6 +lock:$F$" "$W/out"'
	kill -CONT "$PID"; must "grep -q LOCKED '$W/rec.2'"
	assertEquals "[('host2', True)]" "$(now '[(r["host"], r["confirmed"]) for r in h]')"
	R flushall >/dev/null
	python3 - <<-'PY'
	from redis_raw import *
	owner("q", "p1.0~7"); owner("q", "p1.3"); segment("q", 0, 10, "sp1.3,xp1.0~7")
	PY
	assertEquals "[('shared', True), ('exclusive', False)]" "$(now 'sorted(((r["mode"], r["confirmed"]) for r in h), key=lambda r: not r[1])')"
}

test_a_path_finds_its_record_locks() {
	rec_held 1 "$F" p:x:0:10
	rec_held 2 "$D/other" p:x:0:10
	rec 3 "$F" p:x:0:1; must '[ "$(waiting)" = 1 ]'
	status "$F"; assertEquals 0 $RC
	assertEquals "$(cat "$W/out")" 3 "$(count <"$W/out")"
	assertTrue 'grep -q "^holds .* 0-9 .*lock:$F$" "$W/out" && grep -q "^waits 1 .* 0 .*lock:$F$" "$W/out"'
	status "$D/free"; assertEquals "no locks" "$(cat "$W/out")"
}

test_when_all_is_given_up_nothing_is_shown() {
	rec_held 1 "$F" p:x:0:10; local p=$PID
	rec 2 "$F" p:x:0:1; must '[ "$(waiting)" = 1 ]'
	kill -TERM "$PID"; kill -USR1 "$p"
	must 'status; grep -qx "no locks" "$W/out"'
	assertEquals "[]" "$(now d)"
}

# A lease that has run out holds nobody up. A range of which there is no lease does, until the table expires.
test_leases_that_have_run_out_or_are_missing() {
	python3 - <<-'PY'
	from redis_raw import *
	owner("a", "p1.1", ms=-1); owner("a", "p2.1"); segment("a", 0, 10, "sp1.1,sp2.1"); segment("a", 20, 30, "xp1.1")
	segment("b", 5, 6, "xp3.1"); owner("b", "p4.1"); segment("b", 7, 8, "xp4.1")
	c("ZADD", K("c", "leases"), "+inf", "p5.1"); c("HSET", K("c", "owners"), "p5.1", b"1 " + T("p5.1")); segment("c", 0, 1, "xp5.1")
	PY
	status
	assertEquals "$(cat "$W/out")" "a 0 9, b 5 5, b 7 7, c 0 0" \
		"$(now '", ".join("%s %s %s" % (e["key"][5:], r["start"], r["end"]) for e in d for r in e["records"]["holders"])')"
	assertTrue 'grep -Eq "^holds +exclusive +- +- +\"p3.1\" +- +- +- +5 +lock:b$" "$W/out"'
	assertEquals "(None, 'process', None, 'p3.1')" "$(now 'next((r["host"], r["owner"], r["left_ms"], r["token"]) for r in h if r["start"] == 5)')"
	assertTrue 'grep -Eq " forever +- +0 +lock:c$" "$W/out"'
}

test_keys_of_other_types_do_not_hide_the_locks() {
	python3 - <<-'PY'
	from redis_raw import *
	owner("good", "p1.1"); segment("good", 0, 10, "xp1.1"); waiter("good", "x", 0, 1, T("p2.0~1"))
	for name in "ranges", "owners", "leases", "rqueue", "ralive":
	    if name != "owners": c("HSET", K(name, "owners"), "p1.1", b"1 " + T("p1.1"))
	    if name != "leases": c("ZADD", K(name, "leases"), NOW + 9000, "p1.1")
	    if name != "ranges": segment(name, 0, 10, "xp1.1")
	    if name != "rqueue": c("ZADD", K(name, "rqueue"), NOW * 1000, b"x" + R(1, 2) + T("p2.0~1"))
	    c("SET", K(name, name), "x")
	PY
	status; assertEquals "$(cat "$W/err")" 0 $RC
	local n; for n in good owners leases rqueue ralive; do assertTrue "$n: $(cat "$W/out")" "grep -Eq '^holds .* 0-9 +lock:$n\$' '$W/out'"; done
	for n in good ranges owners leases ralive; do assertTrue "$n: $(cat "$W/out")" "grep -Eq '^waits 1 .* lock:$n\$' '$W/out'"; done
	for n in ranges leases rqueue; do assertTrue "grep -Eq '^\\? .*lock:$n \(its .* is no sorted set' '$W/out'"; done
	assertTrue "$(cat "$W/out")" 'grep -Eq "^\? .*lock:owners \(its table of owners is no hash" "$W/out"'
	assertEquals "whether it lives is not known" "[None]" "$(now '[r["left_ms"] for e in d for r in e["records"]["waiters"] if e["key"] == "lock:ralive"]')"
	assertEquals "4" "$(now 'len([e for e in d if "problem" in e])')"
}

test_odd_members_are_told_and_the_others_shown() {
	python3 - <<-'PY'
	from redis_raw import *
	for i, m in enumerate([b"", b"x", R(0, 10), R(10, 10) + b"xp1.1", R(11, 10) + b"xp1.1", R(0, END + 1) + b"xp1.1", b"G" * 32 + b"xp1.1", b"0" * 15 + b"g" + R(50, 0)[:16] + b"xp1.1", R(0, 9).upper().replace(b"0", b"A") + b"xp1.1",
	                       R(0, 10) + b"yp1.1", R(0, 10) + b"x", R(0, 10) + b",xp1.1", b" " * 15 + b"1" + b"-" + b"2" * 15 + b"xp1.1", b"\0" * 40]):
	    owner("odd%d" % i, "p1.1"); segment("odd%d" % i, 100, 200, "xp1.1")
	    c("ZADD", K("odd%d" % i, "ranges"), 0, m)
	for i, m in enumerate([b"", b"x", b"x" + R(0, 1), b"y" + R(0, 1) + T("p1.0~1"), b"x" + R(3, 2) + T("p1.0~1"), b"x" + b"g" * 32 + T("p1.0~1"), b"x" + R(0, 1) + b"else", b"\xff\0" * 50]):
	    c("ZADD", K("oddq%d" % i, "rqueue"), "-inf", m)
	c("HSET", K("values", "owners"), "p1.1", "", "p2.1", "nonsense", "p3.1", "1 ", "p4.1", b"\0 \0")
	for i in 1, 2, 3, 4: segment("values", i, i + 1, "xp%d.1" % i)
	PY
	status; assertEquals "$(cat "$W/err")" 0 $RC
	assertEquals "$(cat "$W/out")" 14 "$(grep -Ec '^holds .* 100-199 +lock:odd[0-9]+$' "$W/out")"
	assertEquals 14 "$(grep -Ec '^\? .*lock:odd[0-9]+ \(its table of ranges has entries that are none' "$W/out")"
	assertEquals 18 "$(grep -c '^holds' "$W/out")"
	assertEquals "$(grep oddq "$W/out")" 8 "$(grep -Ec '^waits 1 .*lock:oddq[0-9]$' "$W/out")"
	assertEquals "which have a range" "[1]" "$(now '[r["start"] + 1 for e in d if "oddq" in e["key"] for r in e["records"]["waiters"] if r["start"] is not None]')"
	assertEquals "0 18" "$(now '"%d %d" % (len([r for r in h if r["start"] is None]), len(h))')"
	assertFalse "a control character" "tr -d '\n' <'$W/out' | LC_ALL=C grep -q '[[:cntrl:]]'"
}

test_hostile_text_is_escaped() {
	python3 - <<-'PY'
	from redis_raw import *
	E = b"\x1b]0;evil\x07\xff\xc2\x9b\0\n\"\\"
	name = b"/x}:ranges{" + E
	id = b"p" + E + b"~"
	segment(name, 0, 10, b"x" + id); segment(name, 20, 30, b"xo2.1")
	c("HSET", K(name, "owners"), "o2.1", b"1 " + T("o2.1", "ho\x1b[31mst", 5, "c\tmd\u202e"))
	c("ZADD", K(name, "rqueue"), 1, b"x" + R(0, 1) + E)
	PY
	status; assertEquals "$(cat "$W/err")" 0 $RC
	assertEquals "$(cat "$W/out")" 4 "$(count <"$W/out")"
	assertTrue "$(cat "$W/out")" 'grep -qF "ho\x1b[31mst" "$W/out" && grep -qF "c\x09md\xe2\x80\xae" "$W/out" && grep -qF "lock:/x}:ranges{\x1b]0;evil\x07\xff" "$W/out"'
	assertFalse "a control character" "tr -d '\n' <'$W/out' | LC_ALL=C grep -q '[[:cntrl:]]'"
	assertContains "$(now 'h[0]["token"]' | cat -v)" 'p^[]0;evil'
	assertEquals "ho\\x1b[31mst" "$(now 'repr(h[1]["host"])[1:-1]')"
}

test_too_many_and_too_big() {
	python3 - <<-'PY'
	from redis_raw import *
	def many(n, make):
	    for at in range(0, n, 500):
	        a = [x for i in range(at, min(n, at + 500)) for x in make(i)]; yield a
	for a in many(6000, lambda i: (0, R(10 * i, 10 * i + 5) + b"xp1.1")): c("ZADD", K("segments", "ranges"), *a)
	for a in many(6000, lambda i: (NOW * 1000 + i, b"x" + R(i, i + 1) + T("p%d.0~1" % i))): c("ZADD", K("queue", "rqueue"), *a)
	segment("holders", 0, 10, ",".join("sp%d.1" % i for i in range(6000)))
	for i in range(0, 6000, 500): c("HSET", K("owners", "owners"), *[x for k in range(i, i + 500) for x in ("p%d.1" % k, b"1 " + T("p%d.1" % k))])
	segment("owners", 0, 10, "xp5.1")
	# Rows would be few, but what they are made of is more than is kept.
	for a in many(4000, lambda i: (0, R(5 * i, 5 * i + 5) + ",".join("sp%d.1" % k for k in range(30)).encode())): c("ZADD", K("pieces", "ranges"), *a)
	for i in range(6): c("ZADD", K("bigranges", "ranges"), 0, R(i, i + 1) + b"x" + b"B" * 3000000)
	c("HSET", K("bigowner", "owners"), "p1.1", b"1 " + b"C" * 17000000); segment("bigowner", 0, 10, "xp1.1")
	c("HSET", K("longowner", "owners"), "p1.1", b"1 " + b"D" * 300000); segment("longowner", 0, 10, "xp1.1")
	PY
	status; assertEquals "$(cat "$W/err")" 0 "$RC"
	local k; for k in segments queue holders owners pieces; do
		assertTrue "$k: $(grep -v '^[hw]' "$W/out")" "grep -q 'lock:$k (and more' '$W/out'"
		assertBetween "rows of $k" 1 5001 "$(grep -c "lock:$k\$" "$W/out")"
	done
	assertEquals 5000 "$(grep -c 'lock:queue$' "$W/out")"
	assertEquals 5000 "$(grep -c 'lock:segments$' "$W/out")"
	for k in bigranges bigowner; do assertTrue "$(grep big "$W/out")" "grep -q 'lock:$k (.*too big' '$W/out'"; done
	assertTrue 'grep -q "\"D*\.\.\.\".*lock:longowner$" "$W/out"'
	assertEquals "320 5 True" "$(now '"%d %d %s" % ([len(r["token"]) for e in d if e["key"] == "lock:longowner" for r in e["records"]["holders"]][0],
		len([e for e in d if e.get("truncated")]), max(len(e["records"]["holders"]) for e in d) <= 5000)')"
}

# Many rounds of SCAN, and many batches of questions.
# (asan: no: the same calls, more often)
test_thirty_thousand_keys_of_record_locks() {
	python3 - <<-'PY'
	import threading
	from redis_raw import *
	n = 10000
	def sink():
	    for _ in range(3 * n): f.readline()
	t = threading.Thread(target=sink); t.start()
	out = []
	for i in range(n):
	    file, id = "/srv/%d" % i, "p%032x.1" % i
	    send("ZADD", K(file, "ranges"), 0, R(i, i + 10) + b"x" + id.encode())
	    send("HSET", K(file, "owners"), id, b"1 " + T(id))
	    send("ZADD", K(file, "leases"), NOW + 600000, id)
	t.join()
	PY
	status; assertEquals "$(cat "$W/err")" 0 "$RC"
	assertEquals 10001 "$(count <"$W/out")"
	assertEquals 10000 "$(grep -c '^holds  *exclusive  *alpha ' "$W/out")"
}

test_the_rights_that_the_manual_names_are_enough() {
	python3 - <<-'PY'
	from redis_raw import *
	owner("a", "p1.1"); segment("a", 0, 10, "xp1.1"); waiter("a", "x", 0, 1, T("p2.0~1"))
	PY
	# shellcheck disable=SC2046 # words
	R acl setuser reader on '>pw' '~*' $(sed -n '/^A user for$/,/^\.S/s/.*"\(+.*[a-z]\)".*/\1/p' "$TOP/docs/netflock.7") >/dev/null
	URL=redis://reader:pw@127.0.0.1:$PORT status; assertEquals "$(cat "$W/err")" 0 $RC
	assertEquals "$(cat "$W/out")" 3 "$(count <"$W/out")"
	R acl setuser reader reset on '>pw' '~*' +@read +time >/dev/null
	URL=redis://reader:pw@127.0.0.1:$PORT status; assertEquals "$(cat "$W/err")" 0 $RC
	assertEquals "$(cat "$W/out")" 3 "$(count <"$W/out")"
	R acl deluser reader >/dev/null
}

. /usr/share/shunit2/shunit2
