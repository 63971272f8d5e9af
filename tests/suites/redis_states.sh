#!/bin/bash
# What a server can say other than yes and no: each state of Redis has one defined outcome, and one line in the log.
# shellcheck disable=SC1091
. "$(dirname "$0")/../lib.sh"

LOCAL_URL=$NF_URL

suite_setup() {
	# tries KIND N FILE: N calls of a kind, or of both, that do not wait; prints what they came to, each answer once.
	cat >"$W/tries.py" <<-'PY'
		import errno, fcntl, os, sys
		calls = [c for c in (fcntl.flock, fcntl.lockf) if sys.argv[1] in (c.__name__, "both")]
		fd, got = os.open(sys.argv[3], os.O_RDWR | os.O_CREAT, 0o666), set()
		for call in calls * int(sys.argv[2]):
		    try:
		        call(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
		        got.add("OK")
		        call(fd, fcntl.LOCK_UN)
		    except OSError as e:
		        got.add(errno.errorcode[e.errno])
		print(*sorted(got))
	PY
}

# soon N [VAR=VALUE...] CMD...: as H; its status in $RC, 124 if it does not come to an end.
soon() { timeout "$PATIENCE" "$TESTS/host" -s "$@"; RC=$?; }

# comes_to ANSWER LINES PATTERN [VAR=VALUE...]: several calls of each kind, by one process, all come to this, and its log has so
# many lines, all with this pattern.
comes_to() {
	local want=$1 lines=$2 pattern=$3
	shift 3
	local out=$W/out.$BASHPID err=$W/err.$BASHPID # several may run at a time
	H 1 NETFLOCK_CONNECT_TIMEOUT=1s "$@" python3 "$W/tries.py" both 2 "$F.$BASHPID" >"$out" 2>"$err"
	assertEquals "$(cat "$err")" "$want" "$(cat "$out")"
	assertEquals "lines with $pattern in: $(cat "$err")" "$lines" "$(grep -c -e "$pattern" "$err")"
	assertEquals "lines in all: $(cat "$err")" "$lines" "$(count <"$err")"
}

# outlives WORD ENTER LEAVE: a lock of each kind is held while the server is in this state for several renewals, none of which it
# lets through; afterwards they are still held, and the log has one line for each holder and kind of trouble.
outlives() {
	local word=$1 name hold='import fcntl, sys, time; f = open(sys.argv[1], "a")
getattr(fcntl, sys.argv[2])(f, fcntl.LOCK_EX); time.sleep(60)'
	spawn 1 NETFLOCK_TTL=3s NETFLOCK_KEEPER=never NETFLOCK_LOG="$W/log.x" python3 -c "$hold" "$F" flock; local x=$PID
	wait_held "$F"
	spawn 1 NETFLOCK_TTL=3s NETFLOCK_KEEPER=never NETFLOCK_LOG="$W/log.r" python3 -c "$hold" "$F" lockf; local r=$PID
	must '[ "$(R exists "netflock:{lock:$F}:ranges")" = 1 ]'
	eval "$2"
	for name in x r; do must "grep -qs '$word' '$W/log.$name'"; done
	nap 0.4 # further renewals, that are refused as well
	eval "$3"
	must 'R ping | grep -q PONG'
	must '[ "$(R pttl "lock:$F")" -gt 2000 ]' "" "the flock is not renewed:"
	must '[ "$(R zcard "netflock:{lock:$F}:leases")" = 1 ] && [ "$(R pttl "netflock:{lock:$F}:ranges")" -gt 2000 ]'
	for name in x r; do
		assertEquals "lines of $name: $(cat "$W/log.$name")" 1 "$(grep -c -v 'answers again' "$W/log.$name")"
	done
	rm -f "$W"/log.?
	kill $x $r; { wait $x $r; } 2>/dev/null
}

down() { comes_to ENOLCK 1 "no usable answer: .*$1" "${@:2}"; }
refuses() { comes_to ENOLCK 1 "(ENOLCK): Redis says: .*$1" "${@:2}"; }
works() { comes_to OK 0 . "$@"; }

# --- not now ------------------------------------------------------------------------------------------------------

test_READONLY_a_replica() {
	outlives READONLY 'R replicaof 127.0.0.1 1 >/dev/null' 'R replicaof no one >/dev/null'
	R replicaof 127.0.0.1 1 >/dev/null
	down READONLY
	R replicaof no one >/dev/null
	works
}

# (asan: no: the same as READONLY but for the word)
test_MASTERDOWN_a_replica_that_has_lost_its_master() {
	R config set replica-serve-stale-data no >/dev/null
	outlives MASTERDOWN 'R replicaof 127.0.0.1 1 >/dev/null' 'R replicaof no one >/dev/null'
	R replicaof 127.0.0.1 1 >/dev/null
	down MASTERDOWN
	R replicaof no one >/dev/null
	R config set replica-serve-stale-data yes >/dev/null
}

# (asan: no: the same as READONLY but for the word)
test_NOREPLICAS_too_few_replicas() {
	outlives NOREPLICAS 'R config set min-replicas-to-write 1 >/dev/null' 'R config set min-replicas-to-write 0 >/dev/null'
	R config set min-replicas-to-write 1 >/dev/null
	down NOREPLICAS
	R config set min-replicas-to-write 0 >/dev/null
}

stuck() { R eval 'while true do end' 0 >/dev/null 2>&1 & must 'R ping 2>&1 | grep -q BUSY'; }
test_BUSY_a_script_that_does_not_end() {
	R config set busy-reply-threshold 20 >/dev/null
	outlives BUSY stuck 'R script kill >/dev/null'
	stuck
	down BUSY
	R script kill >/dev/null
	must 'R ping | grep -q PONG'
	R config set busy-reply-threshold 5000 >/dev/null
}

# A connection that was made in such a state knows the run id like any other, when it is used later.
test_a_call_that_waits_through_BUSY_gets_the_lock() {
	R config set busy-reply-threshold 20 >/dev/null
	stuck
	spawn 1 flock "$F" sleep 60 2>"$W/err"
	must 'grep -q BUSY "$W/err"'
	R script kill >/dev/null
	wait_held "$F"
	assertEquals "INFO is asked for again: $(cat "$W/err")" 0 "$(grep -c INFO "$W/err")"
	assertEquals "the server's run id beside the lock" "$(R info server | sed -n 's/^run_id:\(.\{16\}\).*/\1/p')" \
		"$(R get "netflock:{lock:$F}:run" | cut -d: -f1)"
	R config set busy-reply-threshold 5000 >/dev/null
}

test_OOM_a_full_server_gives_no_lock_and_renews_those_it_has_given() {
	local lock pids=()
	R config set maxmemory-policy noeviction >/dev/null
	# Exclusive, shared, records; and one that only its keeper holds.
	for lock in "flock $D/e" "flock -s $D/s"; do
		# shellcheck disable=SC2086 # two or three words
		spawn 1 NETFLOCK_TTL=1200ms NETFLOCK_LOG="$W/log" NETFLOCK_KEEPER=never $lock sleep 60
		pids+=("$PID")
	done
	spawn 1 NETFLOCK_TTL=1200ms NETFLOCK_LOG="$W/log" \
		python3 -c 'import fcntl, sys, time; f = open(sys.argv[1], "a"); fcntl.lockf(f, fcntl.LOCK_EX); time.sleep(60)' "$D/r"
	pids+=("$PID")
	spawn 1 NETFLOCK_TTL=1200ms NETFLOCK_LOG="$W/log" bash -c "exec 9>$D/k; flock 9; exec sleep 60"
	pids+=("$PID")
	wait_held "$D/e"; wait_held "$D/s"; wait_held "$D/k"; must '[ "$(R exists "netflock:{lock:$D/r}:ranges")" = 1 ]'
	R config set maxmemory 1 >/dev/null
	down OOM
	assertEquals "a reader" ENOLCK "$(H 2 python3 "$W/tries.py" flock 1 "$D/new" 2>/dev/null)"
	# For one lease and a half: every key stays, so it is renewed.
	local end=$(($(now_ms) + 1800)) k
	while [ "$(now_ms)" -lt $end ]; do
		for k in "lock:$D/e" "lock:$D/s" "lock:$D/k" "netflock:{lock:$D/r}:ranges"; do
			[ "$(R exists "$k")" = 1 ] || { fail "$k is gone"; break 2; }
		done
		[ "$(R zcount "lock:$D/s" "$(now_ms)" +inf)" = 1 ] || { fail "the reader's lease has run out"; break; }
		[ "$(R zcount "netflock:{lock:$D/r}:leases" "$(now_ms)" +inf)" = 1 ] || { fail "the record's lease has run out"; break; }
		nap 0.05
	done
	for k in "${pids[@]}"; do kill -0 "$k" || fail "a holder was told of a loss"; done
	assertFalse "a line: $(cat "$W/log" 2>/dev/null)" '[ -s "$W/log" ]'
	# Releases go through as well.
	pkill -P "${pids[0]}" sleep
	wait_free "$D/e"
	R config set maxmemory 0 >/dev/null
	rm -f "$W/log"
	works
}

# (asan: no: the same as BUSY but for the word)
test_LOADING_a_server_that_reads_its_data() {
	R eval 'for i = 1, 4000 do redis.call("SET", "filler" .. i, string.rep("x", 100)) end' 0 >/dev/null
	R config set rdbcompression no >/dev/null
	R save >/dev/null
	redis_stop
	# It takes half a millisecond for each key, and looks at its clients in between.
	env -u NFTEST setsid redis-server --port "$PORT" --bind 127.0.0.1 --unixsocket "$SOCK" --unixsocketperm 777 --save '' \
		--appendonly no --dir "$W" --daemonize no --key-load-delay 700 --loading-process-events-interval-bytes 1024 \
		>>"$W/redis.log" 2>&1 </dev/null &
	REDIS_PID=$!
	must 'R ping 2>&1 | grep -q LOADING'
	spawn 2 flock "$F" sleep 60 2>"$W/err.waits"; local p=$PID
	down LOADING
	R ping 2>&1 | grep -q LOADING || fail "it was over too soon for this test to mean anything"
	must 'R ping 2>/dev/null | grep -q PONG'
	wait_held "$F"
	assertEquals "$(cat "$W/err.waits")" 1 "$(grep -c LOADING "$W/err.waits")"
	rm -f "$W/dump.rdb"
	pkill -P $p sleep
	wait_free "$F"
}

test_a_server_whose_connections_are_all_taken() {
	R config set maxclients 12 >/dev/null
	python3 -c 'if 1:
		import socket, sys, time
		taken = []
		while True:
		    s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.settimeout(0.1)
		    try:
		        if s.recv(100): break
		    except socket.timeout: taken.append(s)
		open(sys.argv[2], "w"); time.sleep(100)' "$SOCK" "$W/full" &
	local p=$!
	must '[ -e "$W/full" ]'
	down 'max number of clients'
	spawn 2 flock "$F" sleep 60 2>"$W/err.waits"
	must '[ -s "$W/err.waits" ]'
	kill $p
	wait_held "$F"
	assertEquals "$(cat "$W/err.waits")" 2 "$(count <"$W/err.waits")"
	rm -f "$W/full"
	R config set maxclients 10000 >/dev/null
}

# NOSCRIPT is no state, only a detour; see also lease.sh.
test_NOSCRIPT_scripts_that_are_flushed_all_the_time() {
	(while :; do R script flush >/dev/null; done) &
	local p=$!
	works
	spawn 1 flock "$F" sleep 0.5; wait_held "$F"
	soon 2 flock "$F" true
	assertEquals "a waiter gets in" 0 $RC
	kill $p; { wait $p; } 2>/dev/null
	assertNoKeys
}

# --- not at all ---------------------------------------------------------------------------------------------------

test_NOAUTH_no_password_was_given() {
	R config set requirepass secret >/dev/null
	refuses NOAUTH
	soon 1 flock "$F" true 2>/dev/null
	assertEquals "a call that may block does not wait for a password" 71 $RC
	redis-cli -s "$SOCK" -a secret --no-auth-warning config set requirepass '' >/dev/null
	works
}

test_WRONGPASS_the_password_is_wrong() {
	R acl setuser app reset on '>right' '~*' +@all >/dev/null
	refuses WRONGPASS NETFLOCK_URL="redis://app:wrong@127.0.0.1:$PORT"
	soon 1 NETFLOCK_URL="redis://app:wrong@127.0.0.1:$PORT" flock "$F" true 2>/dev/null
	assertEquals "it does not wait" 71 $RC
	works NETFLOCK_URL="redis://app:right@127.0.0.1:$PORT"
	R acl deluser app >/dev/null
}

test_NOPERM_a_key_that_the_user_may_not_touch() {
	R acl setuser app reset on '>pw' '~other:*' +@all >/dev/null
	refuses NOPERM NETFLOCK_URL="redis://app:pw@127.0.0.1:$PORT"
	R acl deluser app >/dev/null
	assertNoKeys
}

test_WRONGTYPE_the_key_of_the_lock_belongs_to_somebody_else() {
	local kind
	R rpush "lock:$F" mine >/dev/null
	for kind in "" -s; do
		# shellcheck disable=SC2086 # no word if empty
		soon 1 flock $kind "$F" true 2>"$W/err"
		assertEquals "it does not wait" 71 $RC
		assertEquals "$(cat "$W/err")" 1 "$(grep -c WRONGTYPE "$W/err")"
	done
	H 1 python3 "$W/tries.py" flock 4 "$F" >"$W/out" 2>"$W/err"
	assertEquals ENOLCK "$(cat "$W/out")"
	assertEquals "one line: $(cat "$W/err")" 1 "$(count <"$W/err")"
	assertEquals "it is left alone" mine "$(R lpop "lock:$F")"
	assertNoKeys
}

# Whichever of our keys has another type: never a lock that is reported and not held, and none that is left behind.
put_wrong() { # FILE NAME
	case $2 in
	fence | rfence | run) R rpush "netflock:{lock:$1}:$2" mine ;;
	*) R set "netflock:{lock:$1}:$2" mine ;;
	esac >/dev/null
}
wrong_for_flock() { # FILE NAME KIND
	put_wrong "$1" "$2"
	# shellcheck disable=SC2086 # no word if empty
	soon 1 NETFLOCK_TTL=1s flock $3 "$1" redis-cli -s "$SOCK" exists "lock:$1" >"$1.out" 2>"$1.err"
	if [ $RC = 0 ]; then assertEquals "$2 $3: what is reported is held" 1 "$(cat "$1.out")"; else
		assertEquals "$2 $3 ($(cat "$1.err"))" 71 $RC
		assertEquals "$2 $3: one line: $(cat "$1.err")" 1 "$(grep -c WRONGTYPE "$1.err")"
	fi
	must "[ \"\$(R exists 'lock:$1')\" = 0 ]" "" "$2 $3: left behind"
}
wrong_for_lockf() { # FILE NAME
	put_wrong "$1" "$2"
	H 1 NETFLOCK_TTL=1s python3 "$W/tries.py" lockf 4 "$1" >"$1.out" 2>"$1.err"
	case $2:$(cat "$1.out") in rqueue:OK | ralive:OK | *:ENOLCK) ;; *) fail "$2: $(cat "$1.out")" ;; esac
	[ "$(cat "$1.out")" = OK ] || assertEquals "$2: one line: $(cat "$1.err")" 1 "$(grep -c WRONGTYPE "$1.err")"
	R del "netflock:{lock:$1}:$2" >/dev/null
	must "[ -z \"\$(R keys 'netflock:{lock:$1}:[rol][awe]*s')\" ]" "" "$2: left behind"
}
test_WRONGTYPE_at_any_of_the_other_keys() {
	local name pids=()
	mkdir -p "$D"
	for name in fence queue alive run; do
		wrong_for_flock "$D/x.$name" $name "" & pids+=($!)
		wrong_for_flock "$D/s.$name" $name -s & pids+=($!)
	done
	wait "${pids[@]}"; pids=()
	for name in ranges owners leases rfence rqueue ralive run; do wrong_for_lockf "$D/r.$name" $name & pids+=($!); done
	wait "${pids[@]}"
	assertEquals "all were tried" 15 "$(find "$D" -name '*.out' | count)"
}

