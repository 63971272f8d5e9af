#!/bin/bash
# What netflock status and netflock run make of hostile values, servers, paths and programs.
. "$(dirname "$0")/../lib.sh"

# An answer of many megabytes may take its time.
nf() { NETFLOCK_URL=${URL:-$NF_URL} NETFLOCK_PREFIX=$D NETFLOCK_CONNECT_TIMEOUT=${PATIENCE}s "$NETFLOCK" "$@"; }
run() { NETFLOCK_URL=$NF_URL NETFLOCK_PREFIX=$D "$NETFLOCK" run -- "$@"; }
status() { nf status "$@" >"$W/out" 2>"$W/err"; RC=$?; }
# now EXPRESSION: of what status --json prints now
now() { nf status --json >"$W/json"; json "$W/json" "$1"; }
suite_setup() { json_start; }
T1=nf1:00000000000000000000000000000000:1:2:00000000000000000000000000000000:alpha:11:one:1700000000000
T2=nf1:00000000000000000000000000000000:1:3:00000000000000000000000000000000:beta:22:two:1700000000000

test_values_of_other_types_do_not_hide_the_locks() {
	R hset lock:hash a b >/dev/null
	R set lock:good "$T1" px 600000 >/dev/null
	R lpush 'netflock:{lock:good}:queue' x >/dev/null
	R set 'netflock:{lock:good}:fence' nonsense >/dev/null
	R zadd lock:set inf tok 1 expired >/dev/null
	R zadd lock:allexpired 1 a >/dev/null
	R set lock:empty '' >/dev/null
	status; assertEquals "$(cat "$W/err")" 0 $RC
	assertTrue "$(cat "$W/out")" 'grep -q "holds *exclusive *alpha *11 *one .*lock:good$" "$W/out"'
	assertTrue 'grep -q "lock:hash (.*no lock)" "$W/out"'
	assertTrue 'grep -q "queue is no sorted set" "$W/out"'
	assertTrue 'grep -q "shared.*\"tok\".*forever.*lock:set" "$W/out"'
	assertTrue 'grep -q "\"\".*forever.*lock:empty" "$W/out"'
	assertNotContains "$(cat "$W/out")" expired
	assertEquals '[None]' "$(now '[e["holders"][0]["fence"] for e in d if e["key"] == "lock:good"]')"
}

test_huge_and_binary_values_are_cut_and_escaped() {
	python3 - "$SOCK" <<-'PY'
	import socket, sys
	s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); f = s.makefile("rb")
	def c(*a):
	    a = [x if isinstance(x, bytes) else str(x).encode() for x in a]
	    s.sendall(b"*%d\r\n" % len(a) + b"".join(b"$%d\r\n%s\r\n" % (len(x), x) for x in a)); f.readline()
	c("SET", "lock:big", "A" * 17000000)
	c("SET", b"lock:bin\x1b[31m\xff\xc2\x9b\0\n{*?", b"\x1b]0;evil\x07\xff\0")
	for i in range(6): c("ZADD", "lock:bigset", 9e15, b"%d" % i + b"B" * 3000000)
	for i in range(6000): c("ZADD", "lock:many", 9e14 + i, "m%d" % i)
	PY
	status; assertEquals "$(cat "$W/err")" 0 $RC
	assertTrue 'grep -q "\"A*\.\.\.\".*lock:big$" "$W/out"'
	assertTrue 'grep -qF "lock:bin\x1b[31m\xff\xc2\x9b\x00\x0a{*?" "$W/out"'
	assertTrue 'grep -q "lock:bigset (.*too big" "$W/out"'
	assertTrue 'grep -q "lock:many (and more" "$W/out"'
	assertFalse "a control character" "tr -d '\n' <'$W/out' | LC_ALL=C grep -q '[[:cntrl:]]'"
	assertContains "$(now 'sorted(e["key"] for e in d)')" "'lock:bin\\x1b[31m"
	assertEquals '[True]' "$(now '[e["truncated"] for e in d if e["key"] == "lock:many"]')"
}

