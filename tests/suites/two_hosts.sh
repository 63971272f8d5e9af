#!/bin/bash
# The main job: a program on one host excludes the same program on another.
. "$(dirname "$0")/../lib.sh"

N=30

# Adds one to a shared counter, in a way that loses updates when two do it at once: read, yield, write.
cat >"$W/add" <<'S'
n=$(cat "$1"); sleep 0.002; echo $((n + 1)) >"$1"
S
cat >"$W/add.py" <<'S'
import fcntl, os, sys, time
lock, counter, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
for i in range(times):
    f = open(lock, "a")
    fcntl.flock(f, fcntl.LOCK_EX)
    n = int(open(counter).read())
    time.sleep(0.001)
    with open(counter, "w") as c: c.write(str(n + 1))
    if i % 2: fcntl.flock(f, fcntl.LOCK_UN)
    f.close()
S

# (asan: no: nothing of ours runs)
test_without_the_shim_both_hosts_get_in() {
	spawn_bare 1 flock "$F" sleep 300
	must 'bare 1 flock -n "$F" true; [ $? = 1 ]'
	bare 2 flock -n "$F" true
	assertEquals "host 2 is not kept out by the kernel" 0 $?
}

test_a_lock_on_one_host_is_refused_on_another() {
	spawn 1 flock "$F" sleep 300
	wait_held "$F"
	assertEquals 1 "$(busy "$F")"
	assertEquals "another file is free" 0 "$(busy "$D/y")"
	assertEquals string "$(R type "lock:$F")"
	assertContains "the value is a token" "$(R get "lock:$F")" nf1:
	assertTrue "the lease runs" '[ "$(R pttl "lock:$F")" -gt 0 ]'
}

test_a_lock_that_is_given_up_is_free_for_the_other_host_at_once() {
	H 1 flock "$F" true
	H 2 flock -n "$F" true; assertEquals 0 $?
	assertNoKeys
}

test_a_host_that_waits_gets_in_when_the_other_is_done() {
	spawn 1 flock "$F" sh -c "until [ -e $W/shared/go ]; do sleep 0.02; done"
	wait_held "$F"
	spawn 2 flock "$F" touch "$W/shared/in"; local waiter=$PID
	must '[ "$(R exists "netflock:{lock:$F}:queue")" = 1 ]'
	assertFalse "host 2 is in too early" '[ -e $W/shared/in ]'
	touch "$W/shared/go"
	must '[ -e $W/shared/in ]'
	wait $waiter; assertEquals 0 $?
	assertNoKeys
}

# Both start in the same moment: opening the gate for reading waits until somebody has it open for writing.
gate() { rm -f "$W/shared/gate"; mkfifo "$W/shared/gate"; }
open_gate() { exec {GATE}<>"$W/shared/gate"; }

# (asan: no: Python's loop below has the same, in one process)
test_flock_loses_no_update_of_a_counter_file_on_two_hosts() {
	local c=$W/shared/counter1 h p1="" p2=""
	echo 0 >"$c"; gate
	for h in 1 2; do
		spawn $h sh -c "touch $W/shared/at$h; : <$W/shared/gate; for i in $(seq -s ' ' $N); do flock $F sh $W/add $c || exit 1; done"
		eval "p$h=$PID"
	done
	must '[ -e $W/shared/at1 ] && [ -e $W/shared/at2 ]'
	open_gate
	wait "$p1"; assertEquals 0 $?
	wait "$p2"; assertEquals 0 $?
	exec {GATE}>&-
	assertEquals $((2 * N)) "$(cat "$c")"
	assertNoKeys
}

# Each has read before the other one writes, which a lock would prevent.
# (asan: no: nothing of ours runs)
test_the_same_counter_does_lose_updates_when_the_shim_is_disabled() {
	local c=$W/shared/counter2 h p1="" p2=""
	echo 0 >"$c"
	for h in 1 2; do
		spawn $h NETFLOCK_DISABLE=1 flock "$F" sh -c "n=\$(cat $c); touch $W/shared/read$h
			until [ -e $W/shared/read1 ] && [ -e $W/shared/read2 ]; do sleep 0.02; done; echo \$((n + 1)) >$c"
		eval "p$h=$PID"
	done
	wait "$p1"; assertEquals 0 $?
	wait "$p2"; assertEquals 0 $?
	assertEquals 1 "$(cat "$c")"
}

