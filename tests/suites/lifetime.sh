#!/bin/bash
# The lock between hosts lives as long as the kernel's lock: whoever has the descriptor, whatever became of the
# process that took it. Leases are short here, so that a lock that nobody renews any more would be seen to go.
. "$(dirname "$0")/../lib.sh"

export NF_TTL=1s

# still_held MS [FILE]: without a gap, for that long.
still_held() {
	local end=$(($(now_ms) + $1)) f=${2:-$F}
	while [ "$(now_ms)" -lt "$end" ]; do
		held "$f" || { fail "the key of $f is gone"; return; }
		sleep 0.05
	done
	assertEquals "host 2 on $f" 1 "$(busy "$f")"
}
soon_free() { must '[ "$(busy "$F")" = 0 ]' 1 "free within a second of the end;"; must '[ -z "$(leftover_keys)" ]' 2; }
end_all() { local p; for p in $(strays); do is_keeper "$p" || kill -KILL "$p" 2>/dev/null; done; }

test_a_subshell_s_lock_is_taken_by_a_command_that_is_gone_at_once() {
	spawn 1 bash -c "(flock 9; touch $W/shared/a; sleep 3) 9>$F"
	must '[ -e $W/shared/a ]'
	still_held 2300
	wait $PID; soon_free
}

test_exec_9_and_flock_n_9() {
	spawn 1 bash -c "exec 9>$F; flock -n 9 || exit 9; touch $W/shared/b; sleep 3"
	must '[ -e $W/shared/b ]'
	still_held 2300
	wait $PID; assertEquals 0 $?; soon_free
}

test_a_descriptor_chosen_by_bash() {
	spawn 1 bash -c "exec {fd}>$F; flock \$fd; touch $W/shared/c; sleep 3"
	must '[ -e $W/shared/c ]'
	still_held 2300
	wait $PID; soon_free
}

test_dash_which_vforks() {
	spawn 1 dash -c "exec 9>$F; flock 9; touch $W/shared/d; sleep 3"
	must '[ -e $W/shared/d ]'
	still_held 2300
	wait $PID; soon_free
}

test_a_lock_that_is_left_to_a_background_child() {
	spawn 1 bash -c "exec 9>$F; flock 9; sleep 3 & exit 0"; local p=$PID
	wait $p
	still_held 2300
	must '[ "$(busy "$F")" = 0 ]' 2
	assertNoKeys
}

test_a_child_that_closes_the_descriptor_does_not_keep_the_lock() {
	H 1 bash -c "exec 9>$F; flock 9; sleep 60 9>&- & exit 0"
	soon_free
	end_all
	H 1 flock -o "$F" bash -c 'sleep 60 & exit 0'
	soon_free
}

test_a_daemon_inherits_the_descriptor() {
	need tmux || return 0
	local t="tmux -S $W/shared/tmux -f /dev/null"
	H 1 bash -c "exec 9>$F; flock 9; $t new -d 'sleep 3'"
	still_held 2000
	must '[ "$(busy "$F")" = 0 ]' 4; assertNoKeys
	H 1 bash -c "exec 9>$F; flock 9; $t new -d 'sleep 30' 9>&-"
	soon_free
	$t kill-server 2>/dev/null
	H 1 flock -o "$F" $t new -d 'sleep 30'
	soon_free
	$t kill-server 2>/dev/null
}

test_unlocking_by_a_child_ends_it_at_once() {
	spawn 1 NETFLOCK_TTL=20s bash -c "exec 9>$F; flock 9; touch $W/shared/u1; until [ -e $W/shared/u2 ]; do sleep 0.02; done
		flock -u 9; touch $W/shared/u3; sleep 60"
	must '[ -e $W/shared/u1 ]'
	assertEquals 1 "$(busy "$F")"
	touch "$W/shared/u2"; must '[ -e $W/shared/u3 ]'
	assertEquals "at once" 0 "$(busy "$F")"
	assertNoKeys
}

test_relocking_after_a_child_unlocked() {
	spawn 1 bash -c "exec 9>$F; for i in 1 2 3 4 5; do flock -n 9 || exit 9; flock -u 9 || exit 8; done; flock -n 9 || exit 7
		touch $W/shared/rl; sleep 60"
	must '[ -e $W/shared/rl ]'
	still_held 1500
}

test_the_whole_exec_family_with_a_descriptor_that_survives() {
	local how n=0
	for how in execl execlp execle execv execvp execve execvpe fexecve execveat spawn spawnp system popen vfork; do
		H 1 "$PROBES/execs" $how "$D/$how" >"$W/out.$how" 2>&1 &
	done
	for how in execl execlp execle execv execvp execve execvpe fexecve execveat spawn spawnp system popen vfork; do
		must "grep -qs in $W/out.$how"
	done
	sleep 1.6     # more than a lease
	for how in execl execlp execle execv execvp execve execvpe fexecve execveat spawn spawnp system popen vfork; do
		assertEquals "after $how: $(cat "$W/out.$how")" 1 "$(busy "$D/$how")"
	done
	assertEquals "programs that run" 14 "$(strays_named sleep)"
	end_all
	must '[ -z "$(leftover_keys)" ]' 3 "all freed;"
}
strays_named() { local p n=0; for p in $(strays); do [ "$(cat /proc/$p/comm 2>/dev/null)" = "$1" ] && n=$((n + 1)); done; echo $n; }