test_refused_and_mended_and_refused_again_is_two_lines() {
	actor a 1 2>"$W/err"
	ask a open x c "$F" >/dev/null
	R rpush "lock:$F" mine >/dev/null
	assertEquals ENOLCK "$(ask a flock x 'EX|NB')"
	assertEquals ENOLCK "$(ask a flock x 'EX|NB')"
	R del "lock:$F" >/dev/null
	assertEquals OK "$(ask a flock x 'EX|NB')"
	assertEquals OK "$(ask a flock x UN)"
	R rpush "lock:$F" mine >/dev/null
	assertEquals ENOLCK "$(ask a flock x 'EX|NB')"
	assertEquals "$(cat "$W/err")" 2 "$(grep -c WRONGTYPE "$W/err")"
	R del "lock:$F" >/dev/null
}

# --- no Redis at all ----------------------------------------------------------------------------------------------

# A peer that sends this (as printf takes it) to whoever connects; "close" hangs up at once.
peer() {
	python3 -c 'if 1:
		import os, socket, sys, threading, time
		what = sys.argv[2].encode().decode("unicode_escape").encode("latin-1")
		s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(100)
		open(sys.argv[1] + ".new", "w").write(str(s.getsockname()[1]))
		os.rename(sys.argv[1] + ".new", sys.argv[1])
		kept = []
		while True:
		    c, _ = s.accept()
		    if what == b"close": c.close(); continue
		    try:
		        for i in range(int(sys.argv[3])): c.sendall(what)
		    except OSError: pass
		    kept.append(c)' "$W/peer" "$1" "${2:-1}" &
	PEER_PID=$!
	must '[ -s "$W/peer" ]'
	PEER=redis://127.0.0.1:$(cat "$W/peer")
	rm "$W/peer"
}

