#!/bin/bash
# Waiters that die: what they were granted, and nobody has fetched, keeps nobody out.
. "$(dirname "$0")/../lib.sh"

sleeping() { [ "$(R info clients | tr -d '\r' | sed -n 's/^blocked_clients://p')" = "$1" ]; }

# granted_to_the_dead MODE N: host 1 has had F, N waiters on other hosts were killed, and F is granted to the first of them.
granted_to_the_dead() {
	local i
	actor a 1; ask a open x c "$F" >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	for i in $(seq "$2"); do
		actor "w$i" $((i + 3)); ask "w$i" open x c "$F" >/dev/null
		tell "w$i" flock x "$1"
		must "sleeping $i"
	done
	for i in $(seq "$2"); do kill -KILL "${ACT_PID[w$i]}"; { wait "${ACT_PID[w$i]}"; } 2>/dev/null; done
	must 'sleeping 0'
	assertEquals OK "$(ask a flock x UN)"
	must 'held "$F"'
}

test_who_only_asks_is_not_refused_for_a_dead_waiter() {
	local mode
	for mode in EX SH; do
		granted_to_the_dead $mode 1
		H 2 flock -n "$F" true; assertEquals "LOCK_NB after a dead waiter ($mode)" 0 $?
		actors_close; kill_strays; R flushall >/dev/null
	done
	granted_to_the_dead EX 1
	H 2 flock -n -s "$F" true; assertEquals "a reader" 0 $?
	actors_close; kill_strays; R flushall >/dev/null
	granted_to_the_dead EX 3
	H 2 flock -n "$F" true; assertEquals "after three of them" 0 $?
	assertNoKeys
}

test_who_only_asks_does_not_overtake_a_living_waiter() {
	# The dead one is the first in line, the living one the second.
	local p
	actor a 1; actor b 2
	ask a open x c "$F" >/dev/null; ask b open x c "$F" >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	spawn 4 flock "$F" true; p=$PID
	must 'sleeping 1'
	tell b flock x EX
	must 'sleeping 2'
	kill -KILL "$p"; { wait "$p"; } 2>/dev/null
	must 'sleeping 1'
	assertEquals OK "$(ask a flock x UN)"
	H 3 flock -n "$F" true; assertEquals "one who only asks" 1 $?
	assertEquals "the one who waits" OK "$(reply b)"
}

test_two_waits_that_end_together_leave_both_files_free() {
	# Each holds what the other wants; the deadlock is broken by killing both.
	local p
	for p in 1 2; do
		spawn $p bash -c "exec 8>$D/\$1 9>$D/\$2; flock 8; touch $W/shared/has\$1; until [ -e $W/shared/has\$2 ]; do sleep 0.01; done
			exec setsid flock 9" sh $p $((3 - p))
		eval "local p$p=$PID"
	done
	must 'sleeping 2'
	{ kill -TERM "$p1" "$p2"; wait "$p1" "$p2"; } 2>/dev/null
	must '[ -z "$(keepers)" ]' '' "each keeper has given its file to a dead waiter, and left:"
	for p in 1 2; do
		H 3 flock -n "$D/$p" true && continue
		# A connection that is just being closed may take the message with it: nobody can tell then that its waiter is dead,
		# until the short grant runs out.
		assertEquals "refused, though a grant lies there unfetched" "" "$(R keys "netflock:{lock:$D/$p}:wait:*")"
		must '[ "$(busy "$D/$p" 3)" = 0 ]'
	done
	assertNoKeys
}

. /usr/share/shunit2/shunit2