test_exec_with_a_descriptor_that_does_not_survive_frees_the_lock() {
	local how
	for how in execl execv execve fexecve execveat spawn vfork; do
		H 1 NETFLOCK_TTL=20s "$PROBES/execs" $how "$F" cloexec >"$W/out" 2>&1 &
		must 'grep -q in $W/out'
		must '[ "$(busy "$F")" = 0 ]' 1.5 "free after $how;"
		end_all
	done
	assertNoKeys
}

test_a_failed_exec_changes_nothing() {
	spawn 1 "$PROBES/execs" failing "$F" >"$W/out"
	must 'grep -q failed $W/out'
	still_held 2000
	kill -KILL $PID; soon_free
}

test_a_lock_is_kept_by_a_static_program_that_was_execed() {
	spawn 1 PROGRAM="$PROBES/static" "$PROBES/execs" execv "$F" >"$W/out"; local p=$PID
	must '[ "$(cat /proc/$p/comm)" = static ]'
	still_held 2300
	kill -KILL $p; soon_free
}

test_flock_F_which_execs() {
	spawn 1 flock -F "$F" sleep 3; wait_held "$F"
	still_held 2300
	wait $PID; soon_free
}

test_a_descriptor_that_was_passed_to_an_unrelated_process() {
	cat >"$W/pass.py" <<-'S'
		import fcntl, os, socket, sys, time
		if sys.argv[1] == "recv":
		    s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[2]); s.listen()
		    c = s.accept()[0]; fds = socket.recv_fds(c, 1, 1)[1]
		    open(sys.argv[2] + ".got", "w").close(); time.sleep(60)
		f = os.open(sys.argv[3], os.O_RDWR | os.O_CREAT); fcntl.flock(f, fcntl.LOCK_EX)
		s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[2]); socket.send_fds(s, [b"x"], [f])
		while not os.path.exists(sys.argv[2] + ".got"): time.sleep(0.01)
	S
	spawn 1 python3 "$W/pass.py" recv "$W/s"; local r=$PID
	must '[ -S $W/s ]'
	H 1 python3 "$W/pass.py" send "$W/s" "$F"; assertEquals 0 $?
	still_held 2300
	kill -KILL $r; soon_free
}

test_a_file_unlinked_while_a_child_holds_it_still_excludes_by_its_path() {
	spawn 1 bash -c "exec 9>$F; flock 9; rm $F; sleep 3 & exit 0"; wait $PID
	touch "$HOSTS/1/x"
	still_held 2000
	H 1 flock -n "$F" true; assertEquals "the new file on the same host" 1 $?
	must '[ "$(busy "$F")" = 0 ]' 3; assertNoKeys
}

test_a_dead_host_s_shared_lock_ends_with_the_lease() {
	spawn 1 NETFLOCK_TTL=1500ms setsid flock -s "$F" sleep 99
	spawn 3 NETFLOCK_TTL=1500ms flock -s "$F" sleep 99; local reader=$PID
	must '[ "$(R zcard "lock:$F")" = 2 ]'
	# The whole host dies: program, child and keeper in one blow.
	local p; for p in $(strays); do grep -qs 'HOSTN=1' "/proc/$p/environ" && kill -KILL "$p"; done
	for p in $(guards) $(keepers); do grep -qs "hosts/1 " "/proc/$p/mountinfo" && kill -KILL "$p"; done
	H 2 flock -w 2.5 "$F" true; assertEquals "a living reader elsewhere still blocks" 1 $?
	assertEquals "the dead one is gone" 1 "$(R zcard "lock:$F")"
	kill $reader $(pgrep -P $reader)
	timed H 2 flock -w 10 "$F" true
	assertEquals 0 $RC
	assertBetween milliseconds 0 3000 $MS
	assertNoKeys
}

test_a_frozen_holder_is_told_and_touches_nobody_else_s_lock() {
	spawn 1 NETFLOCK_KEEPER=never NETFLOCK_ON_LOST=log NETFLOCK_TTL=1s python3 -c \
		'import fcntl,sys,time; f=open(sys.argv[1],"a"); fcntl.flock(f,2); open(sys.argv[2],"w"); time.sleep(60)' \
		"$F" "$W/shared/frozen" 2>"$W/err"
	local p=$PID
	must '[ -e $W/shared/frozen ]'
	kill -STOP $p
	timed H 2 flock "$F" true; assertBetween "in within the lease and a second" 0 2200 $MS
	spawn 2 NETFLOCK_TTL=20s flock "$F" sleep 60; wait_held "$F"; local t; t=$(R get "lock:$F")
	kill -CONT $p
	must 'grep -q "$F" $W/err' 3 "the loss is said;"
	assertEquals "host 2's token" "$t" "$(R get "lock:$F")"
	kill -TERM $p; { wait $p; } 2>/dev/null
	assertEquals "and after the loser's end" "$t" "$(R get "lock:$F")"
}

. /usr/share/shunit2/shunit2