test_python_loses_no_update_of_a_counter_file_on_two_hosts() {
	local c=$W/shared/counter3 h p1="" p2=""
	echo 0 >"$c"
	for h in 1 2; do spawn $h python3 "$W/add.py" "$F" "$c" 150; eval "p$h=$PID"; done
	wait "$p1"; assertEquals 0 $?
	wait "$p2"; assertEquals 0 $?
	assertEquals 300 "$(cat "$c")"
	assertNoKeys
}

# Each waits until the gate is opened, and the winner until all others have lost.
test_of_twenty_hosts_that_try_at_once_exactly_one_wins() {
	local i
	: >"$W/shared/rc"; : >"$W/shared/wins"
	gate; mkfifo "$W/shared/over"
	for i in $(seq 20); do
		H "$i" sh -c "touch $W/shared/ready$i; : <$W/shared/gate
			flock -n $F sh -c 'echo $i >>$W/shared/wins; : <$W/shared/over'; echo \$? >>$W/shared/rc" &
	done
	must '[ "$(ls "$W/shared" | grep -c ready)" = 20 ]'
	open_gate
	must '[ "$(grep -c 1 "$W/shared/rc")" = 19 ]'
	must '[ -s "$W/shared/wins" ]'
	exec {over}<>"$W/shared/over"
	must '[ "$(count <"$W/shared/rc")" = 20 ]'
	exec {GATE}>&- {over}>&-
	assertEquals "statuses of those who lost" 19 "$(grep -cx 1 "$W/shared/rc")"
	assertEquals 1 "$(grep -cx 0 "$W/shared/rc")"
	assertEquals "winners" 1 "$(count <"$W/shared/wins")"
	assertNoKeys
}

test_two_readers_on_two_hosts_are_in_together_and_a_writer_is_not() {
	spawn 1 flock -s "$F" sleep 300; local r1=$PID
	wait_held "$F"
	H 2 flock -n -s "$F" true; assertEquals "a reader on another host" 0 $?
	spawn 2 flock -s "$F" sleep 300; local r2=$PID
	must '[ "$(R zcard "lock:$F")" = 2 ]'
	assertEquals zset "$(R type "lock:$F")"
	H 3 flock -n "$F" true; assertEquals "a writer" 1 $?
	kill $r1 $(pgrep -P $r1)
	must '[ "$(R zcard "lock:$F")" = 1 ]'
	H 3 flock -n "$F" true; assertEquals "a writer, while one reader is left" 1 $?
	kill $r2 $(pgrep -P $r2)
	wait_free "$F"
	assertNoKeys
}

test_a_reader_is_refused_while_a_writer_of_another_host_is_in() {
	spawn 1 flock "$F" sleep 300
	wait_held "$F"
	H 2 flock -n -s "$F" true; assertEquals 1 $?
}

test_two_contenders_of_one_host_are_told_apart_by_the_kernel() {
	spawn 1 flock "$F" sleep 300
	wait_held "$F"
	H 1 flock -n "$F" true; assertEquals 1 $?
	assertEquals "the local loser leaves no trace" 1 "$(R exists "lock:$F")"
}

# Both hosts try in the same moment. Whoever gets in stays until the other one has said no: so that does not wait.
# (asan: no: the same calls as by the twenty hosts above)
test_cron_on_two_hosts_runs_a_job_once_a_round() {
	local r h
	cat >"$W/job" <<-S
		mkdir $W/shared/inside 2>/dev/null || echo overlap >>$W/shared/bad
		echo \$HOSTN >>$W/shared/runs
		until [ -e $W/shared/done\$1.\$((3 - HOSTN)) ]; do sleep 0.01; done
		rmdir $W/shared/inside
	S
	: >"$W/shared/runs"; : >"$W/shared/bad"; : >"$W/shared/losers"
	for h in 1 2; do
		H $h bash -c "for r in \$(seq 15); do
			until [ -e $W/shared/round\$r ]; do sleep 0.003; done
			flock -n $F sh $W/job \$r; s=\$?
			[ \$s = 0 ] || echo \$s >>$W/shared/losers
			touch $W/shared/done\$r.$h; done" &
	done
	for r in $(seq 15); do
		touch "$W/shared/round$r"
		wait_until '[ -e $W/shared/done$r.1 ] && [ -e $W/shared/done$r.2 ]' || { fail "round $r hangs"; break; }
	done
	assertEquals "" "$(cat "$W/shared/bad")"
	assertEquals "each round runs once" 15 "$(count <"$W/shared/runs")"
	assertEquals "losers say 1" "$(yes 1 | head -15)" "$(cat "$W/shared/losers")"
	assertNoKeys
}

. /usr/share/shunit2/shunit2
