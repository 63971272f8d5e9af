#!/bin/bash
# Redis away, slow, silent or full: a defined answer in a bounded time, never a lock that protects nobody.
. "$(dirname "$0")/../lib.sh"

ENOLCK=71                          # what util-linux makes of "No locks available"
NOWHERE=unix://$W/nothing-here.sock

# soon N [VAR=VALUE...] CMD...: as H; its status in $RC, 124 if it does not come to an end.
soon() { timeout "$PATIENCE" "$TESTS/host" -s "$@"; RC=$?; }

# costs_the_time_out VAR=VALUE...: a call with a short time-out fails, while one with a long one, which began before, still waits.
costs_the_time_out() {
	spawn 1 NETFLOCK_CONNECT_TIMEOUT=5m "$@" flock -n "$D/long" true 2>/dev/null; local long=$PID
	must 'comm_is $long flock'
	soon 1 NETFLOCK_CONNECT_TIMEOUT=500ms "$@" flock -n "$F" true 2>/dev/null
	assertEquals $ENOLCK $RC
	kill -0 $long || fail "the time-out is not what ended it"
	{ kill -KILL $long; wait $long; } 2>/dev/null
	true
}

# silent_listener: accepts connections and never says a word; its port in $SILENT.
silent_listener() {
	python3 -c 'if 1:
		import socket, sys, time
		s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(100)
		open(sys.argv[1] + ".new", "w").write(str(s.getsockname()[1]))
		import os; os.rename(sys.argv[1] + ".new", sys.argv[1])
		time.sleep(100)' "$W/silent" &
	must '[ -s $W/silent ]'
	SILENT=$(cat "$W/silent"); rm "$W/silent"
}

test_without_redis_lock_nb_fails_and_does_not_say_busy() {
	soon 1 NETFLOCK_URL="$NOWHERE" NETFLOCK_CONNECT_TIMEOUT=5m flock -n "$F" true 2>/dev/null
	assertEquals $ENOLCK $RC
	soon 1 NETFLOCK_URL=redis://127.0.0.1:"$(free_port)" NETFLOCK_CONNECT_TIMEOUT=5m flock -n "$F" true 2>/dev/null
	assertEquals "TCP" $ENOLCK $RC
}

test_the_reason_is_said_once() {
	H 1 NETFLOCK_URL="$NOWHERE" NETFLOCK_CONNECT_TIMEOUT=300ms python3 -c 'if 1:
		import errno, fcntl, sys
		f = open(sys.argv[1], "a")
		for i in range(3):
		    try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); sys.exit(5)
		    except OSError as e: assert e.errno == errno.ENOLCK, e' "$F" 2>"$W/err"
	assertEquals 0 $?
	assertBetween "lines about it" 1 3 "$(grep -c nothing-here "$W/err")"
}

test_after_a_refusal_the_file_is_not_locked_in_the_kernel_either() {
	actor a 1 NETFLOCK_URL="$NOWHERE" NETFLOCK_CONNECT_TIMEOUT=200ms 2>/dev/null
	ask a open x c "$F" >/dev/null
	assertEquals ENOLCK "$(ask a flock x 'EX|NB')"
	bare 1 flock -n "$F" true; assertEquals 0 $?
	bare 1 NETFLOCK=1 flock -n -s "$F" true; assertEquals 0 $?
}

test_a_blocking_call_waits_for_redis_and_goes_through_when_it_is_back() {
	redis_stop
	spawn 1 NETFLOCK_CONNECT_TIMEOUT=300ms flock "$F" touch "$W/shared/in" 2>"$W/err"; local p=$PID
	must '[ -s $W/err ]'     # it has tried at least once
	nap 0.3
	kill -0 $p || fail "the blocking call did not wait"
	assertFalse '[ -e $W/shared/in ]'
	redis_start
	must '[ -e $W/shared/in ]'
	wait $p; assertEquals 0 $?
	rm -f "$W/shared/in"
}

test_flock_w_keeps_its_limit_without_redis() {
	# Side by side with the plain kernel's, which has a longer limit, and begins before.
	bare 1 touch "$D/k"
	spawn_bare 1 sh -c 'exec 9>"$0"; flock 9; touch "$1"; exec flock -w 60 "$0" true' "$D/k" "$W/kernel"; local kernel=$PID
	must '[ -e "$W/kernel" ] && comm_is $kernel flock'
	timed timeout "$PATIENCE" "$TESTS/host" -s 1 NETFLOCK_URL="$NOWHERE" flock -w 1 "$F" true 2>/dev/null
	assertTrue "a failure, $RC" "[ $RC != 0 ] && [ $RC != 124 ]"
	kill -0 $kernel || fail "it took as long as one with 60 s"
	assertTrue "not before its second was over: $MS ms" "[ $MS -ge 990 ]"
}

