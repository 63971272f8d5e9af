#!/bin/bash
# The lease: renewed while somebody works, over when its holder is dead, and nobody else's business.
. "$(dirname "$0")/../lib.sh"

# Locks FILE, says so, and sleeps.
HOLD='import fcntl,sys,time; f=open(sys.argv[1],"a"); fcntl.flock(f,fcntl.LOCK_EX); print("in",flush=True); time.sleep(60)'

test_a_lock_outlives_three_leases_while_its_holder_works() {
	local end
	spawn 1 NETFLOCK_TTL=1s flock "$F" sleep 30
	wait_held "$F"
	end=$(($(now_ms) + 3500))
	while [ "$(now_ms)" -lt $end ]; do
		held "$F" || { fail "the key is gone"; break; }
		[ "$(busy "$F")" = 1 ] || { fail "host 2 got in"; break; }
	done
}

test_a_python_holder_is_renewed_too_and_many_locks_at_once() {
	local end
	spawn 1 NETFLOCK_TTL=1s python3 -c 'if 1:
		import fcntl, sys, time
		fs = [open("%s%d" % (sys.argv[1], i), "a") for i in range(50)]
		for f in fs: fcntl.flock(f, fcntl.LOCK_EX)
		time.sleep(60)' "$F"
	wait_held "${F}49"
	end=$(($(now_ms) + 3200))
	while [ "$(now_ms)" -lt $end ]; do
		[ "$(R eval 'return #redis.call("KEYS", "lock:*")' 0)" = 50 ] || { fail "a key is gone"; break; }
		sleep 0.05
	done
}

test_a_wrong_token_does_not_release() {
	# Somebody took the file over behind our back; our unlock must not free it for a third.
	actor a 1 NETFLOCK_ON_LOST=log
	assertEquals OK "$(ask a open x c "$F")"
	assertEquals OK "$(ask a flock x EX)"
	R set "lock:$F" somebody-else px 20000 >/dev/null
	ask a flock x UN >/dev/null
	assertEquals somebody-else "$(R get "lock:$F")"
	ask a close x >/dev/null
	tell a exit 0; must "! kill -0 ${ACT_PID[a]} 2>/dev/null"
	assertEquals somebody-else "$(R get "lock:$F")"
	assertEquals 1 "$(busy "$F")"
}

test_a_wrong_token_does_not_renew() {
	local log=$W/lost.log
	spawn 1 NETFLOCK_ON_LOST=log NETFLOCK_TTL=600ms python3 -c "$HOLD" "$F" 2>"$log"
	wait_held "$F"
	R set "lock:$F" somebody-else px 20000 >/dev/null
	must 'grep -q "$F" "$log"' 3 "the loss of the lock is logged, within a lease"
	must '[ "$(R pttl "lock:$F")" -lt 18500 ]' 3 "the foreign lease runs down"
	assertEquals somebody-else "$(R get "lock:$F")"
}

test_by_default_a_program_whose_lock_was_lost_is_ended() {
	spawn 1 NETFLOCK_TTL=600ms python3 -c "$HOLD" "$F" 2>"$W/lost.log"
	local p=$PID
	wait_held "$F"
	R set "lock:$F" somebody-else px 20000 >/dev/null
	must '! kill -0 $p 2>/dev/null' 3 "the holder gets SIGTERM"
	{ wait $p; RC=$?; } 2>/dev/null
	assertEquals 143 $RC
	assertContains "$(cat "$W/lost.log")" "$F"
}

test_what_a_kept_lock_protects_is_ended_when_it_is_lost() {
	# The shell and its child have the descriptor; the sibling has not.
	spawn 1 W="$W" NETFLOCK_TTL=600ms NETFLOCK_LOG="$W/kept.log" bash -c 'sleep 61 & echo $! >"$W/sibling"
		exec 9>"$0"; flock 9; sleep 62 & echo $! >"$W/child"; exec sleep 63' "$F"
	local p=$PID
	must '[ -s "$W/child" ]'
	wait_held "$F"
	must '[ -n "$(keepers)" ]'
	R set "lock:$F" somebody-else px 20000 >/dev/null
	must '! kill -0 $p 2>/dev/null' 3 "the holder gets SIGTERM"
	must '! kill -0 $(cat "$W/child") 2>/dev/null' 3 "so does its child"
	assertTrue "but nobody else" "kill -0 $(cat "$W/sibling")"
	must 'grep -q "2 processes told" "$W/kept.log"' 2
	assertContains "$(cat "$W/kept.log")" "somebody-else"
	assertEquals somebody-else "$(R get "lock:$F")"
}

LOCKF='import fcntl,sys,time; f=open(sys.argv[1],"a"); fcntl.lockf(f,fcntl.LOCK_EX); print("in",flush=True); time.sleep(60)'

test_a_program_that_lost_its_record_locks_is_ended() {
	spawn 1 NETFLOCK_TTL=600ms NETFLOCK_GRACE=off python3 -c "$LOCKF" "$F" 2>"$W/lost.log" >"$W/out"
	local p=$PID
	must '[ -s "$W/out" ]'
	R flushall >/dev/null
	must '! kill -0 $p 2>/dev/null' 3 "the holder gets SIGTERM"
	assertContains "$(cat "$W/lost.log")" "lost the lock on lock:$F"
}