test_waiters_are_shown_in_order_also_without_a_holder_and_dead_ones_as_gone() {
	local now; now=$(($(now_ms)))
	R zadd 'netflock:{lock:q}:queue' $(((now - 5000000) * 1000)) "x:$T1" $(((now - 2000000) * 1000)) "s:$T2" >/dev/null
	R zadd 'netflock:{lock:q}:alive' $((now + 600000)) "s:$T2" $((now - 1)) "x:$T1" >/dev/null
	status; assertEquals 0 $RC
	assertTrue "$(cat "$W/out")" 'grep -q "waits 1 *exclusive *alpha .* gone .*lock:q$" "$W/out"'
	assertTrue 'grep -q "waits 2 *shared *beta *22 *two .*lock:q$" "$W/out"'
	assertFalse 'grep "waits 2" "$W/out" | grep -q gone'
	assertEquals '[(1, False, 5), (2, True, 2)]' "$(now '[(w["position"], w["alive"], w["age_ms"] // 1000000) for w in d[0]["waiters"]]')"
	assertEquals '([], None)' "$(now '(d[0]["holders"], d[0]["mode"])')"
}

test_the_age_of_an_exclusive_lock_counts_from_its_grant() {
	R set lock:a "$T1" px 600000 >/dev/null
	local granted=$(($(now_ms) - 7000000)) age left
	R set 'netflock:{lock:a}:fence' $((granted * 1000)) >/dev/null
	read -r age left <<<"$(now '"%d %d" % (d[0]["holders"][0]["age_ms"], d[0]["holders"][0]["left_ms"])')"
	assertBetween age 7000000 $(($(now_ms) - granted)) "$age"
	assertBetween left "$(R pttl lock:a)" 600000 "$left"
}

# It counts from its last use, and a renewal is one: a lock that is held for days keeps its fencing token.
test_the_fence_does_not_expire_under_its_holder() {
	NF_TTL=3s spawn 1 flock "$F" sleep 31; wait_held "$F"
	NF_TTL=3s spawn 1 flock -s "$D/s" sleep 31; wait_held "$D/s"
	local f; for f in "$F" "$D/s"; do R expire "netflock:{lock:$f}:fence" 100 >/dev/null; done
	for f in "$F" "$D/s"; do must "[ \"\$(R ttl 'netflock:{lock:$f}:fence')\" -gt 100 ]"; done
}

# Many rounds of SCAN, and many batches of questions.
# (asan: no: the same calls, more often)
test_thirty_thousand_locks() {
	python3 -c "
import sys
for i in range(30000):
    a = [b'SET', b'lock:/srv/%d' % i, b'${T1%:*}:%d' % i, b'PX', b'600000']
    sys.stdout.buffer.write(b'*5\r\n' + b''.join(b'\$%d\r\n%s\r\n' % (len(x), x) for x in a))" | R --pipe >/dev/null
	status; assertEquals "$(cat "$W/err")" 0 "$RC"
	assertEquals 30001 "$(count <"$W/out")"
}

test_redis_that_refuses_is_named_and_no_password_is_shown() {
	URL=redis://127.0.0.1:1 status; assertEquals 3 $RC
	assertContains "$(cat "$W/err")" "127.0.0.1:1: connection refused"
	URL="unix://$SOCK?db=999" status; assertEquals 3 $RC
	R acl setuser narrow on '>hunter2' '~other:*' +scan +zrange +getrange +pttl >/dev/null
	R set lock:a v >/dev/null
	URL=redis://narrow:hunter2@127.0.0.1:$PORT status; assertEquals 3 $RC
	assertContains "$(cat "$W/err")" NOPERM
	URL=redis://narrow:hunter3@127.0.0.1:$PORT status; assertEquals 3 $RC
	assertContains "$(cat "$W/err")" WRONGPASS
	assertEquals "one line" 1 "$(count <"$W/err")"
	assertNotContains "$(cat "$W/err")" hunter
	R acl setuser reader on '>hunter2' '~*' +@read >/dev/null
	URL=redis://reader:hunter2@127.0.0.1:$PORT status; assertEquals "reading is enough" 0 $RC
	assertContains "$(cat "$W/out")" lock:a
	R acl deluser narrow reader >/dev/null
}

