#!/bin/bash
# Who else contends: languages that call flock in their own way, and plain Redis clients on the same key.
. "$(dirname "$0")/../lib.sh"

RELEASE='if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end'

test_a_plain_client_that_holds_the_key_keeps_us_out() {
	assertEquals OK "$(R set "lock:$F" plain-1 nx px 90000)"
	assertEquals 1 "$(busy "$F")"
	H 2 flock -n -s "$F" true; assertEquals "a reader" 1 $?
	timed H 2 flock -w 0.5 "$F" true; assertEquals 1 $RC
	assertEquals "the plain token is untouched" plain-1 "$(R get "lock:$F")"
	assertEquals 1 "$(R eval "$RELEASE" 1 "lock:$F" plain-1)"
	assertEquals 0 "$(busy "$F")"
}

test_we_wait_for_a_plain_client_and_get_in_when_it_is_done() {
	R set "lock:$F" plain-1 nx px 90000 >/dev/null
	spawn 2 flock "$F" touch "$W/shared/in"; local p=$PID
	must '[ "$(R exists "netflock:{lock:$F}:queue")" = 1 ]'
	assertFalse '[ -e $W/shared/in ]'
	R eval "$RELEASE" 1 "lock:$F" plain-1 >/dev/null
	# It knows nothing of our queue, so nobody is told: we have to look ourselves, in good time.
	must '[ -e $W/shared/in ]'
	wait $p; assertEquals 0 $?
	rm -f "$W/shared/in"
}

test_a_plain_lease_that_runs_out_lets_us_in() {
	local t0; t0=$(now_ms)
	R set "lock:$F" plain-1 nx px 700 >/dev/null
	timeout "$PATIENCE" "$TESTS/host" -s 2 flock "$F" true; assertEquals 0 $?
	assertTrue "not before its end" "[ $(($(now_ms) - t0)) -ge 700 ]"
}

test_we_keep_a_plain_client_out() {
	spawn 1 flock "$F" sleep 30; local p=$PID
	wait_held "$F"
	assertEquals "" "$(R set "lock:$F" plain-1 nx px 90000)"
	assertEquals 0 "$(R eval "$RELEASE" 1 "lock:$F" plain-1)"
	assertEquals 1 "$(busy "$F")"
	kill $p $(pgrep -P $p); { wait $p; } 2>/dev/null
	must '[ "$(R set "lock:$F" plain-1 nx px 90000)" = OK ]'
}

test_readers_keep_a_plain_client_out() {
	spawn 1 flock -s "$F" sleep 30
	wait_held "$F"
	assertEquals "" "$(R set "lock:$F" plain-1 nx px 90000)"
	R eval "$RELEASE" 1 "lock:$F" plain-1 >/dev/null 2>&1  # WRONGTYPE; deletes nothing
	assertEquals 1 "$(R exists "lock:$F")"
}

# (asan: no: the same calls, more often)
test_a_plain_client_and_our_programs_lose_no_update() {
	local c=$W/shared/counter
	echo 0 >"$c"
	cat >"$W/plain.py" <<-'S'
		import redis, sys, time, uuid
		r = redis.Redis(unix_socket_path=sys.argv[1]); key, counter = sys.argv[2], sys.argv[3]
		script = r.register_script(sys.argv[4])
		open(sys.argv[5], "w")
		for i in range(40):
		    t = uuid.uuid4().hex
		    while not r.set(key, t, nx=True, px=5000): time.sleep(0.002)
		    n = int(open(counter).read()); time.sleep(0.004); open(counter, "w").write(str(n + 1))
		    assert script(keys=[key], args=[t]) == 1
	S
	cat >"$W/ours.py" <<-'S'
		import fcntl, os, sys, time
		while not os.path.exists(sys.argv[3]): time.sleep(0.001)
		for i in range(40):
		    with open(sys.argv[1], "a") as f:
		        fcntl.flock(f, fcntl.LOCK_EX)
		        n = int(open(sys.argv[2]).read()); time.sleep(0.004); open(sys.argv[2], "w").write(str(n + 1))
	S
	python3 "$W/plain.py" "$SOCK" "lock:$F" "$c" "$RELEASE" "$W/shared/begin" & local p1=$!
	spawn 1 python3 "$W/ours.py" "$F" "$c" "$W/shared/begin"; local p2=$PID
	wait $p1; assertEquals 0 $?
	wait $p2; assertEquals 0 $?
	assertEquals 80 "$(cat "$c")"
}

