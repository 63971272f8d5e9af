#!/bin/bash
# What one host's processes have in Redis when the kernel hands their lock from one to the next: a token is adopted by
# the next holder, a keeper looks after the right one, and nobody is said to have lost what was only let go.
. "$(dirname "$0")/../lib.sh"

export LOCKFILE=$F PYTHONPATH=$TESTS/probes PYTHONDONTWRITEBYTECODE=1
QUEUE="netflock:{lock:$F}:queue"
LOG=$W/shared/log

# Marks by which a test and its programs wait for each other; see probes/steps.py.
begin() { STEPS=$(mktemp -d "$W/shared/XXXXXX"); export STEPS; rm -f "$LOG"; }
go() { mkdir "$STEPS/$1"; }
seen() { [ -d "$STEPS/$1" ]; }
reached() { must "seen $1" "" "${2:-}"; }

py() { local n=$1; shift; spawn "$n" NETFLOCK_LOG="$LOG" python3 -c "from steps import *
$*"; }
queued() { [ "$(R zcard "$QUEUE")" = "${1:-1}" ]; }
# A process that waits in the kernel for the lock of host N's file.
blocked() { grep -q -e "-> FLOCK .*:$(stat -c %i "$HOSTS/$1/x") " /proc/locks; }
tokens() { # of what holds the lock, one a line
	case $(R type "lock:$F") in
	zset) R zrange "lock:$F" 0 -1 ;;
	string) R get "lock:$F" ;;
	esac
}
still_held() { # MESSAGE: by the first host
	bare 1 flock -n "$F" true; assertEquals "$1: the kernel's lock, without which this test says nothing" 1 $?
	assertEquals "$1: held on another host" 1 "$(busy "$F")"
}
renewed() { # the lease has been made longer since it was looked at before
	local left; left=$(R pttl "lock:$F")
	[ "$left" -gt "${LEFT:-$left}" ] && return 0
	LEFT=$left
	return 1
}
ended() { # the holders end, and the lock with them
	go end
	local p; for p; do { wait "$p"; } 2>/dev/null; done
	must '! held "$F"' "" "freed at the end:"
	assertNoKeys
}
nothing_lost() { assertFalse "$(cat "$LOG" 2>/dev/null)" "grep -qis lost '$LOG'"; }

# Takes the exclusive lock as soon as the kernel has it, makes it a shared one and hands that over to the keeper.
NEXT="
f = opened()
flock(f, EX); done('exclusive')
flock(f, SH); done('shared')
child(lambda: until('end'))
done('forked'); until('end')"

test_a_keeper_keeps_the_new_token_when_it_has_not_seen_the_old_lock_end() {
	begin
	export NF_TTL=4s
	py 1 "
f = opened()
flock(f, SH)
child(lambda: until('gone'))
done('kept'); until('gone')"
	local first=$PID keeper next
	reached kept
	must '[ -n "$(keepers)" ]'; keeper=$(keepers)
	assertEquals "keepers" 1 "$(echo "$keeper" | count)"
	kill -STOP "$keeper"
	go gone; { wait $first; } 2>/dev/null
	must 'bare 1 flock -n "$F" true'
	py 1 "$NEXT"; next=$PID
	reached shared
	kill -CONT "$keeper"
	reached forked
	still_held "right after the fork"
	LEFT=; must renewed "" "nobody renews the lease:"
	still_held "after a renewal"
	nothing_lost
	ended $next
	unset NF_TTL
}

test_a_keeper_keeps_the_new_token_when_another_was_faster_than_it() {
	begin
	export NF_TTL=4s
	py 1 "
f = opened()
flock(f, SH); done('in'); until('fork')
child(lambda: until('gone'))
done('kept'); until('gone')"
	local first=$PID next
	reached in
	py 1 "$NEXT"; next=$PID  # before there is a keeper, so that the kernel serves it first
	must 'blocked 1'
	go fork; reached kept
	must '[ -n "$(keepers)" ]'
	go gone; { wait $first; } 2>/dev/null
	reached forked
	still_held "right after the fork"
	LEFT=; must renewed "" "nobody renews the lease:"
	still_held "after a renewal"
	nothing_lost
	ended $next
	unset NF_TTL
}

test_a_reader_that_ended_is_not_said_to_have_lost_what_a_local_waiter_took_over() {
	begin
	local first waiter other keeper
	py 2 "
f = opened()
flock(f, SH); done('reads'); until('end')"; other=$PID
	reached reads
	py 1 "
f = opened()
flock(f, SH); done('in'); until('fork')
child(lambda: until('gone'))
done('kept'); until('gone')"; first=$PID
	reached in
	py 1 "
f = opened()
flock(f, EX); done('writes')"; waiter=$PID
	must 'blocked 1'
	go fork; reached kept
	must '[ -n "$(keepers)" ]'; keeper=$(keepers)
	go gone; { wait $first; } 2>/dev/null
	must 'queued'            # the writer has its kernel's lock, and waits for the reader of the other host
	must '! is_keeper $keeper' "" "its keeper has nothing to do any more;"
	nothing_lost
	ended $other
	reached writes; { wait $waiter; } 2>/dev/null
	nothing_lost
}

