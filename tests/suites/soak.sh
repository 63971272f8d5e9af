#!/bin/bash
# Many processes on three hosts that lock, share, fork, exec, are killed and stopped at random, and a checker of what
# they wrote down: see soak/soak.py. `make soak` runs it for longer. A run can be repeated with the seed it prints,
# as far as the scheduler plays along.
. "$(dirname "$0")/../lib.sh"

soak() {
	# A busy machine, or sanitizers, may miss leases of a second (which is said, and no failure) and make waits longer.
	/usr/bin/python3 "$TESTS/soak/soak.py" --build "$BUILD" --allow-losses --allowance 6 "$@" >"$W/soak" 2>&1
	RC=$?
	cut -c1-400 "$W/soak"
}
succeeded() { [ "$RC" = 0 ] || fail "$(tail -n 1 "$W/soak")"; }
acquired() { grep -o "exclusive [0-9]*" "$W/soak" | cut -d' ' -f2; }

test_no_two_hosts_inside_and_nothing_left() {
	soak --seconds 20
	succeeded
	assertTrue "too few locks to mean anything: $(acquired)" "[ $(acquired) -gt 100 ]"
}

test_with_a_lease_of_300_ms() {
	soak --seconds 8 --ttl 300ms
	succeeded
}

test_the_checker_sees_overlaps_when_there_is_no_shim() {
	soak --seconds 3 --disable
	assertEquals 1 "$RC"
	assertTrue "no overlap found" "grep -q '^overlap between hosts' '$W/soak'"
	assertFalse "the kernel let two in on one host" "grep -q '^overlap on one host' '$W/soak'"
}

. /usr/share/shunit2/shunit2
