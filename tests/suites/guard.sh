#!/bin/bash
# A keeper that is killed while programs still hold what it keeps: its guard takes its place, and nobody is let in.
. "$(dirname "$0")/../lib.sh"

export NF_TTL=600ms
LOG=$W/shared/log

# held_on MESSAGE: for three leases, without a gap.
held_on() {
	local end=$(($(now_ms) + 1800))
	while [ "$(now_ms)" -lt $end ]; do held "$F" || { fail "$1: the key is gone"; return; }; sleep 0.02; done
	assertEquals "$1: another host" 1 "$(busy "$F")"
}
end_all() { local p; for p in $(strays); do is_keeper "$p" || kill -KILL "$p" 2>/dev/null; done; }
freed() { must '[ "$(busy "$F")" = 0 ]' 2 "freed at the end:"; assertNoKeys; must '[ -z "$(keepers)$(guards)" ]' 3 "no keeper is left;"; }
guarded() { must '[ "$(keepers | count) $(guards | count)" = "1 1" ]' 5 "a keeper with its guard;"; }

# A shell holds the lock; the program that took it is gone.
shell_holds() { spawn 1 NETFLOCK_LOG="$LOG" "$@" bash -c "exec 9>$F; flock ${MODE:-} 9; sleep 60 & sleep 60"; wait_held "$F"; guarded; }

test_a_lock_in_a_shell_outlives_its_keeper_again_and_again() {
	local i k
	rm -f "$LOG"
	shell_holds
	for i in 1 2 3; do
		k=$(keepers)
		kill -KILL "$k"
		held_on "round $i"
		guarded
		assertNotEquals "another keeper" "$k" "$(keepers)"
	done
	assertEquals "it is said, each time" 3 "$(grep -c 'was killed' "$LOG")"
	assertFalse "nothing is lost" "grep -q lost '$LOG'"
	end_all; freed
}

test_the_token_and_the_fence_stay_when_a_guard_takes_over() {
	shell_holds
	local t f
	t=$(R get "lock:$F"); f=$(R get "netflock:{lock:$F}:fence")
	kill -KILL "$(keepers)"
	held_on "the keeper is killed"
	assertEquals "$t" "$(R get "lock:$F")"
	assertEquals "$f" "$(R get "netflock:{lock:$F}:fence")"
	end_all; freed
}

test_a_reader_s_lock_outlives_its_keeper() {
	MODE=-s shell_holds
	kill -KILL "$(keepers)"
	held_on "a reader"
	H 2 flock -n -s "$F" true; assertEquals "a reader on another host" 0 $?
	end_all; freed
}

test_a_guard_that_is_killed_is_replaced() {
	local g
	shell_holds
	g=$(guards)
	kill -KILL "$g"
	must '[ -n "$(guards)" ] && [ "$(guards)" != "$g" ]' 5 "another guard;"
	assertEquals "zombies" "" "$(ps -o stat= --ppid "$(keepers)" | grep Z)"
	kill -KILL "$(keepers)"
	held_on "after both"
	end_all; freed
}

test_a_lock_that_ends_at_the_same_time_as_its_keeper_is_freed() {
	NF_TTL=20s shell_holds
	kill -STOP "$(keepers)"
	end_all
	kill -KILL "$(keepers)"
	freed
}

test_what_is_handed_over_after_a_take_over_goes_to_the_new_keeper() {
	MODE=-s shell_holds
	kill -KILL "$(keepers)"; guarded
	spawn 1 bash -c "exec 9>$F; flock -s 9; mkdir $W/shared/second; sleep 60"
	must '[ -d $W/shared/second ]'
	guarded
	assertEquals "one token" 1 "$(R zcard "lock:$F")"
	end_all; freed
	rmdir "$W/shared/second"
}

test_a_keeper_that_was_started_in_between_gets_the_guard_s_locks() {
	MODE=-s shell_holds
	local g
	g=$(guards)
	kill -STOP "$g"
	kill -KILL "$(keepers)"
	spawn 1 bash -c "exec 9>$F; flock -s 9; mkdir $W/shared/third; sleep 60"; local p=$PID
	must '[ -d $W/shared/third ]'
	kill -CONT "$g"
	must '! is_keeper $g' 3 "the guard has nothing to do any more;"
	guarded
	{ kill -KILL $p; pkill -KILL -P $p; wait $p; } 2>/dev/null
	held_on "the first reader"
	end_all; freed
	rmdir "$W/shared/third"
}

test_a_stand_in_s_lock_outlives_its_keeper_and_still_ends() {
	shell_holds NETFLOCK_LOCAL=off
	kill -KILL "$(keepers)"
	held_on "a stand-in"
	end_all; freed
	shell_holds NETFLOCK_LOCAL=off
	end_all; freed
}

test_a_keeper_of_many_files_is_replaced_for_all_of_them() {
	local i
	spawn 1 python3 -c 'if 1:
		import fcntl, os, sys, time
		fs = [open("%s%d" % (sys.argv[1], i), "a") for i in range(20)]
		for f in fs: fcntl.flock(f, fcntl.LOCK_EX)
		if os.fork() == 0: time.sleep(60)
		os._exit(0)' "$F"
	wait $PID
	guarded
	kill -KILL "$(keepers)"
	guarded
	sleep 1.8 # three leases
	for i in 0 7 19; do assertEquals "file $i" 1 "$(busy "$F$i")"; done
	assertEquals 20 "$(leftover_keys | count)"
	end_all
	assertNoKeys
}

. /usr/share/shunit2/shunit2
