#!/bin/bash
# The keeper: nobody sees it, there is one for a file, and it is gone when the lock is.
. "$(dirname "$0")/../lib.sh"

HOLD='import fcntl,sys,time; f=open(sys.argv[1],"a"); fcntl.flock(f,fcntl.LOCK_EX); print("in",flush=True); time.sleep(60)'

# A lock that only a keeper looks after: its taker is gone, a child sleeps on the descriptor.
left_behind() { H 1 bash -c "exec 9>$F; flock ${1:-} 9; sleep 60 >/dev/null 2>&1 & exit 0"; }

test_sigkill_frees_other_hosts_at_once_when_there_is_a_keeper_from_the_start() {
	spawn 1 NETFLOCK_KEEPER=always python3 -c "$HOLD" "$F" >"$W/out"
	must 'grep -q in $W/out'
	assertEquals 1 "$(busy "$F")"
	kill -KILL $PID
	wait_free "$F"
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
	local k
	# A child without the pipe holds the lock on; were the keeper to have it, cat would wait for the child.
	for k in auto always; do
		timeout $PATIENCE bash -c '"$@" | cat >/dev/null' sh "$TESTS/host" -s 1 NETFLOCK_KEEPER=$k \
			bash -c "exec 9>$D/$k; flock 9; sleep 99 >/dev/null 2>&1 & echo x"
		assertEquals "NETFLOCK_KEEPER=$k: cat's end" 0 $?
		held "$D/$k" || fail "NETFLOCK_KEEPER=$k: held on"
	done
}

test_it_has_no_descriptor_of_the_program_and_its_own_session() {
	local k fds
	exec 7>"$W/shared/sevens"
	left_behind
	exec 7>&-
	guarded; k=$(keepers)
	fds=$(ls -l "/proc/$k/fd" | sed 's/.*-> //')
	assertNotContains "$fds" sevens
	assertNotContains "$fds" "$NFTEST.*log"
	assertEquals "pipes and terminals" "" "$(echo "$fds" | grep -e '^/dev/pts' -e '^/dev/tty' -e "$W/.*out")"
	assertNotEquals "a session of its own" "$(ps -o sid= -p $$ | tr -d ' ')" "$(ps -o sid= -p "$k" | tr -d ' ')"
	assertEquals "no terminal" '?' "$(ps -o tty= -p "$k" | tr -d ' ')"
	assertNotContains "the folder it started in is not kept busy" "$(readlink "/proc/$k/cwd")" "$W"
}

test_neither_signals_to_the_program_s_group_nor_a_hang_up_of_its_terminal_end_it() {
	local group was i
	# A child in a session of its own has the lock.
	local child="setsid sh $W/child"
	echo 'mkdir "$1"; exec sleep 60' >"$W/child"
	export NF_TTL=1s
	spawn 1 setsid bash -c "exec 9>$D/g; flock 9; $child $W/shared/g & sleep 60" 2>/dev/null; group=$PID
	# script(1) gives the shell a terminal, which goes away with it.
	spawn 1 script -qc "bash -c \"exec 9>$D/t; flock 9; $child $W/shared/t & until [ -d $W/shared/t ]; do sleep 0.02; done\"" /dev/null >/dev/null
	{ wait $PID; } 2>/dev/null
	must '[ -d $W/shared/g ] && [ -d $W/shared/t ]'
	tokens() { for i in g t; do R get "lock:$D/$i"; fence_of "$D/$i"; done; }
	was=$(tokens)
	for i in HUP INT QUIT TERM KILL; do kill -$i -- -$group; done
	{ wait $group; } 2>/dev/null
	stays '[ "$(R exists "lock:$D/g" "lock:$D/t")" = 2 ]' 1500 "the children have the locks:"
	assertEquals "the same tokens and fences" "$was" "$(tokens)"
	unset NF_TTL
}