test_a_lock_that_was_let_go_is_not_said_to_be_lost_when_others_get_it() {
	begin
	local first waiter other keeper
	py 1 "
f = opened()
flock(f, EX); done('in'); until('fork')
child(lambda: until('end'))
done('kept'); until('unlock')
flock(f, UN); done('unlocked'); until('end')"; first=$PID
	reached in
	py 1 "
f = opened()
flock(f, EX); done('next')"; waiter=$PID
	must 'blocked 1'
	py 2 "
f = opened()
flock(f, EX); done('elsewhere'); until('end')"; other=$PID
	must queued
	go fork; reached kept
	must '[ -n "$(keepers)" ]'; keeper=$(keepers)
	go unlock; reached unlocked; reached elsewhere
	must '! is_keeper $keeper' "" "its keeper has nothing to do any more;"
	nothing_lost
	ended $first $other
	reached next; { wait $waiter; } 2>/dev/null
	nothing_lost
}

# A waiter whose kernel's lock a sharer turned into a shared one asks for what it does not have any more.
test_a_waiter_whose_lock_a_sharer_converted_does_not_stand_in_its_way() {
	begin
	local first waiter
	spawn 1 bash -c 'exec 9>"$LOCKFILE"; flock -s 9; until [ -d "$STEPS/release" ]; do sleep 0.02; done'; first=$PID
	wait_held "$F"
	py 2 "
f = opened()
def sharer():
    until('convert'); flock(f, SH); done('converted'); until('end')
child(sharer)
flock(f, EX)
done('waited'); until('end')"; waiter=$PID
	must queued
	go convert; reached converted "a reader beside a reader:"
	reached waited "the waiter has nothing to wait for any more:"
	assertEquals "readers" 2 "$(tokens | count)"
	go release; { wait $first; } 2>/dev/null
	must '[ "$(tokens | count)" = 1 ]'
	assertEquals "another host, while the sharer reads" 1 "$(busy "$F" 3)"
	ended $waiter
}

test_a_reader_that_asks_again_ends_no_other_reader_s_lock() {
	begin
	local p q other
	py 1 "
f = opened(); flock(f, SH)
child(lambda: until('end'))
done('first'); until('end')"; p=$PID
	reached first
	py 1 "
f = opened(); flock(f, SH)
child(lambda: until('end'))
done('second'); until('again')
flock(f, SH); done('asked'); until('unlock')
flock(f, UN); done('unlocked'); until('end')"; q=$PID
	reached second
	spawn 2 flock "$F" mkdir "$STEPS/other"; other=$PID
	must queued
	go again; reached asked
	assertFalse "asked again: a writer was let in" "seen other"
	still_held "asked again"
	go unlock; reached unlocked
	assertFalse "unlocked: a writer was let in" "seen other"
	still_held "the other reads on"
	go end; { wait $p $q; } 2>/dev/null
	reached other; { wait $other; } 2>/dev/null
	assertNoKeys
}

test_a_reader_that_was_frozen_beyond_its_lease_keeps_what_its_host_held_on() {
	begin
	local a b
	export NF_TTL=2s
	py 1 "
f = opened(); flock(f, SH); done('a'); until('end')"; a=$PID
	py 1 "
f = opened(); flock(f, SH); done('b'); until('unlock'); flock(f, UN); done('unlocked'); until('end')"; b=$PID
	reached a; reached b
	assertEquals 2 "$(tokens | count)"
	kill -STOP $a
	# A try of another host takes away what has run out.
	must 'busy "$F" >/dev/null; [ "$(tokens | count)" = 1 ]'
	kill -CONT $a
	must '[ "$(tokens | count)" = 2 ] || grep -qs lost "$LOG"' "" "the thawed one renews, or says that it lost the lock:"
	go unlock; reached unlocked
	grep -qs lost "$LOG" 2>/dev/null || still_held "the frozen one reads on"
	ended $a $b
	unset NF_TTL
}

test_a_keeper_that_answers_late_keeps_a_lock_that_was_handed_over_twice() {
	begin
	local p keeper
	py 1 "
f = opened(); flock(f, SH)
child(lambda: until('end'))
done('shared'); until('convert')
flock(f, EX); done('exclusive')
child(lambda: until('end'))  # the keeper does not answer: this takes a while
done('forked'); until('end')"; p=$PID
	reached shared
	must '[ -n "$(keepers)" ]'; keeper=$(keepers)
	kill -STOP $keeper
	go convert; reached exclusive; reached forked
	kill -CONT $keeper
	keeps "$F" 500
	still_held "after the keeper woke up"
	ended $p
}

. /usr/share/shunit2/shunit2