test_a_wait_for_redis_is_interrupted_by_a_signal() {
	actor a 1 NETFLOCK_URL="$NOWHERE" 2>"$W/err"
	ask a open x c "$F" >/dev/null
	ask a alarm 3600000 norestart >/dev/null # the handler
	tell a flock x EX
	must '[ -s "$W/err" ]'
	must 'kill -ALRM "${ACT_PID[a]}"; read -t 0 -u "${ACT_OUT[a]}"'
	assertEquals EINTR "$(reply a)"
}

test_on_outage_error_makes_a_blocking_call_fail() {
	soon 1 NETFLOCK_URL="$NOWHERE" NETFLOCK_ON_OUTAGE=error flock "$F" true 2>/dev/null
	assertEquals $ENOLCK $RC
}

test_on_outage_local_locks_on_this_host_alone_and_says_so() {
	H 1 NETFLOCK_URL="$NOWHERE" NETFLOCK_ON_OUTAGE=local NETFLOCK_CONNECT_TIMEOUT=300ms \
		flock -n "$F" sh -c 'echo in' >"$W/out" 2>"$W/err"
	assertEquals 0 $?
	assertEquals in "$(cat "$W/out")"
	assertTrue "a warning" '[ -s $W/err ]'
	actor a 1 NETFLOCK_URL="$NOWHERE" NETFLOCK_ON_OUTAGE=local NETFLOCK_CONNECT_TIMEOUT=300ms 2>/dev/null
	ask a open x c "$F" >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	bare 1 flock -n "$F" true; assertEquals "on this host it is locked" 1 $?
	assertEquals OK "$(ask a flock x UN)"
	bare 1 flock -n "$F" true; assertEquals 0 $?
}

test_on_outage_local_does_protect_while_redis_answers() {
	spawn 1 NETFLOCK_ON_OUTAGE=local flock "$F" sleep 30
	wait_held "$F"
	H 2 NETFLOCK_ON_OUTAGE=local flock -n "$F" true
	assertEquals 1 $?
}

test_a_server_that_never_answers_costs_the_connect_timeout() {
	silent_listener
	costs_the_time_out NETFLOCK_URL=redis://127.0.0.1:"$SILENT"
}

test_a_host_that_drops_packets_costs_the_connect_timeout() {
	need iptables || return 0
	# In a network of its own: a local address whose packets are dropped.
	NETNS=1 timeout "$PATIENCE" "$TESTS/host" 1 bash -c '
		ip link set lo up && iptables -A OUTPUT -p tcp --dport 6379 -j DROP || exit 99
		try() { NETFLOCK_CONNECT_TIMEOUT=$1 LD_PRELOAD=$NF_PRELOAD NETFLOCK_PREFIX=$D NETFLOCK_URL=redis://127.0.0.1:6379 flock -n "$2" true; }
		try 5m "$D/long" & long=$!
		try 500ms "$0"; rc=$?
		kill -0 $long || exit 98
		pkill -P $long; exit $rc' "$F" 2>/dev/null
	assertEquals $ENOLCK $?
}

test_a_name_that_does_not_resolve_costs_the_connect_timeout() {
	# The name server is there and never answers.
	mkdir -p "$W/etc"
	echo 'nameserver 127.0.0.99' >"$W/etc/resolv.conf"
	echo 'hosts: dns' >"$W/etc/nsswitch.conf"
	python3 -c 'if 1:
		import socket, sys, time
		s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("127.0.0.99", 53))
		open(sys.argv[1], "w"); time.sleep(100)' "$W/dns" &
	must '[ -e $W/dns ]'
	ETC="$W/etc" soon 1 NETFLOCK_URL=redis://redis.example.invalid NETFLOCK_CONNECT_TIMEOUT=500ms flock -n "$F" true 2>/dev/null
	assertEquals $ENOLCK $RC
}

test_a_frozen_server_ends_lock_nb_in_time() {
	H 1 flock "$F" true
	kill -STOP "$REDIS_PID"
	costs_the_time_out NETFLOCK_TTL=1s
	kill -CONT "$REDIS_PID"
	# The request that was cut off may have been carried out: nothing of it may stay beyond a lease.
	must '[ "$(busy "$F")" = 0 ]'
}

