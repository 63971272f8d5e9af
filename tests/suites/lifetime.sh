#!/bin/bash
# The lock between hosts lives as long as the kernel's lock: whoever has the descriptor, whatever became of the
# process that took it. Leases are short here, so that a lock that nobody renews any more would be seen to go.
. "$(dirname "$0")/../lib.sh"

# Leases are short where a test looks for longer than one whether a lock is renewed; elsewhere they do not end.
end_all() { local p; for p in $(strays); do is_keeper "$p" || kill -KILL "$p" 2>/dev/null; done; }
soon_free() { wait_free "$F"; assertNoKeys; }

# All these at once, each with a file of its own: a while later each still has it, and when the last descriptor is gone it
# is freed. Each says with a folder that it has the lock.
test_a_lock_stays_as_long_as_somebody_has_its_descriptor() {
	local i files=()
	has() { # NAME CMD...
		local name=$1; shift
		spawn 1 NETFLOCK_TTL=1s "$@"
		files+=("$D/$name") last=$PID
	}
	local last in=$W/shared/in
	mkdir "$in"
	has subshell bash -c "(flock 9; mkdir $in/subshell; sleep 60) 9>$D/subshell" # the locker is gone at once
	has exec9 bash -c "exec 9>$D/exec9; flock -n 9 || exit 9; mkdir $in/exec9; sleep 60"
	has chosen bash -c "exec {fd}>$D/chosen; flock \$fd; mkdir $in/chosen; sleep 60"
	has dash dash -c "exec 9>$D/dash; flock 9; mkdir $in/dash; sleep 60" # vforks
	has child bash -c "exec 9>$D/child; flock 9; mkdir $in/child; sleep 60 & exit 0"
	has again bash -c "exec 9>$D/again; for i in 1 2 3 4 5; do flock -n 9 || exit 9; flock -u 9 || exit 8; done; flock -n 9 || exit 7
		mkdir $in/again; sleep 60"
	has execs flock -F "$D/execs" sh -c "mkdir $in/execs; exec sleep 60"
	has failing "$PROBES/execs" failing "$D/failing" >"$W/out"
	has static PROGRAM="$PROBES/static" "$PROBES/execs" execv "$D/static" >/dev/null; local static=$last
	has passed python3 -c 'if 1:
		import fcntl, os, socket, sys, time
		f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); fcntl.flock(f, fcntl.LOCK_EX)
		s = socket.socket(socket.AF_UNIX)
		while s.connect_ex(sys.argv[2]): time.sleep(0.01)
		socket.send_fds(s, [b"x"], [f]); s.recv(1)' "$D/passed" "$W/s"; local sender=$last
	bare 1 python3 -c 'if 1:
		import os, socket, sys, time
		s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()
		c = s.accept()[0]; fds = socket.recv_fds(c, 1, 1)[1]; c.send(b"x")
		os.mkdir(sys.argv[2]); time.sleep(60)' "$W/s" "$in/passed" & # unrelated to the sender, and without the shim
	for i in subshell exec9 chosen dash child again execs passed; do must "[ -d $in/$i ]" $PATIENCE "$i:"; done
	must 'grep -q failed $W/out'
	must 'comm_is '$static' static'
	{ wait $sender; } 2>/dev/null
	stays '[ "$(R exists "${files[@]/#/lock:}")" = ${#files[@]} ]' 1500 "all are held:"
	for i in "${files[@]}"; do held "$i" || fail "the key of $i is gone"; done
	assertEquals "host 2" 1 "$(busy "$D/subshell")"
	freed_by end_all "${files[@]}"
}

test_a_child_that_closes_the_descriptor_does_not_keep_the_lock() {
	H 1 bash -c "exec 9>$F; flock 9; sleep 60 9>&- & exit 0"
	soon_free
	end_all
	H 1 flock -o "$F" bash -c 'sleep 60 & exit 0'
	soon_free
}

# asan: no: a child and its parent's end, as in the tests above, by another program
test_a_daemon_inherits_the_descriptor() {
	need tmux || return 0
	local t="tmux -S $W/shared/tmux -f /dev/null"
	H 1 NETFLOCK_TTL=1s bash -c "exec 9>$F; flock 9; $t new -d 'sleep 60'"
	keeps "$F" 1500
	freed_by "$t kill-server"
	H 1 bash -c "exec 9>$F; flock 9; $t new -d 'sleep 60' 9>&-"
	soon_free
	$t kill-server 2>/dev/null
	H 1 flock -o "$F" $t new -d 'sleep 60'
	soon_free
	$t kill-server 2>/dev/null
}

