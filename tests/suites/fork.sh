#!/bin/bash
# fork, threads, and descriptors that are copied, passed and closed around a lock.
. "$(dirname "$0")/../lib.sh"

export NF_TTL=1s

holder() {
	actor a 1 "$@"
	assertEquals OK "$(ask a open x c "$F")"
	assertEquals OK "$(ask a flock x EX)"
}
for_a_while() { # longer than a lease
	local end=$(($(now_ms) + 1600))
	while [ "$(now_ms)" -lt $end ]; do held "$F" || { fail "$1: the key is gone"; return; }; sleep 0.05; done
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
	must '[ -z "$(leftover_keys)" ]' 3
}

test_a_child_that_closes_its_copy_leaves_the_parent_s_lock() {
	holder
	ask a fork l >/dev/null
	assertEquals OK "$(ask a close x)"
	assertEquals 1 "$(busy "$F")"
	ask a exit 0 >/dev/null
	for_a_while "after the child"
	assertEquals OK "$(ask a close x)"
	must '[ "$(busy "$F")" = 0 ]' 1.5; assertNoKeys
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
	holder
	assertEquals OK "$(ask a orphan)"
	for_a_while "held by the child"
	assertEquals 1 "$(busy "$F")"
	assertEquals OK "$(ask a flock x UN)"
	must '[ "$(busy "$F")" = 0 ]' 1.5; assertNoKeys
}

test_a_child_upgrades_and_downgrades_the_parent_s_lock() {
	actor a 1
	ask a open x c "$F" >/dev/null; assertEquals OK "$(ask a flock x SH)"
	ask a fork l >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	H 2 flock -n -s "$F" true; assertEquals "a reader elsewhere" 1 $?
	ask a exit 0 >/dev/null
	for_a_while "after the upgrade"
	H 2 flock -n -s "$F" true; assertEquals "still exclusive" 1 $?
	assertEquals OK "$(ask a flock x SH)"
	H 2 flock -n -s "$F" true; assertEquals "a reader after the downgrade" 0 $?
}

test_locks_and_forks_in_many_threads_do_not_deadlock() {
	timed timeout 60 "$TESTS/host" -s 1 "$PROBES/threads" fork "$D" 8 12 >"$W/out" 2>"$W/err"
	assertEquals "$(cat "$W/out") $(cat "$W/err")" 0 $RC
	must '[ -z "$(leftover_keys)" ]' 4
}

test_python_s_subprocess_changes_nothing_in_the_parent() {
	# It vforks and closes descriptors in the child, which shares the parent's memory.
	H 1 python3 -c 'if 1:
		import fcntl, subprocess, sys, time
		f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX); open(sys.argv[2], "w")
		end = time.time() + 2.5
		while time.time() < end: subprocess.run(["true"], check=True, close_fds=True)
		fcntl.flock(f, fcntl.LOCK_UN)' "$F" "$W/shared/py" & local p=$!
	must '[ -e $W/shared/py ]'
	for_a_while "while children come and go"
	assertEquals 1 "$(busy "$F")"
	wait $p; assertEquals 0 $?
	must '[ -z "$(leftover_keys)" ]' 3
}

test_python_s_pass_fds_hands_the_lock_on() {
	H 1 python3 -c 'if 1:
		import fcntl, subprocess, sys, os
		f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX)
		subprocess.Popen(["sleep", "60"], pass_fds=[f.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
		os._exit(0)' "$F"
	for_a_while "held by the subprocess"
	assertEquals 1 "$(busy "$F")"
}

test_a_copy_under_another_number_keeps_the_lock() {
	holder
	ask a dup x y >/dev/null; ask a dupfd x z >/dev/null
	ask a close x >/dev/null; ask a close y >/dev/null
	for_a_while "one copy is left"
	ask a close z >/dev/null
	must '[ "$(busy "$F")" = 0 ]' 1.5; assertNoKeys
}

test_closing_everything_above_frees_no_lock_below() {
	holder
	ask a open n r /dev/null >/dev/null; ask a closefrom n >/dev/null
	for_a_while "after closefrom"
	assertEquals OK "$(ask a flock x UN)"
	assertNoKeys
}

test_a_pre_forking_server_that_locks_before_it_forks() {
	# The workers accept in turn under the parent's description: one lock for all of them, until the last is gone.
	H 1 python3 -c 'if 1:
		import fcntl, os, sys, time
		f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX)
		for i in range(4):
		    if os.fork() == 0: time.sleep(0.6 * (i + 1)); os._exit(0)
		os._exit(0)' "$F"
	for_a_while "held by the workers"
	must '[ "$(busy "$F")" = 0 ]' 3; must '[ -z "$(leftover_keys)" ]' 2
}

. /usr/share/shunit2/shunit2
