#!/bin/bash
# The hand-over to a keeper goes wrong: no such program, one that refuses, messages that are none. The lock holds as long as
# its process lives, one line says what is the matter, and a keeper outlives whatever is said to it.
. "$(dirname "$0")/../lib.sh"

# keeper_is NAME SCRIPT|-: the folder $W/NAME has the library beside this keeper; "-": beside none.
keeper_is() {
	mkdir -p "$W/$1"
	cp "$SO" "$W/$1/libnetflock.so"
	[ "$2" = - ] || printf '#!/bin/bash\n%s\n' "$2" >"$W/$1/netflock-keeper"
	chmod 755 "$W/$1"/*
}
# with NAME [VAR=VALUE...] CMD...: on host 1, with that folder's library.
with() { spawn 1 LD_PRELOAD="${TEST_ASAN:+$TEST_ASAN:}$W/$1/libnetflock.so" "${@:2}"; }

# goes_on NAME: a program forks with a lock on $D/NAME, and lives.
goes_on() {
	with "$1" NETFLOCK_TTL=1s python3 -c 'if 1:
		import fcntl, os, sys, time
		f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX)
		for i in range(3):
		    if os.fork() == 0: os._exit(0)
		os.mkdir(sys.argv[2]); time.sleep(60)' "$D/$1" "$W/shared/$1" 2>"$W/$1/err"
	ALONE+=("$D/$1") PIDS+=("$PID")
}
said() { # NAME ERROR
	assertEquals "$1: $(cat "$W/$1/err")" 1 "$(grep -c . "$W/$1/err")"
	assertTrue "$1: $(cat "$W/$1/err")" "grep -q \"netflock-keeper could not take over lock:$D/$1 .*error $2\\>.*will not outlive this process\" '$W/$1/err'"
}

test_whatever_is_wrong_with_the_keeper_the_program_renews_its_lock_itself_and_says_so_once() {
	local name p ALONE=() PIDS=()
	keeper_is none -
	keeper_is not_executable :; chmod 644 "$W/not_executable/netflock-keeper"
	keeper_is no_program -; echo nonsense >"$W/no_program/netflock-keeper"; chmod 755 "$W/no_program/netflock-keeper"
	keeper_is folder -; mkdir "$W/folder/netflock-keeper"
	keeper_is ends_at_once 'exit 0'
	keeper_is refuses 'printf N >&$1; read x <&$1'
	keeper_is nonsense 'printf MMMMMMMM >&$1'
	# An unlock waits for its answer, but not for ever: it sleeps on when the program is gone.
	keeper_is silent 'exec sleep 999'
	with silent timeout $PATIENCE python3 -c 'if 1:
		import fcntl, os, sys
		f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_SH)
		if os.fork() == 0: os._exit(0)
		fcntl.flock(f, fcntl.LOCK_UN)' "$D/silent" 2>"$W/silent/err"; local silent=$PID
	for name in none not_executable no_program folder ends_at_once refuses nonsense; do goes_on $name; done
	for name in "${ALONE[@]##*/}"; do must "[ -d $W/shared/$name ]" $PATIENCE "$name: it goes on;"; done
	stays '[ "$(R exists "${ALONE[@]/#/lock:}")" = ${#ALONE[@]} ]' 1500 "they have their locks:"
	assertEquals "another host" 1 "$(busy "$D/none")"
	said none 2
	said not_executable 13
	said no_program 8
	said folder 13
	said ends_at_once 32
	said refuses 71
	said nonsense 32
	kill -KILL "${PIDS[@]}"
	wait $silent; assertEquals "it works with a silent one" 0 $?
	assertEquals "$(cat "$W/silent/err")" 1 "$(grep -c "could not take over" "$W/silent/err")"
	assertEquals "which is still there" 1 "$(named sleep | count)"
	assertNoKeys # the other leases end
}

# A keeper that takes its time to start.
slow_keeper() { keeper_is slow "$1; exec '$LIBDIR/netflock-keeper' \"\$@\""; }

test_fork_does_not_wait_for_the_keeper_and_a_killed_program_s_lock_lives_on_in_its_child() {
	# It starts when the program is dead. Later what it keeps is freed, and not by the lease's end: so it has taken over.
	slow_keeper "until [ -d $W/shared/dead ]; do sleep 0.02; done"
	with slow python3 -c 'if 1:
		import fcntl, os, signal, sys, time
		f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX)
		if os.fork() == 0: time.sleep(60)
		os.kill(os.getpid(), signal.SIGKILL)' "$F" 2>"$W/err"
	{ wait $PID; } 2>/dev/null
	held "$F" || fail "the child has it"
	mkdir "$W/shared/dead"
	must '[ -n "$(keepers)" ]'
	assertEquals "another host" 1 "$(busy "$F")"
	assertEquals "nothing is said" "" "$(cat "$W/err")"
	freed_by kill_strays
}