test_it_is_gone_when_the_lock_is_and_leaves_no_zombie() {
	spawn 1 NETFLOCK_KEEPER=always bash -c "for i in 1 2 3 4 5; do flock $F true; done; exec 9>$F; flock 9; flock -u 9; touch $W/shared/z; sleep 60"
	must '[ -e $W/shared/z ]'
	must '[ -z "$(keepers)" ]' $PATIENCE "no keeper is left;"
	assertEquals "zombies of the program" "" "$(ps -o stat= --ppid $PID | grep Z)"
	assertNoKeys
}

test_one_keeper_serves_all_sharers_of_a_file() {
	local i
	for i in 1 2 3 4 5; do left_behind -s; done
	must '[ "$(keepers | count)" = 1 ]' $PATIENCE "one keeper;"
	H 2 flock -n "$F" true; assertEquals "a writer elsewhere" 1 $?
	H 2 flock -n -s "$F" true; assertEquals "a reader elsewhere" 0 $?
	for i in $(strays); do is_keeper "$i" || kill -KILL "$i"; done
	wait_free "$F"
	assertNoKeys
}

# asan: no: the readers' paths are those of the test before; many rounds
test_a_long_chain_of_overlapping_readers_neither_piles_up_keepers_nor_shuts_a_writer_out() {
	# LONG=1 does the thousand. What keepers say goes to a file here, or it would be in the system's log.
	local most=0 n reads=40 log=$W/shared/chainlog; [ -z "${LONG:-}" ] || reads=1000
	spawn 1 NETFLOCK_LOG="$log" bash -c "for j in 1 2; do (for ((i = 0; i < $reads / 2; i++)); do
		flock -s $F sh -c '[ ! -e $W/shared/writes ] && sleep 0.05 && [ ! -e $W/shared/writes ]' || echo \$? >>$W/shared/chainbad; done) & done; wait"; local chain=$PID
	wait_held "$F"
	# Readers of one host may join its tenure past a waiting writer, so when that one gets in is chance while the
	# chain goes on; at the chain's end at the latest it must.
	spawn 2 NETFLOCK_LOG="$log" flock "$F" sh -c "touch $W/shared/writes; sleep 0.1; rm $W/shared/writes; mkdir $W/shared/written"; local w=$PID
	while kill -0 $chain 2>/dev/null; do
		n=$(keepers | count); [ "$n" -le $most ] || most=$n
		nap 0.02
	done
	# Four at most on a machine with time for each to leave; were they to pile up there would be one for each reader.
	assertTrue "keepers at a time: $most" "[ $most -ge 1 ] && [ $most -lt $((reads / 3)) ]"
	wait $chain
	must '[ -d $W/shared/written ]' $PATIENCE "the writer;"
	wait $w; assertEquals "a writer on another host" 0 $?
	assertNoKeys
	assertFalse "readers that failed, or met the writer" '[ -e $W/shared/chainbad ]'
	assertEquals "nothing is said" "" "$(cat "$log" 2>/dev/null)"
}

# asan: no: the paths of the next one; many rounds
test_flock_a_then_flock_n_b_always_works() {
	# A keeper that looks at the kernel's lock must not be felt. It is felt once in some 400 rounds if nobody asks it; LONG=1
	# does the ten thousand.
	local n=200; [ -z "${LONG:-}" ] || n=10000
	H 1 NETFLOCK_LOG="$W/shared/roundslog" bash -c "for ((i = 0; i < $n; i++)); do flock $F true; flock -n $F true || { echo \$i; exit 1; }; done" >"$W/out"
	status_is 0 $? "round" "$W/out"
	assertEquals "nothing is said" "" "$(cat "$W/shared/roundslog" 2>/dev/null)"
}

test_flock_with_a_descriptor_then_flock_n_always_works() {
	H 1 bash -c "for ((i = 0; i < 100; i++)); do (flock 9; true) 9>$F; flock -n $F true || { echo \$i; exit 1; }; done" >"$W/out"
	status_is 0 $? "round" "$W/out"
}

test_never_means_that_no_keeper_is_started() {
	H 1 NETFLOCK_KEEPER=never bash -c "exec 9>$F; flock 9; sleep 60 & exit 0"
	held "$F" || fail "the lease is expected to run on"
	assertEquals "" "$(keepers)"
}

. /usr/share/shunit2/shunit2
