#!/bin/bash
# Where the kernel refuses to lock: protection by Redis alone, or an error; never a success on one layer only.
# shellcheck disable=SC2046 # $(no ...) stands for several words
. "$(dirname "$0")/../lib.sh"

no() { echo "$PROBES/noflock $1"; }   # a kernel that says this error to flock
KINDS='ENOSYS ENOLCK EOPNOTSUPP'

# (asan: no: nothing of ours runs)
test_the_probe_does_what_it_says() {
	local e
	for e in $KINDS; do
		bare 1 $(no $e) flock -n "$F" true 2>"$W/err"; assertNotEquals "$e" 0 $?
	done
	bare 1 $(no EBADF:EX) flock -n -s "$F" true; assertEquals "shared is allowed" 0 $?
}

test_all_three_are_protected_or_told_and_nothing_is_left() {
	local e
	local -A pid
	for e in $KINDS; do spawn 1 NETFLOCK_TTL=1s $(no $e) flock "$D/$e" sleep 60 2>/dev/null; pid[$e]=$PID; done
	for e in $KINDS; do
		must "held '$D/$e' || ! kill -0 ${pid[$e]} 2>/dev/null"
		kill -0 "${pid[$e]}" 2>/dev/null || { { wait "${pid[$e]}"; RC=$?; } 2>/dev/null; assertNotEquals "$e: told" 0 $RC; unset "pid[$e]"; continue; }
		H 1 $(no $e) flock -n "$D/$e" true; assertEquals "$e: a second on host 1" 1 $?
		H 2 $(no $e) flock -n "$D/$e" true; assertEquals "$e: one on host 2" 1 $?
		H 2 flock -n "$D/$e" true; assertEquals "$e: one on host 2 whose kernel locks" 1 $?
	done
	local all=true; for e in "${!pid[@]}"; do all="$all && held '$D/$e'"; done
	stays "$all" 1500
	for e in "${!pid[@]}"; do pkill -P "${pid[$e]}"; kill "${pid[$e]}" 2>/dev/null; { wait "${pid[$e]}"; } 2>/dev/null; done
	assertNoKeys
}

test_redis_alone_excludes_two_programs_of_one_host_and_readers_share() {
	spawn 1 $(no ENOSYS) flock -s "$F" sleep 60; local p=$PID
	wait_held "$F"
	H 1 $(no ENOSYS) flock -n -s "$F" true; assertEquals "a reader" 0 $?
	H 1 $(no ENOSYS) flock -n "$F" true; assertEquals "a writer" 1 $?
	H 2 flock -n "$F" true; assertEquals "a writer on host 2" 1 $?
}

test_require_gives_the_kernel_s_error() {
	H 1 NETFLOCK_LOCAL=require $(no ENOSYS) flock -n "$F" true 2>"$W/err"; assertNotEquals 0 $?
	H 1 NETFLOCK_LOCAL=require $(no ENOSYS) python3 -c 'import errno,fcntl,sys
f = open(sys.argv[1], "a")
try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print("OK")
except OSError as e: print(errno.errorcode[e.errno])' "$F" >"$W/out" 2>/dev/null
	assertEquals ENOSYS "$(cat "$W/out")"
	assertNoKeys
}

test_off_does_not_ask_the_kernel() {
	spawn 1 NETFLOCK_LOCAL=off $(no EIO) flock "$F" sleep 60; wait_held "$F"
	H 1 NETFLOCK_LOCAL=off $(no EIO) flock -n "$F" true; assertEquals "the same host" 1 $?
	H 2 NETFLOCK_LOCAL=off flock -n "$F" true; assertEquals "another" 1 $?
	bare 1 flock -n "$F" true; assertEquals "the kernel knows nothing" 0 $?
}

test_without_the_kernel_a_lock_lives_as_long_as_the_processes_that_inherited_it() {
	local go; mkfifo "$W/go"; exec {go}<>"$W/go"
	H 1 NETFLOCK_TTL=1s $(no ENOSYS) bash -c "exec 9>$F; flock 9; { read -r _ <'$W/go'; } >/dev/null 2>&1 & exit 0"
	keeps "$F" 1500
	H 2 $(no ENOSYS) flock -n "$F" true; assertEquals 1 $?
	echo >&"$go"; exec {go}>&-; rm "$W/go"
	assertNoKeys # freed at the child's end
}

test_without_the_kernel_unlock_and_close_free_it() {
	H 1 $(no ENOSYS) python3 -c 'if 1:
		import fcntl, sys
		for i in range(20):
		    f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
		    if i % 2: fcntl.flock(f, fcntl.LOCK_UN)
		    f.close()' "$F"
	assertEquals 0 $?
	assertNoKeys
}

test_without_the_kernel_a_killed_holder_s_lock_ends_with_the_lease() {
	spawn 1 NETFLOCK_TTL=1s $(no ENOSYS) flock -F "$F" sleep 60; local p=$PID
	wait_held "$F"
	kill -KILL $p; { wait $p; } 2>/dev/null
	H 2 $(no ENOSYS) flock -w "$PATIENCE" "$F" true; assertEquals 0 $?
}

test_a_shadow_folder_takes_the_local_step() {
	mkdir -m 700 "$W/shadow"
	spawn 1 NETFLOCK_LOCAL="$W/shadow" flock "$F" sleep 60; local p=$PID
	wait_held "$F"
	bare 1 flock -n "$F" true; assertEquals "the file itself is not locked" 0 $?
	H 1 NETFLOCK_LOCAL="$W/shadow" flock -n "$F" true; assertEquals "the same host" 1 $?
	H 2 NETFLOCK_LOCAL="$W/shadow2" flock -n "$F" true; assertEquals "another host" 1 $?
	pkill -P $p; kill $p 2>/dev/null; { wait $p; } 2>/dev/null
	assertNoKeys
}

test_an_unsafe_shadow_folder_is_refused() {
	mkdir -m 777 "$W/unsafe"; chmod 777 "$W/unsafe"
	H 1 NETFLOCK_LOCAL="$W/unsafe" flock -n "$F" true 2>"$W/err"; assertNotEquals 0 $?
	assertContains "$(cat "$W/err")" "$W/unsafe"
	assertNoKeys
}

. /usr/share/shunit2/shunit2
