#!/bin/bash
# fork, threads, and descriptors that are copied, passed and closed around a lock.
. "$(dirname "$0")/../lib.sh"

# Leases are short where a test looks for longer than one whether a lock is renewed; elsewhere they do not end.
holder() { # [VAR=VALUE...]
	actor a 1 "$@"
	assertEquals OK "$(ask a open x c "$F")"
	assertEquals OK "$(ask a flock x EX)"
}

test_a_child_can_lock_on_its_own() {
	holder
	assertEquals OK "$(ask a fork l)"
	assertEquals "the child has one thread" "OK 1" "$(ask a threads)"
	assertEquals OK "$(ask a open y c "$D/y")"
	assertEquals OK "$(ask a flock y EX)"
	assertEquals 1 "$(busy "$D/y")"; assertEquals 1 "$(busy "$F")"
	assertEquals OK "$(ask a flock y UN)"
	assertEquals "parent" "OK child ended 0" "$(ask a exit 0)"
	assertEquals 1 "$(busy "$F")"
	assertEquals OK "$(ask a flock x UN)"
	assertNoKeys
}

test_a_child_that_closes_its_copy_leaves_the_parent_s_lock() {
	holder NETFLOCK_TTL=1s
	ask a fork l >/dev/null
	assertEquals OK "$(ask a close x)"
	assertEquals 1 "$(busy "$F")"
	ask a exit 0 >/dev/null
	keeps "$F" 1500 "after the child"
	freed_by 'assertEquals OK "$(ask a close x)"'
}

test_a_child_that_unlocks_ends_the_parent_s_lock() {
	holder
	ask a fork l >/dev/null
	assertEquals OK "$(ask a flock x UN)"
	assertEquals 0 "$(busy "$F")"
	ask a exit 0 >/dev/null
	assertEquals "nobody holds it" 0 "$(busy "$F")"
	assertEquals "the parent may lock again" OK "$(ask a flock x 'EX|NB')"
	assertEquals 1 "$(busy "$F")"
}

test_the_lock_lives_in_the_child_when_the_parent_is_gone() {
	holder NETFLOCK_TTL=1s
	assertEquals OK "$(ask a orphan)"
	keeps "$F" 1500 "held by the child"
	assertEquals 1 "$(busy "$F")"
	freed_by 'assertEquals OK "$(ask a flock x UN)"'
}

test_a_child_upgrades_and_downgrades_the_parent_s_lock() {
	actor a 1 NETFLOCK_TTL=1s
	ask a open x c "$F" >/dev/null; assertEquals OK "$(ask a flock x SH)"
	ask a fork l >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	H 2 flock -n -s "$F" true; assertEquals "a reader elsewhere" 1 $?
	ask a exit 0 >/dev/null
	keeps "$F" 1500 "after the upgrade"
	H 2 flock -n -s "$F" true; assertEquals "still exclusive" 1 $?
	assertEquals OK "$(ask a flock x SH)"
	H 2 flock -n -s "$F" true; assertEquals "a reader after the downgrade" 0 $?
}

test_locks_and_forks_in_many_threads_do_not_deadlock() {
	timeout 60 "$TESTS/host" -s 1 "$PROBES/threads" fork "$D" 8 12 >"$W/out" 2>"$W/err"
	status_is 0 $? "$(cat "$W/out")" "$W/err"
	assertNoKeys
}

test_python_s_subprocess_changes_nothing_in_the_parent() {
	# It vforks and closes descriptors in the child, which shares the parent's memory.
	spawn 1 NETFLOCK_TTL=1s python3 -c 'if 1:
		import fcntl, os, subprocess, sys
		f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX); os.mkdir(sys.argv[2])
		while os.path.isdir(sys.argv[2]): subprocess.run(["sleep", "0.02"], check=True, close_fds=True)
		fcntl.flock(f, fcntl.LOCK_UN)' "$F" "$W/shared/py"; local p=$PID
	must '[ -d $W/shared/py ]'
	keeps "$F" 1500 "while children come and go"
	assertEquals 1 "$(busy "$F")"
	freed_by 'rmdir "$W/shared/py"; wait '$p'; assertEquals 0 $?'
}

# asan: no: a spawned child is in lifetime.sh (execs spawn)
test_python_s_pass_fds_hands_the_lock_on() {
	local how
	for how in os._exit sys.exit; do
		H 1 NETFLOCK_TTL=1s python3 -c 'if 1:
			import fcntl, subprocess, sys, os
			f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX)
			subprocess.Popen(["sleep", "60"], pass_fds=[f.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
			'$how'(0)' "$D/$how"
		assertEquals "$how" 0 $?
	done
	stays 'held "$D/os._exit" && held "$D/sys.exit"' 1500 "held by the subprocess:"
	assertEquals 1 "$(busy "$D/sys.exit")"
	freed_by kill_strays "$D/os._exit" "$D/sys.exit"
}

test_a_copy_under_another_number_keeps_the_lock() {
	holder NETFLOCK_TTL=1s
	ask a dup x y >/dev/null; ask a dupfd x z >/dev/null
	ask a close x >/dev/null; ask a close y >/dev/null
	keeps "$F" 1500 "one copy is left"
	freed_by 'ask a close z >/dev/null'
}

# asan: no: the paths of a copy under another number
test_closing_everything_above_frees_no_lock_below() {
	holder NETFLOCK_TTL=1s
	ask a open n r /dev/null >/dev/null; ask a closefrom n >/dev/null
	keeps "$F" 1500 "after closefrom"
	freed_by 'assertEquals OK "$(ask a flock x UN)"'
}

test_a_pre_forking_server_that_locks_before_it_forks() {
	# The workers accept in turn under the parent's description: one lock for all of them, until the last is gone.
	local i workers server='if 1:
		import fcntl, os, sys, time
		f = open(sys.argv[1], "a")
		try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
		except BlockingIOError: sys.exit(3)
		for i in range(3):
		    if os.fork() == 0: time.sleep(60)
		time.sleep(60)'
	spawn 1 NETFLOCK_TTL=1s python3 -c "$server" "$F"; local p=$PID
	must '[ "$(pgrep -P '$p' | count)" = 3 ]'
	H 2 python3 -c "$server" "$F"; assertEquals "on host 2" 3 $?
	workers=$(pgrep -P $p)
	kill -KILL $p; { wait $p; } 2>/dev/null
	for i in $(echo "$workers" | head -n 2); do
		keeps "$F" 300 "while workers are left"
		kill -KILL "$i"
	done
	keeps "$F" 1500 "while one is left"
	H 2 python3 -c "$server" "$F"; assertEquals "the last worker still has it" 3 $?
	freed_by kill_strays
}

. /usr/share/shunit2/shunit2
