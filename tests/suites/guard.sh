#!/bin/bash
# A keeper that is killed while programs still hold what it keeps: its guard takes its place, and nobody is let in.
#
# That the guard has it is seen at the end: leases do not end here by themselves, and nobody else frees it.
. "$(dirname "$0")/../lib.sh"

LOG=$W/shared/log

end_all() { local p; for p in $(strays); do is_keeper "$p" || kill -KILL "$p" 2>/dev/null; done; }
freed() { freed_by "${1:-end_all}"; must '[ -z "$(keepers)$(guards)" ]' $PATIENCE "no keeper is left;"; }
kill_keeper() {
	local k; k=$(keepers)
	kill -KILL "$k"
	must '[ -n "$(keepers)" ] && ! keepers | grep -qx '"$k" $PATIENCE "another keeper;"
	guarded
}

# A shell holds the lock; the program that took it is gone.
shell_holds() { spawn 1 NETFLOCK_LOG="$LOG" "$@" bash -c "exec 9>$F; flock ${MODE:-} 9; sleep 60 & sleep 60"; wait_held "$F"; guarded; }

test_a_lock_in_a_shell_outlives_its_keeper_again_and_again_with_its_token_and_fence() {
	local i t f
	rm -f "$LOG"
	shell_holds NETFLOCK_TTL=1s
	t=$(R get "lock:$F"); f=$(fence_of "$F")
	for i in 1 2; do
		kill_keeper
		keeps "$F" 1500 "round $i"
		assertEquals "round $i: another host" 1 "$(busy "$F")"
		assertEquals "round $i" "$t" "$(R get "lock:$F")"
		assertEquals "round $i" "$f" "$(fence_of "$F")"
	done
	assertEquals "it is said, each time" 2 "$(grep -c 'was killed' "$LOG")"
	assertFalse "nothing is lost" "grep -q lost '$LOG'"
	freed
}

# asan: no: a reader's take-over runs in the tests of what is handed over
test_a_reader_s_lock_outlives_its_keeper() {
	MODE=-s shell_holds NETFLOCK_TTL=1s
	kill_keeper
	keeps "$F" 1500 "a reader"
	H 2 flock -n "$F" true; assertEquals "a writer on another host" 1 $?
	H 2 flock -n -s "$F" true; assertEquals "a reader on another host" 0 $?
	freed
}

test_a_guard_that_is_killed_is_replaced() {
	local g
	shell_holds
	g=$(guards)
	kill -KILL "$g"
	must '[ -n "$(guards)" ] && ! guards | grep -qx '"$g" $PATIENCE "another guard;"
	assertEquals "zombies" "" "$(ps -o stat= --ppid "$(keepers)" | grep Z)"
	kill_keeper
	freed
}

test_a_lock_that_ends_at_the_same_time_as_its_keeper_is_freed() {
	shell_holds
	kill -STOP "$(keepers)"
	end_all
	freed 'kill -KILL "$(keepers)"'
}

test_what_is_handed_over_after_a_take_over_goes_to_the_new_keeper() {
	MODE=-s shell_holds
	kill_keeper
	spawn 1 bash -c "exec 9>$F; flock -s 9; mkdir $W/shared/second; sleep 60"
	must '[ -d $W/shared/second ]'
	guarded
	must '[ "$(R zcard "lock:$F")" = 1 ]' $PATIENCE "one token:"
	freed
	rmdir "$W/shared/second"
}

# The kernel lets a killed keeper's address go last of all: for a moment its guard can neither have it nor give what it has to who
# listens there. A stranger to the protocol that has the address makes that moment long.
test_a_guard_that_finds_the_address_taken_gets_it_later() {
	MODE=-s shell_holds
	local g k squatter a
	g=$(guards) k=$(keepers)
	a=$(awk '$8 ~ /^@netflock:/ { print substr($8, 2) }' /proc/net/unix | grep -i ":$(printf %x "$(stat -c %i "$HOSTS/1/x")"):" | head -n 1)
	kill -STOP "$g"
	kill -KILL "$k"
	python3 -c 'import socket, sys, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
while True:
    try: s.bind("\0" + sys.argv[1]); break
    except OSError: time.sleep(0.01)
s.listen(9); print("squats", flush=True)
while True:
    s.accept()[0].close(); print("asked", flush=True)' "$a" >"$W/squats" & squatter=$!
	must 'grep -q squats "$W/squats"'
	kill -CONT "$g"
	must 'grep -q asked "$W/squats"' '' "the guard has taken over, and asks who listens there;"
	kill -KILL $squatter; { wait $squatter; } 2>/dev/null
	must 'grep -q "@$a" /proc/net/unix' '' "it has the address again;"
	spawn 1 bash -c "exec 9>$F; flock -s 9; mkdir $W/shared/fourth; sleep 60"
	must '[ -d $W/shared/fourth ]'
	guarded
	must '[ "$(R zcard "lock:$F")" = 1 ]' '' "one token:"
	freed
	rmdir "$W/shared/fourth"
}

test_a_keeper_that_was_started_in_between_gets_the_guard_s_locks() {
	MODE=-s shell_holds
	local g k
	g=$(guards) k=$(keepers)
	kill -STOP "$g"
	kill -KILL "$k"
	must '! keepers | grep -qx '"$k"
	spawn 1 bash -c "exec 9>$F; flock -s 9; mkdir $W/shared/third; exec sleep 60"; local p=$PID
	must '[ -d $W/shared/third ]'
	kill -CONT "$g"
	must '! is_keeper $g' $PATIENCE "the guard has nothing to do any more;"
	guarded
	{ kill -KILL $p; wait $p; } 2>/dev/null
	must '[ "$(R zcard "lock:$F")" = 1 ]' $PATIENCE "one token:"
	H 2 flock -n "$F" true; assertEquals "the first reader has it" 1 $?
	freed # the first one's token, too
	rmdir "$W/shared/third"
}

test_a_stand_in_s_lock_outlives_its_keeper_and_still_ends() {
	shell_holds NETFLOCK_LOCAL=off NETFLOCK_TTL=1s
	kill_keeper
	keeps "$F" 1500 "a stand-in"
	freed
	shell_holds NETFLOCK_LOCAL=off
	freed
}

# asan: no: the paths of one file, many times
test_a_keeper_of_many_files_is_replaced_for_all_of_them() {
	local files=("$F"{0..19})
	spawn 1 python3 -c 'if 1:
		import fcntl, os, sys, time
		fs = [open("%s%d" % (sys.argv[1], i), "a") for i in range(20)]
		for f in fs: fcntl.flock(f, fcntl.LOCK_EX)
		if os.fork() == 0: time.sleep(60)
		os._exit(0)' "$F"
	wait $PID
	guarded
	kill_keeper
	assertEquals 20 "$(leftover_keys | count)"
	freed_by end_all "${files[@]}"
}

. /usr/share/shunit2/shunit2
