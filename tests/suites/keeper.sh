#!/bin/bash
# The keeper: nobody sees it, there is one for a file, and it is gone when the lock is.
. "$(dirname "$0")/../lib.sh"

HOLD='import fcntl,sys,time; f=open(sys.argv[1],"a"); fcntl.flock(f,fcntl.LOCK_EX); print("in",flush=True); time.sleep(60)'

# A lock that only a keeper looks after: its taker is gone, a child sleeps on the descriptor.
left_behind() { H 1 NETFLOCK_TTL="${1:-20s}" bash -c "exec 9>$F; flock ${2:-} 9; sleep 60 >/dev/null 2>&1 & exit 0"; }

test_sigkill_frees_other_hosts_at_once_when_there_is_a_keeper_from_the_start() {
	local p t0 i
	for i in 1 2 3; do
		: >"$W/out"
		spawn 1 NETFLOCK_KEEPER=always NETFLOCK_TTL=20s python3 -c "$HOLD" "$F" >"$W/out"; p=$PID
		must 'grep -q in $W/out'
		assertEquals 1 "$(busy "$F")"
		kill -KILL $p; t0=$(now_ms)
		wait_until '! held "$F"' 2 || fail "not freed"
		assertBetween "milliseconds (50 are meant; this machine is busy)" 0 250 $(($(now_ms) - t0))
		{ wait $p; } 2>/dev/null
	done
	assertNoKeys
}

test_a_program_notices_nothing_of_it() {
	local k
	for k in always auto; do
		assertEquals "NETFLOCK_KEEPER=$k" fine "$(H 1 NETFLOCK_KEEPER=$k "$PROBES/unseen" "$F")"
	done
	assertNoKeys
}

test_a_pipe_s_reader_sees_the_end_when_the_program_is_gone() {
	local t
	# A child without the pipe holds the lock on; were the keeper to have it, cat would wait for 60 s.
	timed bash -c '"$@" | cat >/dev/null' sh "$TESTS/host" -s 1 bash -c "exec 9>$F; flock 9; sleep 60 >/dev/null 2>&1 & echo x"
	assertBetween milliseconds 0 3000 $MS
	assertEquals 1 "$(busy "$F")"
	timed bash -c '"$@" | cat >/dev/null' sh "$TESTS/host" -s 1 NETFLOCK_KEEPER=always bash -c "exec 9>$D/y; flock 9; sleep 60 >/dev/null 2>&1 & echo x"
	assertBetween milliseconds 0 3000 $MS
}

test_it_has_no_descriptor_of_the_program_and_its_own_session() {
	local k fds
	exec 7>"$W/shared/sevens"
	left_behind
	exec 7>&-
	must '[ -n "$(keepers)" ]'; k=$(keepers)
	fds=$(ls -l "/proc/$k/fd" | sed 's/.*-> //')
	assertNotContains "$fds" sevens
	assertNotContains "$fds" "$NFTEST.*log"
	assertEquals "pipes and terminals" "" "$(echo "$fds" | grep -e '^/dev/pts' -e '^/dev/tty' -e "$W/.*out")"
	assertNotEquals "a session of its own" "$(ps -o sid= -p $$ | tr -d ' ')" "$(ps -o sid= -p "$k" | tr -d ' ')"
	assertEquals "no terminal" '?' "$(ps -o tty= -p "$k" | tr -d ' ')"
	assertEquals "one keeper" 1 "$(echo "$k" | count)"
	assertNotContains "the folder it started in is not kept busy" "$(readlink "/proc/$k/cwd")" "$W"
}

test_it_survives_signals_to_the_program_s_group() {
	left_behind 1s
	spawn 1 NETFLOCK_TTL=1s timeout -k 1 0.5 bash -c "exec 9>$D/t; flock 9; setsid sleep 60 >/dev/null 2>&1 & sleep 60"
	{ wait $PID; } 2>/dev/null
	sleep 1.5   # more than the lease
	assertEquals "the child in its own session still has it" 1 "$(busy "$D/t")"
}

test_a_hang_up_of_the_terminal_does_not_end_it() {
	# script(1) gives the shell a terminal, which goes away with it.
	spawn 1 NETFLOCK_TTL=1s script -qc "bash -c 'exec 9>$F; flock 9; setsid sleep 60 & sleep 0.1'" /dev/null >/dev/null
	wait $PID
	sleep 1.5
	assertEquals 1 "$(busy "$F")"
}

test_it_is_gone_when_the_lock_is_and_leaves_no_zombie() {
	spawn 1 NETFLOCK_KEEPER=always bash -c "for i in 1 2 3 4 5; do flock $F true; done; exec 9>$F; flock 9; flock -u 9; touch $W/shared/z; sleep 60"
	must '[ -e $W/shared/z ]'
	must '[ -z "$(keepers)" ]' 3 "no keeper is left;"
	assertEquals "zombies of the program" "" "$(ps -o stat= --ppid $PID | grep Z)"
	assertNoKeys
}