test_unlocking_by_a_child_ends_it_at_once() {
	spawn 1 bash -c "exec 9>$F; flock 9; touch $W/shared/u1; until [ -e $W/shared/u2 ]; do sleep 0.02; done
		flock -u 9; touch $W/shared/u3; sleep 60"
	must '[ -e $W/shared/u1 ]'
	assertEquals 1 "$(busy "$F")"
	touch "$W/shared/u2"; must '[ -e $W/shared/u3 ]'
	assertEquals "at once" 0 "$(busy "$F")"
	assertNoKeys
}

test_the_whole_exec_family_with_a_descriptor_that_survives() {
	local how files=()
	local family="execl execlp execle execv execvp execve execvpe fexecve execveat spawn spawnp system popen vfork"
	for how in $family; do
		H 1 NETFLOCK_TTL=1s "$PROBES/execs" $how "$D/$how" >"$W/out.$how" 2>&1 &
		files+=("$D/$how")
	done
	for how in $family; do must "grep -qs in $W/out.$how"; done
	stays '[ "$(R exists "${files[@]/#/lock:}")" = 14 ]' 1500 "all are held:"
	for how in $family; do held "$D/$how" || fail "after $how: $(cat "$W/out.$how")"; done
	assertEquals "host 2" 1 "$(busy "$D/vfork")"
	assertEquals "programs that run" 14 "$(named sleep | count)"
	freed_by end_all "${files[@]}"
}

test_exec_with_a_descriptor_that_does_not_survive_frees_the_lock() {
	local how
	for how in execl execv execve fexecve execveat spawn vfork; do
		H 1 "$PROBES/execs" $how "$D/$how" cloexec >"$W/out.$how" 2>&1 &
	done
	for how in execl execv execve fexecve execveat spawn vfork; do
		must "grep -qs in $W/out.$how"
		wait_free "$D/$how"
	done
	must '[ "$(named sleep | count)" = 7 ]' $PATIENCE "the programs run;"
	assertNoKeys
}

test_a_file_unlinked_while_a_child_holds_it_still_excludes_by_its_path() {
	spawn 1 NETFLOCK_TTL=1s bash -c "exec 9>$F; flock 9; rm $F; sleep 60 & exit 0"; wait $PID
	touch "$HOSTS/1/x"
	keeps "$F" 1500
	assertEquals "host 2" 1 "$(busy "$F")"
	H 1 flock -n "$F" true; assertEquals "the new file on the same host" 1 $?
	freed_by end_all
}

test_a_dead_host_s_shared_lock_ends_with_the_lease() {
	local p
	spawn 1 NETFLOCK_TTL=1s setsid flock -s "$F" sleep 99
	spawn 3 NETFLOCK_TTL=1s flock -s "$F" sleep 99; local reader=$PID
	must '[ "$(R zcard "lock:$F")" = 2 ]'
	local dead; dead=$(R zrange "lock:$F" 0 -1 | grep :host1:)
	assertNotNull "its token" "$dead"
	# The whole host dies: program, child and keeper in one blow.
	for p in $(strays); do grep -qs 'HOSTN=1' "/proc/$p/environ" && kill -KILL "$p"; done
	for p in $(guards) $(keepers); do grep -qs "hosts/1 " "/proc/$p/mountinfo" && kill -KILL "$p"; done
	spawn 2 flock "$F" mkdir "$W/shared/writer"; local writer=$PID
	must '[ "$(R zscore "lock:$F" '"'$dead'"')" = "" ]' $PATIENCE "the dead one is gone;"
	keeps "$F" 1500 "a living reader elsewhere still blocks"
	assertFalse "it is not let in" "[ -d $W/shared/writer ]"
	kill $reader $(pgrep -P $reader)
	must '[ -d $W/shared/writer ]'
	wait $writer
	assertNoKeys
}

test_a_frozen_holder_is_told_and_touches_nobody_else_s_lock() {
	spawn 1 NETFLOCK_KEEPER=never NETFLOCK_ON_LOST=log NETFLOCK_TTL=1s python3 -c \
		'import fcntl,sys,time; f=open(sys.argv[1],"a"); fcntl.flock(f,2); open(sys.argv[2],"w"); time.sleep(60)' \
		"$F" "$W/shared/frozen" 2>"$W/err"
	local p=$PID t
	must '[ -e $W/shared/frozen ]'
	kill -STOP $p
	spawn 2 flock "$F" sh -c "mkdir $W/shared/thawed; exec sleep 60"
	must '[ -d $W/shared/thawed ]' $PATIENCE "in, when the lease is over;"
	t=$(R get "lock:$F")
	kill -CONT $p
	must 'grep -q "$F" $W/err' $PATIENCE "the loss is said;"
	assertEquals "host 2's token" "$t" "$(R get "lock:$F")"
	kill -TERM $p; { wait $p; } 2>/dev/null
	assertEquals "and after the loser's end" "$t" "$(R get "lock:$F")"
}

. /usr/share/shunit2/shunit2