test_what_comes_after_a_fork_finds_the_keeper_there() {
	local how i=0 pids=()
	slow_keeper "sleep 1"
	for how in 'os._exit(0)' 'sys.exit(0)' 'os.execvp("true", ["true"])' 'fcntl.flock(f, fcntl.LOCK_UN)' 'os.close(f)'; do
		with slow python3 -c "if 1:
			import fcntl, os, sys
			f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); fcntl.flock(f, fcntl.LOCK_SH)
			if os.fork() == 0: os._exit(0)
			os.wait()
			$how
			os.spawnvp(os.P_WAIT, sys.argv[2], sys.argv[2:])" "$D/$i" "$TESTS/host" -s 2 flock -n "$D/$i" touch "$W/shared/at-once$i" >"$W/out$i" 2>&1
		pids+=("$PID") i=$((i + 1))
	done
	wait "${pids[@]}"
	# What ends the program starts nothing more.
	for i in 0 1 2; do wait_free "$D/$i"; done
	for i in 3 4; do assertTrue "$i: $(cat "$W/out$i")" "[ -e $W/shared/at-once$i ]"; done
	assertNoKeys
}

test_a_host_that_closes_everything_after_a_fork_keeps_its_lock() {
	slow_keeper "sleep 0.4"
	with slow NETFLOCK_TTL=1s python3 -c 'if 1:
		import fcntl, os, sys, time
		f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX)
		if os.fork() == 0: os._exit(0)
		os.closerange(f.fileno() + 1, 5000)
		data = [open(sys.argv[2] + str(i), "w") for i in range(5)]
		for i in range(20): os.dup2(data[0].fileno(), 1000 + i)
		os.mkdir(sys.argv[2]); time.sleep(60)' "$F" "$W/shared/closed" 2>"$W/err"
	local p=$PID
	must '[ -d $W/shared/closed ]'
	keeps "$F" 1500
	assertEquals "another host" 1 "$(busy "$F")"
	assertEquals "nothing is said" "" "$(cat "$W/err")"
	assertEquals "its files are open" 20 "$(find "/proc/$p/fd" -lname '*closed0' -name '10[01]?' | count)"
	assertEquals "and nothing is written to them" 0 "$(cat "$W"/shared/closed? | wc -c)"
	kill_strays
	wait_free "$F"
	assertNoKeys
	rm -r "$W"/shared/closed*
}

# address: the abstract address of the keeper of $F.
address() { awk '$8 ~ /^@netflock:/ { print substr($8, 2) }' /proc/net/unix | grep -i ":$(printf %x "$(stat -c %i "$HOSTS/1/x")"):" | head -1; }
kept() { spawn 1 NETFLOCK_TTL=1s NETFLOCK_LOG="$W/shared/log" bash -c "exec 9>$F; flock 9; sleep 60 & exit 0"; wait $PID; guarded; }

test_a_keeper_outlives_short_and_garbled_messages() {
	kept
	local k; k=$(keepers)
	H 1 flock -n "$F" true # asks the keeper: the last message that it has seen is a good one
	python3 - "$(address)" "$HOSTS/1/x" "lock:$F" >"$W/out" 2>&1 <<-'S'
		import os, socket, struct, sys
		MAGIC = 0x6e666b31
		def send(m):
		    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
		    s.settimeout(30)
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
	keeps "$F" 1500 # it must have found the time to renew
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
	spawn 1 NETFLOCK_TTL=1s NETFLOCK_LOG="$W/shared/log2" bash -c "exec 9>$F; flock -s 9; sleep 60 & flock -s 9; exit 0"; wait $PID
	keeps "$F" 1500
	assertEquals "held on another host" 1 "$(busy "$F")"
	assertEquals "$(cat "$W/shared/log")" 1 "$(grep -c "another user has the address of the keeper of lock:$F" "$W/shared/log")"
	assertEquals "$(cat "$W/shared/log")" 1 "$(count <"$W/shared/log")"
	assertEquals "it was told nothing" "" "$(grep -v -e squats -e "b''" "$W/out")"
	local p; for p in $(strays); do is_keeper "$p" || [ "$p" = $squatter ] || kill -KILL "$p"; done
	wait_free "$F"
	assertNoKeys
	kill $squatter
}

. /usr/share/shunit2/shunit2
