#!/bin/bash
# Many processes on three hosts that lock, share, fork, exec, are killed and stopped at random, and a checker of what
# they wrote down: see soak/soak.py. `make soak` runs it for longer. A run can be repeated with the seed it prints,
# as far as the scheduler plays along.
. "$(dirname "$0")/../lib.sh"

# soak NAME WORDS...: its output in $W/NAME. A busy machine may miss leases (which is said, and no failure). Nobody may be inside
# for a lease and 5 s while somebody waits, where even a message that is lost costs no more than a lease and 3.2 s.
soak() {
	/usr/bin/python3 "$TESTS/soak/soak.py" --build "$BUILD" --allow-losses --allowance 3 "${@:2}" >"$W/$1" 2>&1
	RC=$?
	cut -c1-400 "$W/$1"
	return $RC
}
hosts() { grep -o '^[0-9]* hosts' "$W/$1" | cut -d' ' -f1; } # on how many anybody got a lock

# A lease that is longer than most of what happens, and one that many do not survive.
test_no_two_hosts_inside_and_nothing_left() {
	local run
	local -A pids
	if [ -n "${TEST_ASAN:-}" ]; then
		soak 1s --seconds 4 & pids[1s]=$!
	else
		soak 1s --seconds 8 & pids[1s]=$!
		soak 300ms --seconds 8 --ttl 300ms & pids[300ms]=$!
	fi
	for run in "${!pids[@]}"; do
		wait "${pids[$run]}" || fail "a lease of $run: $(tail -n 1 "$W/$run")"
		assertEquals "a lease of $run: hosts that had locks" 3 "$(hosts "$run")"
	done
}

# (asan: no: without the library)
test_the_checker_sees_overlaps_when_there_is_no_shim() {
	soak none --seconds 2 --disable
	assertEquals 1 "$RC"
	assertTrue "no overlap found" "grep -q '^overlap between hosts' '$W/none'"
	assertFalse "the kernel let two in on one host" "grep -q '^overlap on one host' '$W/none'"
}

. /usr/share/shunit2/shunit2