# A server without AUTH repeats its arguments in the error.
test_a_server_that_echoes_the_password_does_not_get_it_into_a_message() {
	redis_stop
	redis_start --rename-command AUTH ''
	URL=redis://:hunter2@127.0.0.1:$PORT status; assertEquals 3 $RC
	assertContains "$(cat "$W/err")" AUTH
	assertNotContains "$(cat "$W/err")" hunter2
	redis_stop
}

test_a_password_given_by_mistake_is_not_repeated() {
	local w
	for w in "status --ulr=redis://u:hunter2@h" "status --url redis://u:hunter2@h:99999" "run --password hunter2 true" \
		"run --password-file hunter2 true" "redis://u:hunter2@h" "status redis://u:hunter2@h"; do
		# shellcheck disable=SC2086
		nf $w >"$W/out" 2>&1; assertNotEquals "$w" 0 $?
		assertNotContains "$w" "$(cat "$W/out")" hunter2
	done
	assertEquals "sh" "$("$NETFLOCK" run --prefix "$D" --url redis://u:hunter2@h sh -c 'tr "\0" " " <"/proc/$$/cmdline"' | cut -d' ' -f1)"
}

test_paths_are_taken_by_the_kernels_name() {
	touch "$D/x"
	mkdir -p "$D/sub" "$W/other"
	ln -sfn "$D" "$W/link"; ln -sfn new "$D/dangling"; ln -sfn loop "$D/loop"
	local k; for k in x sub new; do R set "lock:$D/$k" "$T1" px 600000 >/dev/null; done
	local p; for p in "$D/x" "$W/link/x" "$D/sub/../x"; do
		status "$p"; assertEquals "$p" 0 $RC; assertContains "$p" "$(cat "$W/out")" "lock:$D/x"; assertEquals 2 "$(count <"$W/out")"
	done
	status "$D/sub/"; assertContains "$(cat "$W/out")" "lock:$D/sub"
	status "$D/new"; assertContains "no such file yet" "$(cat "$W/out")" "lock:$D/new"
	status "$D/dangling"; assertContains "a link to it" "$(cat "$W/out")" "lock:$D/new"
	status "$D/free"; assertEquals 0 $RC; assertEquals "no locks" "$(cat "$W/out")"
	status "$D/loop"; assertEquals 1 $RC
	status "$D/no/such"; assertEquals 1 $RC
	status "$W/other/y" "$D/x"; assertEquals "one path is wrong" 1 $RC
	assertContains "$(cat "$W/err")" "$W/other/y is below no prefix"
	assertContains "the other one is shown" "$(cat "$W/out")" "lock:$D/x"
	(cd "$D" && NETFLOCK_URL=$NF_URL NETFLOCK_PREFIX=$W/link=app "$NETFLOCK" status x >"$W/out"); assertEquals "no locks" "$(cat "$W/out")"
	R set lock:app/x "$T2" px 600000 >/dev/null
	(cd "$D" && NETFLOCK_URL=$NF_URL NETFLOCK_PREFIX=$W/link=app "$NETFLOCK" status x >"$W/out"); assertContains "$(cat "$W/out")" "lock:app/x"
}

