#!/bin/bash
# The lease: renewed while somebody works, over when its holder is dead, and nobody else's business.
. "$(dirname "$0")/../lib.sh"

# Locks FILE, says so, and sleeps. When it is told, it notes the time.
cat >"$W/hold.py" <<'S'
import fcntl, signal, sys, time
f = open(sys.argv[2], "a")
def told(*_):
    open(sys.argv[3], "w").write("%d" % (time.time() * 1000))
    sys.exit(15)
if len(sys.argv) > 3: signal.signal(signal.SIGTERM, told)
if sys.argv[1] != "kept": getattr(fcntl, sys.argv[1])(f, fcntl.LOCK_EX)
print("in", flush=True)
time.sleep(300)
S
is_in() { must "[ -s $1 ]"; }           # is_in OUTPUT: the holder says so
gone() { ! kill -0 "$1" 2>/dev/null; }
killed() { kill -KILL "$1"; { wait "$1"; } 2>/dev/null; }
gets_in() { H "${2:-2}" flock -w "$PATIENCE" "$F" true; assertEquals "$1" 0 $?; } # no lease ends within that time

# A program with many, renewed by its thread; one of a shell's, by a keeper; and one that had to load the scripts again.
test_locks_outlive_their_leases_while_their_holders_work() {
	spawn 1 NETFLOCK_TTL=2s python3 -c 'if 1:
		import fcntl, sys, time
		fs = [open("%s%d" % (sys.argv[1], i), "a") for i in range(50)]
		for f in fs: fcntl.flock(f, fcntl.LOCK_EX)
		time.sleep(300)' "$F"
	spawn 1 NETFLOCK_TTL=2s flock "$F" sleep 300
	actor a 1 NETFLOCK_TTL=2s
	ask a open x c "$D/y" >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	wait_held "$F"; wait_held "${F}49"
	spawn 2 flock "$F" touch "$W/overtaken"
	R script flush >/dev/null
	stays '[ "$(R eval "return #redis.call(\"KEYS\", \"lock:*\")" 0)" = 52 ]' 3000
	assertFalse "the waiter has not got in" "[ -e $W/overtaken ]"
	R script flush >/dev/null
	assertEquals OK "$(ask a flock x UN)"
	wait_free "$D/y"
}

test_a_wrong_token_does_not_release() {
	# Somebody took the file over behind our back; our unlock must not free it for a third.
	actor a 1 NETFLOCK_ON_LOST=log
	assertEquals OK "$(ask a open x c "$F")"
	assertEquals OK "$(ask a flock x EX)"
	R set "lock:$F" somebody-else px 90000 >/dev/null
	ask a flock x UN >/dev/null
	assertEquals somebody-else "$(R get "lock:$F")"
	ask a close x >/dev/null
	tell a exit 0; must "! kill -0 ${ACT_PID[a]} 2>/dev/null"
	assertEquals somebody-else "$(R get "lock:$F")"
	assertEquals 1 "$(busy "$F")"
}

# By default the program is ended.
test_a_wrong_token_does_not_renew_and_the_holder_is_told() {
	local p q
	spawn 1 NETFLOCK_TTL=1s python3 "$W/hold.py" flock "$F" 2>"$W/lost.log"; p=$PID
	spawn 1 NETFLOCK_TTL=1s NETFLOCK_ON_LOST=log python3 "$W/hold.py" flock "$D/y" 2>"$W/lost-y.log"; q=$PID
	wait_held "$F"; wait_held "$D/y"
	R mset "lock:$F" somebody-else "lock:$D/y" somebody-else >/dev/null # these have no lease; a renewal would give them one
	must 'gone $p' '' "the holder gets SIGTERM;"
	{ wait $p; RC=$?; } 2>/dev/null
	assertEquals 143 $RC
	assertContains "$(cat "$W/lost.log")" "lost the lock on lock:$F"
	must 'grep -q "lost the lock on lock:$D/y" "$W/lost-y.log"'
	assertTrue "with \"log\" it goes on" "kill -0 $q"
	assertEquals "values and leases" "somebody-else somebody-else -1 -1" \
		"$(echo "$(R mget "lock:$F" "lock:$D/y")" "$(R pttl "lock:$F")" "$(R pttl "lock:$D/y")" | paste -sd' ')"
}

test_what_a_kept_lock_protects_is_ended_when_it_is_lost() {
	# The shell and its child have the descriptor; the sibling has not.
	spawn 1 W="$W" NETFLOCK_TTL=1s NETFLOCK_LOG="$W/kept.log" bash -c 'sleep 301 & echo $! >"$W/sibling"
		exec 9>"$0"; flock 9; sleep 302 & echo $! >"$W/child"; exec sleep 303' "$F"
	local p=$PID
	must '[ -s "$W/child" ]'
	wait_held "$F"
	must '[ -n "$(keepers)" ]'
	R set "lock:$F" somebody-else >/dev/null
	must 'gone $p' '' "the holder gets SIGTERM;"
	must 'gone $(cat "$W/child")' '' "so does its child;"
	assertTrue "but nobody else" "kill -0 $(cat "$W/sibling")"
	must 'grep -q "2 processes told" "$W/kept.log"'
	assertContains "$(cat "$W/kept.log")" "somebody-else"
	assertEquals somebody-else "$(R get "lock:$F")"
}