# The server hangs, as for one who is cut off: whoever holds is told while nobody else could have got in yet.
told_before_the_lease_ends() { # MESSAGE CMD...
	local what=$1; shift
	: >"$W/out"
	spawn 1 NETFLOCK_TTL=2s NETFLOCK_CONNECT_TIMEOUT=1s "$@" >"$W/out" 2>/dev/null
	local p=$PID
	must '[ -s "$W/out" ]'
	kill -STOP "$REDIS_PID"
	local t0; t0=$(now_ms)
	wait_until '! kill -0 $p 2>/dev/null' 5 || fail "$what: not told at all"
	local ms=$(($(now_ms) - t0))
	kill -CONT "$REDIS_PID"
	# The last renewal was no later than the freeze.
	assertBetween "$what: told after ms" 900 2000 "$ms"
}

test_the_loss_is_told_before_the_lease_ends() {
	told_before_the_lease_ends "flock" python3 -c "$HOLD" "$F"
	told_before_the_lease_ends "lockf" python3 -c "$LOCKF" "$D/y"
	told_before_the_lease_ends "kept" bash -c 'exec 9>"$0"; flock 9; echo in; exec sleep 60' "$D/z"
}

test_the_local_contender_of_a_killed_holder_gets_in_at_once() {
	spawn 1 NETFLOCK_KEEPER=never python3 -c "$HOLD" "$F" >"$W/out"
	local p=$PID
	must '[ -s $W/out ]'
	kill -KILL $p; { wait $p; } 2>/dev/null
	held "$F" || fail "the dead host's lease is expected to run on"
	timed H 1 flock -n "$F" true
	assertEquals "the same host takes its own token over" 0 $RC
	assertBetween "milliseconds" 0 500 $MS
	assertNoKeys
}

test_a_remote_contender_of_a_killed_holder_gets_in_at_the_lease_end_and_not_before() {
	local p rest t0 took
	spawn 1 NETFLOCK_KEEPER=never NETFLOCK_TTL=1500ms python3 -c "$HOLD" "$F" >"$W/out"
	p=$PID
	must '[ -s $W/out ]'
	kill -KILL $p; { wait $p; } 2>/dev/null
	rest=$(R pttl "lock:$F"); t0=$(now_ms)
	assertBetween "what is left of the lease" 300 1500 "$rest"
	H 2 flock "$F" true; RC=$?
	took=$(($(now_ms) - t0))
	assertEquals 0 $RC
	assertBetween "milliseconds until host 2 is in" $((rest - 50)) $((rest + 1200)) $took
	assertNoKeys
}

test_with_a_keeper_a_remote_contender_need_not_wait_for_the_lease_end() {
	spawn 1 NETFLOCK_KEEPER=always NETFLOCK_TTL=20s python3 -c "$HOLD" "$F" >"$W/out"
	local p=$PID
	must '[ -s $W/out ]'
	assertEquals 1 "$(busy "$F")"
	kill -KILL $p; { wait $p; } 2>/dev/null
	timed H 2 flock "$F" true
	assertEquals 0 $RC
	assertBetween "milliseconds" 0 1000 $MS
}

test_a_killed_flock_command_frees_the_other_host_when_its_child_ends() {
	# flock(1) forks: the child has the descriptor, and with it the lock.
	spawn 1 NETFLOCK_TTL=20s flock "$F" sleep 60
	local p=$PID child
	wait_held "$F"
	must 'child=$(pgrep -P $p sleep)'
	kill -KILL $p; { wait $p; } 2>/dev/null
	assertEquals "the child still holds it" 1 "$(busy "$F")"
	kill -KILL "$child"
	must '[ "$(busy "$F")" = 0 ]' 2
}

test_a_lock_that_a_program_does_not_give_back_ends_with_it() {
	H 1 NETFLOCK_TTL=20s perl -e 'open F, ">", $ARGV[0]; flock F, 2; exit 0' "$F"
	timed H 2 flock "$F" true
	assertBetween "milliseconds" 0 1000 $MS
	H 1 NETFLOCK_TTL=20s perl -MPOSIX -e 'open F, ">", $ARGV[0]; flock F, 2; POSIX::_exit(0)' "$F"
	timed H 2 flock "$F" true
	assertBetween "milliseconds after _exit" 0 1000 $MS
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
	assertBetween "the counter is kept for a day" 80000 90000 "$(R ttl "netflock:{lock:$F}:fence")"
}

test_a_script_flush_in_between_is_not_noticed() {
	actor a 1 NETFLOCK_TTL=600ms
	ask a open x c "$F" >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	R script flush >/dev/null
	local end=$(($(now_ms) + 1500))
	while [ "$(now_ms)" -lt $end ]; do held "$F" || { fail "the key is gone"; break; }; sleep 0.02; done
	R script flush >/dev/null
	assertEquals OK "$(ask a flock x UN)"
	assertNoKeys
}

. /usr/share/shunit2/shunit2