test_paths_near_the_longest() {
	(
		cd "$D" || exit 9
		seg=$(printf 'd%.0s' $(seq 250)); len=${#D}
		while [ $((len + 252)) -lt 4085 ]; do mkdir -p "$seg" && cd "$seg" || exit 9; len=$((len + 251)); done
		name=$(printf 'e%.0s' $(seq $((4095 - len - 1))))
		nf status "$name" >"$W/out" || exit 1
		nf status "${name}e" 2>"$W/err"; [ $? = 1 ] || exit 2
	)
	assertEquals 0 $?
	assertContains "$(cat "$W/err")" "too long"
	rm -rf "${D:?}"/d*
}

test_output_that_cannot_be_written_is_an_error() {
	nf status >/dev/full 2>"$W/err"; assertNotEquals 0 $?
	assertContains "$(cat "$W/err")" "cannot be written"
}

test_the_library_is_found_beside_the_command_or_in_lib() {
	mkdir -p "$W/tree/bin" "$W/tree/lib/netflock" "$W/bare" "$W/sp ace"
	cp "$NETFLOCK" "$W/tree/bin"; cp "$NETFLOCK" "$W/bare"; cp "$NETFLOCK" "$SO" "$W/sp ace"; cp "$SO" "$W/tree/lib/netflock"
	export NETFLOCK_URL=$NF_URL NETFLOCK_PREFIX=$D
	assertEquals "$W/tree/lib/netflock/libnetflock.so" "$("$W/tree/bin/netflock" run sh -c 'echo "$LD_PRELOAD"')"
	ln -sfn "$W/tree/bin/netflock" "$W/nf"
	assertEquals "through a link" "$W/tree/lib/netflock/libnetflock.so" "$("$W/nf" run sh -c 'echo "$LD_PRELOAD"')"
	assertEquals "not twice" "$SO" "$(LD_PRELOAD=$W/tree/lib/netflock/libnetflock.so "$NETFLOCK" run sh -c 'echo "$LD_PRELOAD"')"
	"$W/bare/netflock" run true 2>"$W/err"; assertEquals "no library" 125 $?
	echo text >"$W/bare/libnetflock.so"; "$W/bare/netflock" run true 2>/dev/null; assertEquals "no shared object" 125 $?
	"$W/sp ace/netflock" run true 2>/dev/null; assertEquals "a name that LD_PRELOAD cannot hold" 125 $?
	unset NETFLOCK_URL NETFLOCK_PREFIX
}

test_run_looks_through_scripts_and_env() {
	cp "$PROBES/static" "$W/stat"
	printf '#!/usr/bin/env sh\necho ran\n' >"$W/s1"
	printf '#!/usr/bin/env stat\n' >"$W/s2"
	printf '#!/usr/bin/env -S -u X A=b stat -x\n' >"$W/s3"
	printf '#! %s/s2  \n' "$W" >"$W/s4"
	printf '#!/usr/bin/env -S -i sh\n' >"$W/s5"
	printf '#!%s/s6\n' "$W" >"$W/s6"
	printf 'echo ran "$1"\n' >"$W/s7"
	chmod +x "$W"/s[1-7]
	assertEquals ran "$(run "$W/s1")"
	assertEquals "without a first line" "ran a" "$(run "$W/s7" a)"
	local s; for s in s2 s3 s4; do
		(PATH=$W:$PATH; run "$s" 2>"$W/err"); assertEquals "$s" 125 $?
		assertContains "$(cat "$W/err")" "$W/stat is statically linked"
	done
	run "$W/s5" 2>/dev/null; assertEquals "env -i" 125 $?
	run "$W/s6" 2>/dev/null; assertEquals "an endless chain" 126 $?
	printf '#!/no/such\n' >"$W/s6"; run "$W/s6" 2>"$W/err"; assertEquals 127 $?
	mkdir -p "$W/folder"; run "$W/folder" 2>/dev/null; assertEquals 126 $?
}

test_run_without_any_prefix_is_refused_unless_it_is_switched_off() {
	NETFLOCK_URL=$NF_URL "$NETFLOCK" run true 2>"$W/err"; assertEquals 2 $?
	assertContains "$(cat "$W/err")" prefix
	NETFLOCK_DISABLE=1 "$NETFLOCK" run true; assertEquals 0 $?
	NETFLOCK_PREFIX=$D NETFLOCK_TTL=banana "$NETFLOCK" run true 2>"$W/err"; assertEquals 2 $?
	assertContains "$(cat "$W/err")" banana
}

. /usr/share/shunit2/shunit2
