#!/bin/bash
# The hand-over to a keeper goes wrong: no such program, one that refuses, messages that are none. The lock holds as long as
# its process lives, one line says what is the matter, and a keeper outlives whatever is said to it.
. "$(dirname "$0")/../lib.sh"

export NF_TTL=1s
ALONE=$W/alone

# keeper_is SCRIPT|-: the library beside this keeper; "-": beside none.
keeper_is() {
	rm -rf "$ALONE"; mkdir -p "$ALONE"
	cp "$SO" "$ALONE/libnetflock.so"
	[ "$1" = - ] || printf '#!/bin/bash\n%s\n' "$1" >"$ALONE/netflock-keeper"
	chmod 755 "$ALONE"/*
}

# holds_alone MESSAGE: a program forks with a lock, and lives: it renews the lock itself; says so in one line.
holds_alone() {
	rm -rf "$W/shared/in"
	spawn 1 LD_PRELOAD="${TEST_ASAN:+$TEST_ASAN:}$ALONE/libnetflock.so" python3 -c 'if 1:
		import fcntl, os, sys, time
		f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX)
		for i in range(3):
		    if os.fork() == 0: os._exit(0)
		os.mkdir(sys.argv[2]); time.sleep(60)' "$F" "$W/shared/in" 2>"$W/err"
	local p=$PID end
	must '[ -d $W/shared/in ]' 25 "$1: it goes on;"
	end=$(($(now_ms) + 1500)) # more than a lease
	while [ "$(now_ms)" -lt $end ]; do held "$F" || { fail "$1: the key is gone"; break; }; sleep 0.05; done
	assertEquals "$1: another host" 1 "$(busy "$F")"
	assertEquals "$1: $(cat "$W/err")" 1 "$(grep -c . "$W/err")"
	assertTrue "$1: $(cat "$W/err")" "grep -q \"netflock-keeper could not take over lock:$F .*$2.*will not outlive this process\" '$W/err'"
	kill -KILL $p; { wait $p; } 2>/dev/null
	must '[ "$(busy "$F")" = 0 ]' 3 "$1, the lease ends:"
	assertNoKeys
}

test_no_keeper_beside_the_library() { keeper_is -; holds_alone "none" "error 2"; }
test_a_keeper_that_may_not_be_executed() { keeper_is :; chmod 644 "$ALONE/netflock-keeper"; holds_alone "not executable" "error 13"; }
test_a_keeper_that_is_no_program() {
	keeper_is -; echo nonsense >"$ALONE/netflock-keeper"; chmod 755 "$ALONE/netflock-keeper"; holds_alone "nonsense" "error 8"
	keeper_is -; mkdir "$ALONE/netflock-keeper"; holds_alone "a folder" "error 13"
}
test_a_keeper_that_ends_at_once() { keeper_is 'exit 0'; holds_alone "ends" "error 32"; }
test_a_keeper_that_refuses() { keeper_is 'printf N >&$1; read x <&$1'; holds_alone "refuses" "error 71"; }
test_a_keeper_that_answers_nonsense() { keeper_is 'printf MMMMMMMM >&$1'; holds_alone "a lot" "error 32"; }
test_a_keeper_that_never_answers() {
	keeper_is 'exec sleep 7'
	rm -rf "$W/shared/in"
	timed H 1 LD_PRELOAD="${TEST_ASAN:+$TEST_ASAN:}$ALONE/libnetflock.so" flock "$F" true 2>"$W/err"
	assertEquals "it works" 0 $RC
	assertBetween "milliseconds, at fork and at exit" 4000 13000 $MS
	assertEquals "$(cat "$W/err")" 1 "$(grep -c "could not take over" "$W/err")"
}

# A keeper that takes its time to start.
slow_keeper() { keeper_is "sleep $1; exec '$LIBDIR/netflock-keeper' \"\$@\""; }
slowly() { bare 1 LD_PRELOAD="${TEST_ASAN:+$TEST_ASAN:}$ALONE/libnetflock.so" NETFLOCK_PREFIX="$D" NETFLOCK_URL="$NF_URL" "$@"; }

test_fork_does_not_wait_for_the_keeper_and_a_killed_program_s_lock_lives_on_in_its_child() {
	slow_keeper 1
	slowly NETFLOCK_TTL=2500ms python3 -c 'if 1:
		import fcntl, os, signal, sys, time
		f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX)
		t = time.monotonic(); pid = os.fork(); t = time.monotonic() - t
		if pid == 0: time.sleep(60)
		print("fork", "fast" if t < 0.7 else t, flush=True)
		os.kill(os.getpid(), signal.SIGKILL)' "$F" >"$W/out" 2>&1
	assertEquals "fork fast" "$(head -1 "$W/out")"
	local end=$(($(now_ms) + 3500)) # more than a lease
	while [ "$(now_ms)" -lt $end ]; do held "$F" || { fail "the key is gone"; break; }; sleep 0.05; done
	assertEquals "another host" 1 "$(busy "$F")"
	kill_strays
	must '[ "$(busy "$F")" = 0 ]' 2 "freed at the end:"
	assertNoKeys
}

test_what_comes_after_a_fork_finds_the_keeper_there() {
	local how
	slow_keeper 1.5
	for how in 'os._exit(0)' 'sys.exit(0)' 'os.execvp("true", ["true"])' 'fcntl.flock(f, fcntl.LOCK_UN)' 'os.close(f)'; do
		H 2 sh -c ": >$F"
		slowly NETFLOCK_TTL=20s python3 -c "if 1:
			import fcntl, os, sys
			f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); fcntl.flock(f, fcntl.LOCK_SH)
			if os.fork() == 0: os._exit(0)
			os.wait()
			$how
			os.spawnvp(os.P_WAIT, sys.argv[2], sys.argv[2:])" "$F" "$TESTS/host" -s 2 flock -n "$F" touch "$W/shared/at-once" >"$W/out" 2>&1
		# What ends the program starts nothing more.
		case $how in *exit* | *exec*) must '[ "$(busy "$F")" = 0 ]' 1 "$how, freed:" ;; *) assertTrue "$how: $(cat "$W/out")" '[ -e $W/shared/at-once ]' ;; esac
		rm -f "$W/shared/at-once"
		assertNoKeys
	done
}

test_a_host_that_closes_everything_after_a_fork_keeps_its_lock() {
	slow_keeper 0.4
	spawn 1 LD_PRELOAD="${TEST_ASAN:+$TEST_ASAN:}$ALONE/libnetflock.so" python3 -c 'if 1:
		import fcntl, os, sys, time
		f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX)
		if os.fork() == 0: os._exit(0)
		os.closerange(f.fileno() + 1, 5000)
		data = [open(sys.argv[2] + str(i), "w") for i in range(5)]
		for i in range(20): os.dup2(data[0].fileno(), 1000 + i)
		os.mkdir(sys.argv[2]); time.sleep(60)' "$F" "$W/shared/closed" 2>"$W/err"
	must '[ -d $W/shared/closed ]'
	local end=$(($(now_ms) + 2000)) # more than a lease
	while [ "$(now_ms)" -lt $end ]; do held "$F" || { fail "the key is gone"; break; }; sleep 0.05; done
	assertEquals "another host" 1 "$(busy "$F")"
	assertEquals "nothing is said" "" "$(cat "$W/err")"
	assertEquals "its files are open" 20 "$(find "/proc/$PID/fd" -lname '*closed0' -name '10[01]?' | count)"
	assertEquals "and nothing is written to them" 0 "$(cat "$W"/shared/closed? | wc -c)"
	kill_strays
	must '[ "$(busy "$F")" = 0 ]' 3 "freed at the end:"
	assertNoKeys
	rm -r "$W"/shared/closed*
}

# address: the abstract address of the keeper of $F.
address() { awk '$8 ~ /^@netflock:/ { print substr($8, 2) }' /proc/net/unix | grep -i ":$(printf %x "$(stat -c %i "$HOSTS/1/x")"):" | head -1; }
kept() { spawn 1 NETFLOCK_LOG="$W/shared/log" bash -c "exec 9>$F; flock 9; sleep 60 & exit 0"; wait $PID; must '[ -n "$(keepers)" ]'; }

test_a_keeper_outlives_short_and_garbled_messages() {
	kept
	local k; k=$(keepers)
	H 1 flock -n "$F" true # asks the keeper: the last message that it has seen is a good one
	python3 - "$(address)" "$HOSTS/1/x" "lock:$F" >"$W/out" 2>&1 <<-'S'
		import os, socket, struct, sys
		MAGIC = 0x6e666b31
		def send(m):
		    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
		    s.settimeout(5)
		    s.connect("\0" + sys.argv[1])
		    try: s.send(m); return s.recv(9)
		    except (ConnectionError, BrokenPipeError): return b""
		bad = 0
		for n in (1, 3, 4, 8, 40, 63, 64, 100, 300, 420, 500, 1000, 4000, 8600, 9000):
		    for m in (bytes(n), b"\xff" * n, os.urandom(n)):
		        bad += send(m) not in (b"", b"N")
		    for kind in range(7):
		        bad += send((struct.pack("II", MAGIC, kind) + bytes(n))) not in (b"", b"N")
		        bad += send((struct.pack("II", MAGIC, kind) + b"\xff" * n)) not in (b"", b"N")
		# About the right file, but too short or too long: its end must not be taken from the message before.
		st = os.stat(sys.argv[2])
		for kind in range(1, 6):
		    head = struct.pack("IIQQqq6iI", MAGIC, kind, st.st_dev, st.st_ino, 0, 0, -1, -1, 0, -1, -1, 0, len(sys.argv[3]))
		    for n in range(0, 700, 7):
		        bad += send(head + bytes(n)) not in (b"", b"N")
		for i in range(20): # one that connects and says nothing must not hold up the others for long
		    globals()["s%d" % i] = s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
		    s.connect("\0" + sys.argv[1]); s.close() if i % 2 else None
		print("bad", bad)
	S
	assertEquals "each is refused" "bad 0" "$(cat "$W/out")"
	assertEquals "the keeper" "$k" "$(keepers)"
	sleep 1.2 # more than a lease, for which the keeper must have found the time
	assertEquals "held on another host" 1 "$(busy "$F")"
	H 1 flock -n "$F" true; assertEquals "on the same one" 1 $?
	assertEquals "nothing is said" "" "$(cat "$W/shared/log" 2>/dev/null)"
}

test_a_stranger_cannot_talk_to_a_keeper() {
	kept
	local k; k=$(keepers)
	setpriv --reuid=65534 --regid=65534 --clear-groups python3 - "$(address)" >"$W/out" 2>&1 <<-'S'
		import socket, sys
		s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
		s.connect("\0" + sys.argv[1])
		try: s.send(b"x" * 100)
		except OSError: pass
		try: print(s.recv(9))
		except ConnectionResetError: print(b"")
	S
	assertEquals "no answer" "b''" "$(cat "$W/out")"
	assertEquals "the keeper" "$k" "$(keepers)"
	assertEquals "held on another host" 1 "$(busy "$F")"
}

test_a_stranger_with_the_keeper_s_address_disturbs_no_lock() {
	kept
	local a; a=$(address)
	kill_strays; must '[ -z "$(keepers)" ]'; rm -rf "$W/shared/squats" "$W/shared/log"
	setpriv --reuid=65534 --regid=65534 --clear-groups python3 -c 'if 1:
		import socket, sys
		s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
		s.bind("\0" + sys.argv[1]); s.listen(50); print("squats", flush=True)
		while True:
		    c = s.accept()[0]
		    print(c.recv(9999), flush=True)' "$a" >"$W/out" 2>&1 &
	local squatter=$!
	must 'grep -q squats $W/out'
	H 1 NETFLOCK_LOG="$W/shared/log" flock "$F" true; assertEquals "a short lock" 0 $?
	assertNoKeys
	spawn 1 NETFLOCK_LOG="$W/shared/log2" bash -c "exec 9>$F; flock -s 9; sleep 60 & flock -s 9; exit 0"; wait $PID
	sleep 1.2 # more than a lease
	assertEquals "held on another host" 1 "$(busy "$F")"
	assertEquals "$(cat "$W/shared/log")" 1 "$(grep -c "another user has the address of the keeper of lock:$F" "$W/shared/log")"
	assertEquals "$(cat "$W/shared/log")" 1 "$(count <"$W/shared/log")"
	assertEquals "it was told nothing" "" "$(grep -v -e squats -e "b''" "$W/out")"
	local p; for p in $(strays); do is_keeper "$p" || [ "$p" = $squatter ] || kill -KILL "$p"; done
	must '[ "$(busy "$F")" = 0 ]' 3 "freed at the end:"
	assertNoKeys
	kill $squatter
}

. /usr/share/shunit2/shunit2