test_a_peer_that_is_no_Redis() {
	local said pids=()
	for said in 'HTTP/1.1 400 Bad Request\r\n\r\n' '220 mail.example.net ESMTP\r\n' 'SSH-2.0-OpenSSH_9.2\r\n' '*2\r\n$999999999\r\n' \
		'$-5\r\n' '*100000000\r\n' '*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n'; do
		peer "$said"
		down . NETFLOCK_URL="$PEER" NETFLOCK_CONNECT_TIMEOUT=150ms & pids+=($!)
	done
	peer close
	down 'closed' NETFLOCK_URL="$PEER" & pids+=($!)
	# Well-formed, and not what was asked for; without end, too.
	for said in '+OK POP3 ready\r\n' ':1\r\n' '$-1\r\n' '*0\r\n' '*1\r\n:1\r\n' '*2\r\n:1\r\n:1\r\n'; do
		peer "$said" 50
		comes_to ENOLCK 1 'Redis says: .*unknown form' NETFLOCK_URL="$PEER" NETFLOCK_GRACE=off NETFLOCK_CHECK=off & pids+=($!)
	done
	wait "${pids[@]}"
	assertEquals "all were tried" ${#pids[@]} "$(for said in "${pids[@]}"; do echo "$W/out.$said"; done | xargs -d '\n' cat | grep -c ENOLCK)"
}

# --- rights -------------------------------------------------------------------------------------------------------

manual_acl() { # what the manual's "ACL SETUSER app" says after the password
	MANWIDTH=300 man -l "$TOP/docs/netflock.7" 2>/dev/null | col -b | sed -n '/ACL SETUSER app/,/^ *$/p' |
		tr -s '\\\t\n ' ' ' | sed 's/.*>PASSWORD //'
}

# (asan: no: compares texts)
test_the_rights_in_the_manual_are_those_that_the_scripts_use() {
	local used
	used=$({ echo evalsha; echo eval; echo blpop
		cat "$TOP"/shim/redis/*.lua | grep -o "redis.call('[A-Z]*'" | cut -d"'" -f2 | tr A-Z a-z; } | sort -u)
	assertEquals "$used" "$(manual_acl | tr ' ' '\n' | sed -n 's/^+//p' | sort -u)"
}

# Everything that asks for rights, by a user that has these: nothing is denied.
test_with_these_rights_nothing_is_denied_and_INFO_costs_one_line() {
	local acl url i
	acl=$(manual_acl)
	# shellcheck disable=SC2086 # several words
	R acl setuser app reset on '>pw' $acl >/dev/null
	R acl log reset >/dev/null
	export NF_URL=redis://app:pw@127.0.0.1:$PORT
	comes_to OK 1 'INFO is not answered (NOPERM'
	# Waiting, being handed over, upgrading; record locks with a wait, a deadlock, F_GETLK; and what a keeper does.
	spawn 1 flock "$F" sleep 0.3 2>"$W/err1"; wait_held "$F"
	H 2 flock "$F" true 2>"$W/err2"; assertEquals 0 $?
	H 2 flock -s "$F" flock -s "$F" true 2>/dev/null; assertEquals 0 $?
	H 1 NETFLOCK_TTL=600ms bash -c "exec 9>$F; flock -s 9; flock 9; sleep 1" 2>/dev/null; assertEquals 0 $?
	H 1 NETFLOCK_TTL=600ms python3 -c 'if 1:
		import fcntl, os, struct, sys, time
		f = open(sys.argv[1], "r+")
		fcntl.lockf(f, fcntl.LOCK_EX, 10, 0); fcntl.lockf(f, fcntl.LOCK_SH, 5, 2)
		if os.fork() == 0:
		    fcntl.lockf(f, fcntl.LOCK_EX, 10, 5); os._exit(0)
		time.sleep(0.8)
		fcntl.fcntl(f, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
		fcntl.lockf(f, fcntl.LOCK_UN, 10, 0); os.wait()' "$F" 2>/dev/null
	assertEquals 0 $?
	spawn 1 python3 -c 'if 1:
		import fcntl, sys, time
		f = open(sys.argv[1], "r+"); fcntl.lockf(f, fcntl.LOCK_EX, 10, 0); open(sys.argv[2], "w"); time.sleep(0.4)' "$F" "$W/in" 2>/dev/null
	must '[ -e "$W/in" ]'
	H 2 python3 -c 'import fcntl, sys; f = open(sys.argv[1], "a"); fcntl.lockf(f, fcntl.LOCK_EX, 10, 5)' "$F" 2>"$W/err2"
	assertEquals "$(cat "$W/err2")" 0 $?
	must '[ -z "$(keepers)" ]'
	assertEquals "denied" "" "$(R acl log | grep -A1 '^ *object\|^object' | grep -v -e object -e -- -- | grep -v -x info | sort -u)"
	R acl setuser app +info >/dev/null
	works
	export NF_URL=$LOCAL_URL
	R acl deluser app >/dev/null
	rm -f "$W/in"
}

test_without_INFO_locks_work_without_the_grace() {
	R acl setuser app reset on '>pw' '~*' +@all -info >/dev/null
	comes_to OK 1 'INFO is not answered (NOPERM' NETFLOCK_URL="redis://app:pw@127.0.0.1:$PORT"
	comes_to OK 1 'INFO is not answered (NOPERM' NETFLOCK_URL="redis://app:pw@127.0.0.1:$PORT" NETFLOCK_CHECK=strict
	assertEquals "nothing about the server is kept" 0 "$(R exists "netflock:{lock:$F}:run")"
	works NETFLOCK_URL="redis://app:pw@127.0.0.1:$PORT" NETFLOCK_GRACE=off
	R acl deluser app >/dev/null
}

# --- NETFLOCK_CHECK -----------------------------------------------------------------------------------------------

test_a_server_that_evicts_is_said_once_or_refused() {
	local policy
	for policy in allkeys-lru volatile-ttl; do
		R config set maxmemory-policy $policy >/dev/null
		comes_to OK 1 "may evict locks.*$policy"
		works NETFLOCK_CHECK=off
		refuses 'may evict locks' NETFLOCK_CHECK=strict
	done
	comes_to OK 1 'may evict locks' NETFLOCK_GRACE=off
	soon 1 NETFLOCK_CHECK=strict flock "$F" true 2>/dev/null
	assertEquals "a call that may block does not wait" 71 $RC
	H 1 NETFLOCK_LOG="$W/log" bash -c "exec 9>$F; flock 9; (sleep 0.1) & wait; flock -u 9; flock -n $F true" 2>"$W/err"
	assertEquals "each program says it, its keeper does not: $(cat "$W/log")" 2 "$(count <"$W/log")"
	rm -f "$W/log"
	R config set maxmemory-policy noeviction >/dev/null
	works NETFLOCK_CHECK=strict
	assertNoKeys
}

test_with_strict_held_locks_are_renewed_and_released_and_a_mended_server_is_used() {
	actor a 1 NETFLOCK_CHECK=strict NETFLOCK_TTL=1s NETFLOCK_KEEPER=never 2>"$W/err"
	ask a open x c "$F" >/dev/null; ask a open y c "$D/y" >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	R config set maxmemory-policy allkeys-lru >/dev/null
	R client kill type normal skipme yes >/dev/null
	assertEquals ENOLCK "$(ask a flock y 'EX|NB')"
	keeps "$F" 1500 "it is renewed"
	R config set maxmemory-policy noeviction >/dev/null
	assertEquals OK "$(ask a flock y 'EX|NB')"
	assertEquals OK "$(ask a flock y UN)"
	R config set maxmemory-policy allkeys-lru >/dev/null
	R client kill type normal skipme yes >/dev/null
	assertEquals OK "$(ask a flock x UN)"
	assertNoKeys
	R config set maxmemory-policy noeviction >/dev/null
}

# A proxy before the real server: INFO tells of another version. The rest passes.
test_an_old_server_is_said_once_or_refused() {
	python3 -c 'if 1:
		import os, re, socket, sys, threading
		def pipe(a, b, change):
		    try:
		        while True:
		            d = a.recv(65536)
		            if not d: break
		            if change: d = re.sub(rb"redis_version:\d+\.\d+\.", lambda m: (b"redis_version:5." + b"9" * 20)[:len(m[0]) - 1] + b".", d)
		            b.sendall(d)
		    except OSError: pass
		    for s in (a, b):
		        try: s.shutdown(socket.SHUT_RDWR)
		        except OSError: pass
		s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(100)
		open(sys.argv[1] + ".new", "w").write(str(s.getsockname()[1]))
		os.rename(sys.argv[1] + ".new", sys.argv[1])
		while True:
		    c, _ = s.accept()
		    r = socket.socket(socket.AF_UNIX); r.connect(sys.argv[2])
		    threading.Thread(target=pipe, args=(c, r, False), daemon=True).start()
		    threading.Thread(target=pipe, args=(r, c, True), daemon=True).start()' "$W/peer" "$SOCK" &
	must '[ -s "$W/peer" ]'
	local url; url=redis://127.0.0.1:$(cat "$W/peer")
	rm "$W/peer"
	comes_to OK 1 'is version 5\..*6.0' NETFLOCK_URL="$url"
	refuses 'older than Redis 6.0' NETFLOCK_URL="$url" NETFLOCK_CHECK=strict
	works NETFLOCK_URL="$url" NETFLOCK_CHECK=off
}

. /usr/share/shunit2/shunit2
