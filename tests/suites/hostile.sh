#!/bin/bash
# Programs that close everything, run out of descriptors, run many threads, or kill themselves on a broken pipe.
. "$(dirname "$0")/../lib.sh"

test_a_program_that_closes_everything_and_opens_its_own_files_keeps_its_lock_and_its_data() {
	# 3...1023 are closed, but for the lock; then twenty files are opened and filled.
	cat >"$W/closer.py" <<-'S'
		import fcntl, os, sys, time
		lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); os.dup2(lock, 900); lock = 900
		fcntl.flock(lock, fcntl.LOCK_EX)
		for n in range(3, 1024):
		    if n != lock:
		        try: os.close(n)
		        except OSError: pass
		files = [os.open("%s/data%d" % (sys.argv[2], i), os.O_RDWR | os.O_CREAT | os.O_TRUNC) for i in range(20)]
		open(sys.argv[2] + "/in", "w").close()
		end = time.time() + 2.5
		while time.time() < end:
		    for i, f in enumerate(files): os.pwrite(f, b"%d" % i, 0)
		    time.sleep(0.1)
		for i, f in enumerate(files):
		    assert os.fstat(f).st_size == len(b"%d" % i), (i, os.fstat(f).st_size)
		    assert os.pread(f, 100, 0) == b"%d" % i
		    os.close(f)
		open(sys.argv[2] + "/fine", "w").close()
		time.sleep(60)
	S
	spawn 1 NETFLOCK_TTL=1s python3 "$W/closer.py" "$F" "$W/shared"
	must '[ -e $W/shared/in ]'
	must '[ -e $W/shared/fine ]'
	assertEquals 1 "$(busy "$F")"
}

test_a_program_without_a_free_descriptor_gets_a_clean_error() {
	H 1 python3 -c 'if 1:
		import errno, fcntl, os, resource, sys
		resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
		f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
		more = []
		try:
		    while True: more.append(os.dup(0))
		except OSError: pass
		try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print("OK")
		except OSError as e: print(errno.errorcode[e.errno])
		for m in more: os.close(m)
		fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print("OK")' "$F" >"$W/out" 2>/dev/null
	assertEquals 0 $?
	assertTrue "first: $(head -1 "$W/out")" 'head -1 $W/out | grep -qx -e ENOLCK -e OK -e EMFILE'
	assertEquals "with descriptors again" OK "$(tail -1 "$W/out")"
	assertNoKeys
}

test_ulimit_n_64_is_enough() {
	local n
	for n in 64 16; do
		assertEquals "ulimit -n $n" 1 "$(H 1 bash -c "ulimit -n $n; flock -n $F redis-cli -s $SOCK exists lock:$F")"
	done
}

test_bash_redirections_after_a_lock() {
	spawn 1 NETFLOCK_TTL=1s bash -c "exec 9>$F; flock 9; exec 3>/dev/null 4>/dev/null 10>/dev/null 63>/dev/null 255>/dev/null
		touch $W/shared/bash; sleep 30"
	must '[ -e $W/shared/bash ]'
	keeps "$F" 1500
}

test_a_server_that_hangs_up_kills_no_program() {
	# A write to a closed connection is SIGPIPE, by default the end.
	# The new server knows nothing of the lock: that may be a loss, and by default the end too.
	actor a 1 NETFLOCK_TTL=1s NETFLOCK_ON_LOST=log 2>"$W/err"
	ask a open x c "$F" >/dev/null; ask a open y c "$D/y" >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	redis_stop
	ask a close y >/dev/null
	redis_start
	must 'held "$F" || grep -q "lost the lock" "$W/err"' # it has been at the server
	assertTrue "it lives" 'kill -0 ${ACT_PID[a]}'
	ask a open z c "$D/z" >/dev/null
	assertEquals OK "$(ask a flock z 'EX|NB')"
	assertEquals OK "$(ask a flock z UN)"
}

test_many_threads_on_many_files() {
	H 1 "$PROBES/threads" storm "$D" 16 40 >"$W/out" 2>"$W/err"
	status_is 0 $? "" "$W/err"
	assertEquals "failed 0 overlaps 0" "$(cat "$W/out")"
	assertNoKeys
}

test_many_threads_on_two_hosts() {
	spawn 1 "$PROBES/threads" storm "$D" 8 30 >"$W/out1" 2>&1; local p1=$PID
	spawn 2 "$PROBES/threads" storm "$D" 8 30 >"$W/out2" 2>&1; local p2=$PID
	# own files are tried with LOCK_NB, and both hosts have some of the same name: there EWOULDBLOCK is right.
	wait $p1; wait $p2
	assertContains "$(cat "$W/out1")" "overlaps 0"
	assertContains "$(cat "$W/out2")" "overlaps 0"
	assertEquals "other errors" "" "$(grep -hv -e EAGAIN -e failed "$W/out1" "$W/out2")"
	assertNoKeys
}

# aside OTHER EVENT: one thread waits for $F, which another host has, until EVENT is true. Then another closes files, and locks
# OTHER, sixty times. A call that stood behind the waiting one would never come back, or only whenever that asks again, and
# sixty times that is longer than a test's patience.
aside() {
	rm -f "$W/go"; mkfifo "$W/go"; exec 8<>"$W/go"
	# (Not by spawn, which has no input.)
	"$TESTS/host" -s 2 NETFLOCK_CONNECT_TIMEOUT=5m "$PROBES/threads" aside "$F" "$1" 60 <"$W/go" >"$W/out" 2>"$W/err" & PID=$!
	must "$2"
	echo >&8
	must '[ -s "$W/out" ]' "" "it is held up:"
	assertEquals "failed 0" "$(cat "$W/out" "$W/err")"
	exec 8>&-
}
sleeping() { [ "$(R info clients | tr -d '\r' | sed -n 's/^blocked_clients://p')" = 1 ]; }
has_a_socket() { find "/proc/$PID/fd" -lname 'socket:*' 2>/dev/null | grep -q .; }

test_a_thread_that_waits_for_another_host_holds_up_no_close() {
	spawn 1 flock "$F" sleep 60; wait_held "$F"
	aside "$W/shared/other" 'sleeping && kill -STOP "$REDIS_PID"' # so it waits for ever
	kill -CONT "$REDIS_PID"
}

test_a_thread_that_waits_for_a_frozen_server_holds_up_no_close() {
	kill -STOP "$REDIS_PID"
	aside "$W/shared/other" has_a_socket
	kill -CONT "$REDIS_PID"
}

test_a_lock_held_by_another_host_does_not_hold_up_another_lock_under_the_prefix() {
	spawn 1 flock "$F" sleep 60; wait_held "$F"
	aside "$D/free" sleeping
}

test_a_bound_thread_stack_and_a_closed_stderr() {
	H 1 bash -c "ulimit -s 256; flock -n $F true"; assertEquals "small stack" 0 $?
	H 1 bash -c "exec 2>&- 1>&- 0<&-; flock -n $F true"; assertEquals "no standard descriptors" 0 $?
	# What we open must not end up as descriptor 0...2 of a program that closed those.
	H 1 NETFLOCK_TTL=10s bash -c "exec 2>&- 1>&- 0<&-; exec 9>$F; flock -n 9; ls -l /proc/\$\$/fd/0 /proc/\$\$/fd/1 /proc/\$\$/fd/2 >$W/shared/fds"
	assertNotContains "$(cat "$W/shared/fds")" socket
}

. /usr/share/shunit2/shunit2