# language NAME HOLD TRY: HOLD locks, writes "in", waits for a line; TRY ends with 1 if somebody else has it.
language() {
	rm -f "$W/out"; mkfifo "$W/go"; exec 8<>"$W/go"
	H 1 bash -c "$2" <"$W/go" >"$W/out" 8<&- & local p=$!
	must 'grep -q in $W/out'
	assertEquals "$1 holds" 1 "$(busy "$F")"
	H 2 bash -c "$3"; assertEquals "$1 is kept out" 1 $?
	echo >&8
	wait $p; assertEquals "$1 ends" 0 $?
	assertNoKeys
	H 2 bash -c "$3"; assertEquals "$1 gets in" 0 $?
	exec 8>&-; rm "$W/go"
}

test_python() {
	language python "exec python3 -c 'import fcntl,sys
f=open(\"$F\",\"a\"); fcntl.flock(f,fcntl.LOCK_EX); print(\"in\",flush=True); sys.stdin.readline(); fcntl.flock(f,fcntl.LOCK_UN)'" \
	"exec python3 -c 'import fcntl,sys
f=open(\"$F\",\"a\")
try: fcntl.flock(f,fcntl.LOCK_EX|fcntl.LOCK_NB)
except BlockingIOError: sys.exit(1)'"
}

# (asan: no: the same calls as Python's)
test_perl() {
	language perl "exec perl -e 'open F, \">>\", \"$F\"; flock F, 2 or exit 9; \$|=1; print \"in\n\"; <STDIN>; close F'" \
	"exec perl -MErrno -e 'open F, \">>\", \"$F\"; flock F, 6 or exit(\$!{EWOULDBLOCK} ? 1 : 9)'"
}

# -n: without opcache, which a sanitizer does not let load.
# (asan: no: the same calls as Python's)
test_php() {
	need php || return 0
	language php "exec php -n -r '\$f=fopen(\"$F\",\"a\"); flock(\$f,LOCK_EX) or exit(9); echo \"in\n\"; fgets(STDIN); flock(\$f,LOCK_UN);'" \
	"exec php -n -r '\$f=fopen(\"$F\",\"a\"); if (!flock(\$f,LOCK_EX|LOCK_NB,\$w)) exit(\$w ? 1 : 9);'"
}

# (asan: no: the same calls as Python's)
test_shell_with_a_descriptor() {
	language shell "exec 9>$F; flock 9 || exit 9; echo in; read x" "exec 9>$F; flock -n 9"
}

# (asan: no: the same calls as Python's)
test_exclusive_on_a_read_only_descriptor() {
	H 1 touch "$F"; H 2 touch "$F"
	language perl-read-only "exec perl -e 'open F, \"<\", \"$F\"; flock F, 2 or exit 9; \$|=1; print \"in\n\"; <STDIN>; close F'" \
	"exec perl -MErrno -e 'open F, \"<\", \"$F\"; flock F, 6 or exit(\$!{EWOULDBLOCK} ? 1 : 9)'"
}

test_a_kernel_that_says_ebadf_once_makes_flock_reopen_and_leaves_one_key() {
	# NFSv4 refuses exclusive locks on a read-only descriptor; util-linux then opens the file again for writing.
	H 1 touch "$F"
	H 1 strace -qq -f -o "$W/trace" -e trace=flock -e inject=flock:error=EBADF:when=1 \
		flock -n "$F" redis-cli -s "$SOCK" keys 'lock:*' >"$W/out"
	assertEquals "lock:$F" "$(cat "$W/out")"
	assertNoKeys
}

test_a_kernel_that_says_ebadf_to_the_keeper_costs_no_waiting() {
	# Its watching thread gives up while the lock is held. From then on it looks by other means, and not only when it renews (a
	# third of the lease, which is longer than we wait here).
	H 1 touch "$F"
	spawn 1 NETFLOCK_TTL=5m strace -qq -f -o "$W/trace" -e trace=flock -e inject=flock:error=EBADF:when=1 \
		flock -n "$F" sh -c "until [ \$(grep -c 'LOCK_EX).*INJECTED' $W/trace) -ge 1 ]; do sleep 0.02; done"
	wait_held "$F"
	assertNoKeys
	assertTrue "the keeper's was refused as well: $(cat "$W/trace")" "[ $(grep -c INJECTED "$W/trace") -ge 2 ]"
}

. /usr/share/shunit2/shunit2
