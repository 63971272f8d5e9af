#!/bin/bash
# The main job: a program on one host excludes the same program on another.
. "$(dirname "$0")/../lib.sh"

N=60

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

test_without_the_shim_both_hosts_get_in() {
	spawn_bare 1 flock "$F" sleep 30
	must 'bare 1 flock -n "$F" true; [ $? = 1 ]'
	bare 2 flock -n "$F" true
	assertEquals "host 2 is not kept out by the kernel" 0 $?
}

test_a_lock_on_one_host_is_refused_on_another() {
	spawn 1 flock "$F" sleep 30
	wait_held "$F"
	assertEquals 1 "$(busy "$F")"
	assertEquals "another file is free" 0 "$(busy "$D/y")"
	assertEquals string "$(R type "lock:$F")"
	assertContains "the value is a token" "$(R get "lock:$F")" nf1:
	assertBetween "the lease runs" 1 3000 "$(R pttl "lock:$F")"
}

test_a_lock_that_is_given_up_is_free_for_the_other_host_at_once() {
	H 1 flock "$F" true
	timed H 2 flock -n "$F" true
	assertEquals 0 $RC
	assertNoKeys
}

test_a_host_that_waits_gets_in_when_the_other_is_done() {
	spawn 1 flock "$F" sh -c "until [ -e $W/shared/go ]; do sleep 0.02; done"
	wait_held "$F"
	spawn 2 flock "$F" touch "$W/shared/in"; local waiter=$PID
	must '[ "$(R exists "netflock:{lock:$F}:queue")" = 1 ] || sleep 0.5'
	assertFalse "host 2 is in too early" '[ -e $W/shared/in ]'
	touch "$W/shared/go"
	must '[ -e $W/shared/in ]' 3
	wait $waiter; assertEquals 0 $?
	assertNoKeys
}

test_flock_loses_no_update_of_a_counter_file_on_two_hosts() {
	local c=$W/shared/counter1 h p1="" p2=""
	echo 0 >"$c"
	for h in 1 2; do
		spawn $h sh -c "for i in $(seq -s ' ' $N); do flock $F sh $W/add $c || exit 1; done"
		eval "p$h=$PID"
	done
	wait "$p1"; assertEquals 0 $?
	wait "$p2"; assertEquals 0 $?
	assertEquals $((2 * N)) "$(cat "$c")"
	assertNoKeys
}

test_the_same_counter_does_lose_updates_when_the_shim_is_disabled() {
	local c=$W/shared/counter2 h
	echo 0 >"$c"
	for h in 1 2; do
		spawn $h NETFLOCK_DISABLE=1 sh -c "for i in $(seq -s ' ' $N); do flock $F sh $W/add $c || exit 1; done"
		eval "p$h=$PID"
	done
	wait $p1 $p2
	assertTrue "the counter proves nothing: it says $(cat "$c")" "[ $(cat "$c") -lt $((2 * N)) ]"
}

test_python_loses_no_update_of_a_counter_file_on_two_hosts() {
	local c=$W/shared/counter3 h
	echo 0 >"$c"
	for h in 1 2; do spawn $h python3 "$W/add.py" "$F" "$c" 200; eval "p$h=$PID"; done
	wait "$p1"; assertEquals 0 $?
	wait "$p2"; assertEquals 0 $?
	assertEquals 400 "$(cat "$c")"
	assertNoKeys
}

test_of_twenty_hosts_that_try_at_once_exactly_one_wins() {
	local i
	rm -f "$W/shared/go"; : >"$W/shared/rc"; : >"$W/shared/wins"
	for i in $(seq 20); do
		H "$i" sh -c "touch $W/shared/ready$i; until [ -e $W/shared/go ]; do sleep 0.01; done
			flock -n $F sh -c 'echo $i >>$W/shared/wins; until [ -e $W/shared/over ]; do sleep 0.02; done'
			echo \$? >>$W/shared/rc" &
	done
	must '[ "$(ls "$W/shared" | grep -c ready)" = 20 ]' 20
	touch "$W/shared/go"
	must '[ "$(grep -c 1 "$W/shared/rc")" = 19 ]' 20
	assertEquals "winners" 1 "$(count <"$W/shared/wins")"
	touch "$W/shared/over"
	must '[ "$(count <"$W/shared/rc")" = 20 ]'
	assertEquals "statuses of those who lost" 19 "$(grep -cx 1 "$W/shared/rc")"
	assertEquals 1 "$(grep -cx 0 "$W/shared/rc")"
	assertNoKeys
}

test_two_readers_on_two_hosts_are_in_together_and_a_writer_is_not() {
	spawn 1 flock -s "$F" sleep 30; local r1=$PID
	wait_held "$F"
	H 2 flock -n -s "$F" true; assertEquals "a reader on another host" 0 $?
	spawn 2 flock -s "$F" sleep 30; local r2=$PID
	must '[ "$(R zcard "lock:$F")" = 2 ]'
	assertEquals zset "$(R type "lock:$F")"
	H 3 flock -n "$F" true; assertEquals "a writer" 1 $?
	kill $r1 $(pgrep -P $r1)
	must '[ "$(R zcard "lock:$F")" = 1 ]'
	H 3 flock -n "$F" true; assertEquals "a writer, while one reader is left" 1 $?
	kill $r2 $(pgrep -P $r2)
	must '[ "$(busy "$F" 3)" = 0 ]' 5
	assertNoKeys
}

test_a_reader_is_refused_while_a_writer_of_another_host_is_in() {
	spawn 1 flock "$F" sleep 30
	wait_held "$F"
	H 2 flock -n -s "$F" true; assertEquals 1 $?
}

test_two_contenders_of_one_host_are_told_apart_by_the_kernel() {
	spawn 1 flock "$F" sleep 30
	wait_held "$F"
	H 1 flock -n "$F" true; assertEquals 1 $?
	assertEquals "the local loser leaves no trace" 1 "$(R exists "lock:$F")"
}

test_cron_on_two_hosts_runs_a_job_once_a_round() {
	# Both hosts try in the same moment; whoever gets in notes that it is inside, and alone.
	local r h
	cat >"$W/job" <<-S
		mkdir $W/shared/inside 2>/dev/null || echo overlap >>$W/shared/bad
		echo \$HOSTN >>$W/shared/runs; sleep 0.06; rmdir $W/shared/inside
	S
	: >"$W/shared/runs"; : >"$W/shared/bad"; : >"$W/shared/losers"
	for h in 1 2; do
		H $h bash -c "for r in \$(seq 30); do
			until [ -e $W/shared/round\$r ]; do sleep 0.003; done
			t=\${EPOCHREALTIME/./}; flock -n $F sh $W/job; s=\$?
			[ \$s = 0 ] || echo \$s \$(( (\${EPOCHREALTIME/./} - t) / 1000 )) >>$W/shared/losers
			touch $W/shared/done\$r.$h; done" &
	done
	for r in $(seq 30); do
		touch "$W/shared/round$r"
		wait_until '[ -e $W/shared/done$r.1 ] && [ -e $W/shared/done$r.2 ]' 5 || { fail "round $r hangs"; break; }
	done
	assertEquals "" "$(cat "$W/shared/bad")"
	assertTrue "each round runs" '[ "$(count <$W/shared/runs)" -ge 30 ]'
	assertEquals "losers say 1" "" "$(grep -v '^1 ' "$W/shared/losers")"
	assertEquals "losers say so at once" "" "$(awk '$2 > 400' "$W/shared/losers")"
	assertNoKeys
}

. /usr/share/shunit2/shunit2