test_a_program_that_lost_its_record_locks_is_ended() {
	spawn 1 NETFLOCK_TTL=1s NETFLOCK_GRACE=off python3 "$W/hold.py" lockf "$F" 2>"$W/lost.log" >"$W/out1"
	local p=$PID
	is_in "$W/out1"
	R flushall >/dev/null
	must 'gone $p' '' "the holder gets SIGTERM;"
	assertContains "$(cat "$W/lost.log")" "lost the lock on lock:$F"
}

# The server hangs, as for one who is cut off: whoever holds is told while nobody else could have got in yet. Each says itself when
# that was. No lease is longer than from the moment when the server stopped.
test_the_loss_is_told_before_the_lease_ends() {
	local how end P=()
	for how in flock lockf kept; do
		spawn 1 NETFLOCK_TTL=3s NETFLOCK_CONNECT_TIMEOUT=1s bash -c '[ $1 != kept ] || { exec 9>"$2"; flock 9; }; exec python3 "$0" "$@"' \
			"$W/hold.py" $how "$D/$how" "$W/told.$how" >"$W/out.$how" 2>/dev/null
		P+=("$PID")
	done
	for how in flock lockf kept; do is_in "$W/out.$how"; done
	must '[ "$(R pttl "lock:$D/flock")" -lt 2300 ]'
	must '[ "$(R pttl "lock:$D/flock")" -gt 2300 ]' '' "it is renewed;"
	must '[ "$(R pttl "lock:$D/flock")" -lt 2300 ]' '' "that was a while ago;"
	kill -STOP "$REDIS_PID"
	end=$(($(now_ms) + 3000))
	for how in flock lockf kept; do
		must "[ -s $W/told.$how ]" '' "$how: it is told;"
		assertTrue "$how: told $(($(cat "$W/told.$how") - end)) ms after the lease's end" "[ $(cat "$W/told.$how") -lt $end ]"
	done
	kill -CONT "$REDIS_PID"
	for how in "${P[@]}"; do must "gone $how"; done
}

test_the_local_contender_of_a_killed_holder_gets_in_at_once() {
	spawn 1 NETFLOCK_KEEPER=never python3 "$W/hold.py" flock "$F" >"$W/out2"
	is_in "$W/out2"
	killed $PID
	held "$F" || fail "the dead host's lease is expected to run on"
	H 1 flock -n "$F" true; assertEquals "the same host takes its own token over" 0 $?
	assertNoKeys
}

# (asan: no: nothing of ours runs but a wait, as in many other tests)
test_a_remote_contender_of_a_killed_holder_gets_in_at_the_lease_end_and_not_before() {
	R config set notify-keyspace-events Ex >/dev/null
	R psubscribe '__keyevent@0__:expired' >"$W/expired" &
	must 'grep -q psubscribe "$W/expired"'
	spawn 1 NETFLOCK_KEEPER=never NETFLOCK_TTL=1s python3 "$W/hold.py" flock "$F" >"$W/out3"
	is_in "$W/out3"
	killed $PID
	# The order in Redis: the lease ends, and then the other one is in.
	H 2 flock -w "$PATIENCE" "$F" redis-cli -s "$SOCK" publish __keyevent@0__:expired "host 2 is in" >/dev/null
	assertEquals 0 $?
	must 'grep -q "host 2" "$W/expired"'
	assertEquals "lock:$F,host 2 is in" "$(grep -e '^lock:' -e '^host' "$W/expired" | paste -sd,)"
	R config set notify-keyspace-events '' >/dev/null
	assertNoKeys
}

test_with_a_keeper_a_remote_contender_need_not_wait_for_the_lease_end() {
	spawn 1 NETFLOCK_KEEPER=always python3 "$W/hold.py" flock "$F" >"$W/out4"
	is_in "$W/out4"
	assertEquals 1 "$(busy "$F")"
	killed $PID
	gets_in "the keeper frees it"
}

# (asan: no: the keeper's work is done in the test before, and the rest is flock(1)'s)
test_a_killed_flock_command_frees_the_other_host_when_its_child_ends() {
	# flock(1) forks: the child has the descriptor, and with it the lock.
	spawn 1 flock "$F" sleep 300
	local child
	wait_held "$F"
	must 'child=$(pgrep -P $PID sleep)'
	killed $PID
	assertEquals "the child still holds it" 1 "$(busy "$F")"
	kill -KILL "$child"
	gets_in "free, when the child is gone"
}

# (asan: no: what runs at an end is run in each test; and perl's memory is its own)
test_a_lock_that_a_program_does_not_give_back_ends_with_it() {
	H 1 perl -e 'open F, ">", $ARGV[0]; flock F, 2; exit 0' "$F"
	gets_in "exit"
	H 1 perl -MPOSIX -e 'open F, ">", $ARGV[0]; flock F, 2; POSIX::_exit(0)' "$F"
	gets_in "_exit"
	assertNoKeys
}

test_the_fence_grows_with_each_tenure() {
	local a b
	H 1 flock "$F" true; a=$(R get "netflock:{lock:$F}:fence")
	H 2 flock "$F" true; b=$(R get "netflock:{lock:$F}:fence")
	assertTrue "fence $a then $b" "[ '$b' -gt '$a' ]"
	R flushall >/dev/null
	H 1 flock "$F" true; a=$(R get "netflock:{lock:$F}:fence")
	assertTrue "also after the server lost its data: $b then $a" "[ '$a' -gt '$b' ]"
	assertTrue "the counter is kept for a day" '[ "$(R ttl "netflock:{lock:$F}:fence")" -gt 80000 ]'
}

. /usr/share/shunit2/shunit2
