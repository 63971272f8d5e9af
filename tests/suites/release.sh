#!/bin/bash
# netflock release: a lock is taken from whoever has it.
. "$(dirname "$0")/../lib.sh"

nf() { NETFLOCK_URL=$NF_URL NETFLOCK_PREFIX=$D "$NETFLOCK" "$@"; }
release() { nf release "$@" >"$W/out" 2>"$W/err"; RC=$?; }
fence_now() { R get "netflock:{lock:$F}:fence"; }
# On a terminal: answers once the question is there.
ask_on_terminal() { # ANSWER WORDS...
	NETFLOCK_URL=$NF_URL NETFLOCK_PREFIX=$D timeout -k 5 30 python3 - "$1" "$NETFLOCK" "${@:2}" >"$W/out" 2>&1 <<'PY'
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
seen = b''
asked = False
while True:
    try:
        part = os.read(fd, 4096)
    except OSError:
        break
    if not part:
        break
    seen += part
    if b'[y/N]' in seen and not asked:
        asked = True
        os.write(fd, sys.argv[1].encode() + b'\n')
sys.stdout.write(seen.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
PY
	RC=$?
}

# A process that holds by itself, without a keeper; ON_LOST as told. $PID. It learns of a release when it renews.
HOLD='import fcntl, os, sys, time
f = open(sys.argv[1], "r+" if os.path.exists(sys.argv[1]) else "w+")
getattr(fcntl, sys.argv[2])(f, fcntl.LOCK_SH if sys.argv[3:] else fcntl.LOCK_EX)
time.sleep(60)'
hold() { spawn "$1" NETFLOCK_KEEPER=never NETFLOCK_TTL=3s NETFLOCK_LOG="$W/lost.$1" "${@:2}"; }

test_a_lock_is_released_and_the_holder_is_told() {
	hold 1 NETFLOCK_ON_LOST=USR1 /usr/bin/python3 -c "$HOLD" "$F" flock; local p=$PID
	wait_held "$F"
	local fence; fence=$(fence_now)
	release --yes "$F"; status_is 0 $RC "released" "$W/err"
	assertContains "who had it" "$(cat "$W/out")" "$p"
	assertContains "$(cat "$W/out")" "released: 1 holder"
	assertTrue "the fence moves on" "[ $(fence_now) -gt $fence ]"
	must '! kill -0 '$p' 2>/dev/null' "$PATIENCE" "the holder gets its signal;"
	{ wait $p; RC=$?; } 2>/dev/null
	assertEquals "SIGUSR1" $((128 + 10)) $RC
	assertContains "$(cat "$W/lost.1")" "lost the lock on lock:$F"
	assertContains "$(cat "$W/lost.1")" "it is gone in Redis"
	assertFalse "it is not taken back" "held '$F'"
}

test_the_next_waiter_gets_it() {
	hold 1 NETFLOCK_ON_LOST=log /usr/bin/python3 -c "$HOLD" "$F" flock; local p=$PID
	wait_held "$F"
	local token; token=$(R get "lock:$F")
	spawn 2 flock "$F" sleep 61
	must '[ "$(R zcard "netflock:{lock:$F}:queue")" = 1 ]'
	release --yes "lock:$F"; status_is 0 $RC "by its key" "$W/err"
	must 'R get "lock:$F" | grep -q :host2:' "$PATIENCE" "the waiter has it;"
	must 'grep -qs "lost the lock" $W/lost.1'
	assertTrue "only logged" "kill -0 $p"
	R get "lock:$F" | grep -q :host2:
	assertEquals "the old holder leaves it alone" 0 $?
}

test_all_shared_holders_are_released() {
	hold 1 NETFLOCK_ON_LOST=log /usr/bin/python3 -c "$HOLD" "$F" flock shared
	hold 2 NETFLOCK_ON_LOST=log /usr/bin/python3 -c "$HOLD" "$F" flock shared
	must '[ "$(R zcard "lock:$F")" = 2 ]'
	release -y "$F"; status_is 0 $RC "released" "$W/err"
	assertContains "$(cat "$W/out")" "released: 2 holders"
	must 'grep -qs "lost the lock" $W/lost.1 && grep -qs "lost the lock" $W/lost.2'
	assertFalse "they do not come back" "held '$F'"
}

test_record_locks_are_released_too() {
	hold 1 NETFLOCK_ON_LOST=USR1 /usr/bin/python3 -c "$HOLD" "$F" lockf; local p=$PID
	must '[ "$(R zcard "netflock:{lock:$F}:leases")" = 1 ]'
	release --yes "$F"; status_is 0 $RC "released" "$W/err"
	must '! kill -0 '$p' 2>/dev/null' "$PATIENCE" "the holder gets its signal;"
	{ wait $p; RC=$?; } 2>/dev/null
	assertEquals "SIGUSR1" $((128 + 10)) $RC
	assertContains "$(cat "$W/lost.1")" "lost the lock on lock:$F"
	assertEquals 0 "$(R zcard "netflock:{lock:$F}:ranges")"
}

test_what_a_keeper_has_is_released() {
	spawn 1 NETFLOCK_TTL=3s NETFLOCK_LOG="$W/keeper.log" flock "$F" sleep 61
	wait_held "$F"
	release --yes "$F"; status_is 0 $RC "released" "$W/err"
	must 'grep -qs "lost the lock on lock:$F" $W/keeper.log'
	assertFalse "held '$F'"
}

test_a_value_of_another_program_is_released() {
	R set "lock:$F" 'plain token' px 600000 >/dev/null
	release --yes "$F"; status_is 0 $RC "released" "$W/err"
	assertFalse "held '$F'"
}

test_nobody_has_it() {
	release --yes "$F"; assertEquals 1 $RC
	assertContains "$(cat "$W/err")" "nobody has lock:$F"
	release --yes /usr; assertEquals "below no prefix" 1 $RC
	assertContains "$(cat "$W/err")" "no prefix"
}

test_it_needs_a_yes() {
	R set "lock:$F" plain px 600000 >/dev/null
	release "$F" </dev/null; assertEquals "no terminal" 2 $RC
	assertContains "$(cat "$W/err")" --yes
	assertTrue "nothing is released" "held '$F'"
	ask_on_terminal n release "$F"; assertEquals "no" 1 $RC
	assertTrue "nothing is released" "held '$F'"
	ask_on_terminal y release "$F"; status_is 0 $RC "yes" "$W/out"
	assertFalse "released" "held '$F'"
}

# The holder changes while the question stands: what was not shown is not taken.
test_only_what_was_shown_is_taken() {
	R set "lock:$F" first px 600000 >/dev/null
	mkfifo "$W/go"
	cat "$W/go" | NETFLOCK_URL=$NF_URL NETFLOCK_PREFIX=$D script -qec "$NETFLOCK release $F" /dev/null >"$W/out" 2>&1 &
	local p=$!
	must 'grep -q first $W/out && grep -q "y/N" $W/out'
	R set "lock:$F" second px 600000 >/dev/null
	echo y >"$W/go"
	wait $p; RC=$?
	assertEquals "$(cat "$W/out")" 1 $RC
	assertContains "$(cat "$W/out")" "did not have it any more"
	assertEquals second "$(R get "lock:$F")"
}

test_usage_and_redis() {
	release; assertEquals "no path" 2 $RC
	release --yes a b; assertEquals "two paths" 2 $RC
	release --nonsense "$F"; assertEquals 2 $RC
	release --url unix:///nonexistent.sock --yes "$F"; assertEquals 3 $RC
	assertContains "$(cat "$W/err")" nonexistent
	nf release --help | grep -q 'Exit status'; assertEquals "help" 0 $?
	redis_stop
	release --yes "$F"; assertEquals "Redis is gone" 3 $RC
}

. /usr/share/shunit2/shunit2