# (asan: no: the same as other renewals that fail, and much waiting)
test_a_server_that_is_frozen_for_a_while_costs_no_lock() {
	actor a 1 NETFLOCK_TTL=3s NETFLOCK_CONNECT_TIMEOUT=300ms 2>"$W/err"
	ask a open x c "$F" >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	kill -STOP "$REDIS_PID"
	must '[ -s "$W/err" ]' # a renewal has failed
	kill -CONT "$REDIS_PID"
	assertEquals "the key is there" 1 "$(R exists "lock:$F")"
	# Longer than the rest of the lease would be without a renewal.
	keeps "$F" 3500
	assertEquals OK "$(ask a flock x UN)"
	assertNoKeys
}

test_connections_killed_again_and_again_cost_no_lock_and_no_program() {
	local i
	actor a 1 NETFLOCK_TTL=1500ms
	ask a open x c "$F" >/dev/null; ask a open y c "$D/y" >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	local end=$(($(now_ms) + 2500))
	for ((i = 0; i < 5 || $(now_ms) < end; i++)); do
		R client kill type normal skipme yes >/dev/null
		held "$F" || { fail "the key went missing"; break; }
		assertEquals "round $i" "OK 0" "$(ask a cycle y 3)" || break
		nap 0.1
	done
	assertEquals OK "$(ask a flock x UN)"
	ask a close y >/dev/null
	assertNoKeys
}

test_more_lockers_than_connections_all_come_to_an_end() {
	# Some connections are taken until somebody was turned away. Then, on each file one waits, and so has a connection all the
	# time; the others come, one after another, to what is left.
	local i n=12; [ -z "${TEST_ASAN:-}" ] || n=8
	R config set maxclients $((n + 6)) >/dev/null
	: >"$W/shared/ends"
	python3 -c 'if 1:
		import os, socket, sys, time
		taken = [socket.socket(socket.AF_UNIX) for i in range(int(sys.argv[2]))]
		for s in taken: s.connect(sys.argv[1]); s.sendall(b"PING\r\n"); s.recv(100)
		open(sys.argv[3], "w")
		while not os.path.exists(sys.argv[4]): time.sleep(0.05)' "$SOCK" $n "$W/taken" "$W/shared/go" &
	must '[ -e "$W/taken" ]'
	for i in 1 2; do
		H "$i" bash -c "for j in \$(seq $n); do
			(flock $D/many\$j sh -c 'until [ -e $W/shared/go ]; do sleep 0.05; done'; echo \$? >>$W/shared/ends) & done; wait" 2>"$W/err$i" &
	done
	must 'grep -qs "max number of clients" "$W/err1" "$W/err2"'
	touch "$W/shared/go"
	must '[ "$(count <$W/shared/ends)" = $((2 * n)) ]'
	assertEquals "other statuses than 0" "" "$(grep -vx 0 "$W/shared/ends" | sort | uniq -c)"
	must '[ "$(R config set maxclients 10000)" = OK ]'
	rm -f "$W/shared/go" "$W/taken"
}

test_a_full_server_is_not_called_busy() {
	R config set maxmemory 1 >/dev/null
	R config set maxmemory-policy noeviction >/dev/null
	H 1 flock -n "$F" true 2>"$W/err"; RC=$?
	R config set maxmemory 0 >/dev/null
	assertEquals $ENOLCK $RC
	assertTrue "the reason is said" 'grep -qi -e oom -e memory "$W/err"'
}

# The smallest set of rights that the manual names, and one right less.
test_the_documented_acl_suffices_and_a_missing_right_is_one_clear_error() {
	local acl url
	acl=$(MANWIDTH=300 man -l "$TOP/docs/netflock.7" 2>/dev/null | col -b | sed -n '/ACL SETUSER app/,/^ *$/p' |
		tr -s '\\\t\n ' ' ' | sed 's/.*>PASSWORD //')
	assertNotEquals "netflock(7) names the rights" "" "$acl"
	# shellcheck disable=SC2086 # several words
	R acl setuser app reset on '>pw' $acl +info >/dev/null
	url=redis://app:pw@127.0.0.1:$PORT
	spawn 1 NETFLOCK_URL="$url" flock "$F" sleep 60; local p=$PID
	wait_held "$F"
	H 2 NETFLOCK_URL="$url" flock -n "$F" true; assertEquals "held elsewhere" 1 $?
	R acl setuser app -blpop >/dev/null
	soon 2 NETFLOCK_URL="$url" flock "$F" true 2>"$W/err"
	assertEquals "waiting is refused" $ENOLCK $RC
	assertContains "the line says why" "$(cat "$W/err")" NOPERM
	assertEquals "lines about it" 1 "$(grep -c NOPERM "$W/err")"
	pkill -P $p; kill $p; { wait $p; } 2>/dev/null
	assertNoKeys
	R acl deluser app >/dev/null
}

. /usr/share/shunit2/shunit2