test_one_keeper_serves_all_sharers_of_a_file() {
	local i
	for i in 1 2 3 4 5 6; do left_behind 20s -s; done
	sleep 0.3
	assertEquals "keepers" 1 "$(keepers | count)"
	H 2 flock -n "$F" true; assertEquals "a writer elsewhere" 1 $?
	H 2 flock -n -s "$F" true; assertEquals "a reader elsewhere" 0 $?
	for i in $(strays); do is_keeper "$i" || kill -KILL "$i"; done
	must '[ "$(busy "$F")" = 0 ]' 2
	assertNoKeys
}

test_a_long_chain_of_overlapping_readers_neither_piles_up_keepers_nor_shuts_a_writer_out() {
	# LONG=1 does the thousand. What keepers say goes to a file here, or it would be in the system's log.
	local most=0 n reads=80 log=$W/shared/chainlog; [ -z "${LONG:-}" ] || reads=1000
	spawn 1 NETFLOCK_LOG="$log" bash -c "for j in 1 2; do (for ((i = 0; i < $reads / 2; i++)); do
		flock -s $F sh -c '[ ! -e $W/shared/writes ] && sleep 0.05 && [ ! -e $W/shared/writes ]' || echo \$? >>$W/shared/chainbad; done) & done; wait"; local chain=$PID
	wait_held "$F"
	# Readers of one host may join its tenure past a waiting writer, so when that one gets in is chance while the
	# chain goes on; at the chain's end at the latest it must.
	spawn 2 NETFLOCK_LOG="$log" flock -w 120 "$F" sh -c "touch $W/shared/writes; sleep 0.1; rm $W/shared/writes"; local w=$PID
	while kill -0 $chain 2>/dev/null; do
		n=$(keepers | count); [ "$n" -le $most ] || most=$n
	done
	assertBetween "keepers at a time" 1 4 $most
	wait $chain
	wait $w; assertEquals "a writer on another host" 0 $?
	must '[ -z "$(leftover_keys)" ]' 5
	assertFalse "readers that failed, or met the writer" '[ -e $W/shared/chainbad ]'
	assertEquals "nothing is said" "" "$(cat "$log" 2>/dev/null)"
}

test_flock_a_then_flock_n_b_always_works() {
	# A keeper that looks at the kernel's lock must not be felt. LONG=1 does the ten thousand.
	local n=400; [ -z "${LONG:-}" ] || n=10000
	H 1 NETFLOCK_LOG="$W/shared/roundslog" bash -c "for ((i = 0; i < $n; i++)); do flock $F true; flock -n $F true || { echo \$i; exit 1; }; done" >"$W/out"
	status_is 0 $? "round" "$W/out"
	assertEquals "nothing is said" "" "$(cat "$W/shared/roundslog" 2>/dev/null)"
}

test_flock_with_a_descriptor_then_flock_n_always_works() {
	H 1 bash -c "for ((i = 0; i < 200; i++)); do (flock 9; true) 9>$F; flock -n $F true || { echo \$i; exit 1; }; done" >"$W/out"
	status_is 0 $? "round" "$W/out"
}

test_the_fence_and_the_token_stay_when_a_keeper_takes_over() {
	local t f
	spawn 1 bash -c "exec 9>$F; flock 9; until [ -e $W/shared/k1 ]; do sleep 0.02; done; sleep 60 & exec sleep 61"
	wait_held "$F"; t=$(R get "lock:$F"); f=$(R get "netflock:{lock:$F}:fence")
	touch "$W/shared/k1"; must '[ -n "$(keepers)" ]'
	sleep 0.3
	assertEquals "$t" "$(R get "lock:$F")"
	assertEquals "$f" "$(R get "netflock:{lock:$F}:fence")"
}

test_never_means_that_no_keeper_is_started() {
	H 1 NETFLOCK_KEEPER=never NETFLOCK_TTL=1s bash -c "exec 9>$F; flock 9; sleep 3 & exit 0"
	held "$F" || fail "the lease is expected to run on"
	assertEquals "" "$(keepers)"
}

test_without_the_keeper_s_program_a_lock_still_works_and_it_is_said() {
	mkdir -p "$W/alone"; cp "$SO" "$W/alone/"
	bare 1 LD_PRELOAD="${TEST_ASAN:+$TEST_ASAN:}$W/alone/libnetflock.so" NETFLOCK_PREFIX="$D" NETFLOCK_URL="$NF_URL" NETFLOCK_TTL=2s \
		flock -n "$F" sh -c 'exit 5' 2>"$W/err"
	status_is 5 $? "the command runs" "$W/err"
	assertTrue "a line about it" 'grep -q keeper $W/err'
	must '[ -z "$(leftover_keys)" ]' 5
}

. /usr/share/shunit2/shunit2
