#!/bin/bash
# Real containers: runc, with the namespaces that they have in practice. When one ends, its locks are free for others at once;
# when it is killed, after a lease of their own. The common lease is longer than anybody waits here.
# asan: no: a container has an environment of its own, without the sanitizers' options; suite container runs the same code.
. "$(dirname "$0")/../lib.sh"

export BUNDLES=$W/bundles SHARED=$W/shared SOCK LIBDIR
mkdir "$BUNDLES"
N=0                                         # each container has a name of its own
runc_() { runc --root "$BUNDLES/state" "$@"; }

# C [-u] N [VAR=VALUE...] CMD...: in a container on host N, to its end.
C() { local u=''; [ "$1" != -u ] || { u=-u; shift; }; N=$((N + 1)); "$TESTS/container" $u "$1" "$GROUP-$N" "${@:2}" </dev/null; }
# The same in the background: $ID is its name, $PID runc's own process.
start() { local u=''; [ "$1" != -u ] || { u=-u; shift; }; N=$((N + 1)); ID=$GROUP-$N; "$TESTS/container" $u "$1" "$ID" "${@:2}" </dev/null & PID=$!; }
GROUP=$NFTEST
ended() { { wait "$PID"; } 2>/dev/null; }   # its status
suite_teardown() { local d; for d in "$BUNDLES"/state/*/; do [ ! -d "$d" ] || runc_ delete -f "$(basename "$d")"; done; }

free_after() { # MESSAGE STATUS: it has ended with this status
	assertEquals "$1: its exit status" 0 "$2"
	must '[ "$(busy "$F")" = 0 ]' '' "$1: free for another host;"
	assertEquals "$1: and for another container" 0 "$(C 2 flock -n "$F" true; echo $?)"
	assertNoKeys
}

# Each with the few namespaces and with all.
both() { # MESSAGE CMD...
	C 1 "${@:2}"; free_after "$1" $?
	C -u 1 "${@:2}"; free_after "$1, all namespaces" $?
}

test_two_containers_are_two_hosts() {
	need runc || return
	local u
	for u in '' -u; do
		# shellcheck disable=SC2086 # a word or none
		start $u 1 sh -c "stat -c %i $D >$SHARED/inode; flock $F sleep 600"
		wait_held "$F"
		assertEquals "another container is kept out" 1 "$(C $u 2 flock -n "$F" true; echo $?)"
		assertEquals "another host too" 1 "$(busy "$F")"
		assertEquals "one of the same host, too" 1 "$(C $u 1 flock -n "$F" true; echo $?)"
		assertNotEquals "own inodes" "$(cat "$SHARED/inode")" "$(C $u 2 stat -c %i "$D")"
		assertNotEquals "without the shim nobody is kept out" 1 "$(C $u 2 LD_PRELOAD= flock -n "$F" true; echo $?)"
		runc_ kill "$ID" KILL; ended; R flushall >/dev/null
	done
}

test_flock_with_a_command() { need runc || return; both flock flock "$F" true; }

test_a_shell_with_a_descriptor() {
	need runc || return
	both "held at the exit" bash -c "exec 9>$F; flock 9; true; exit 0"
	both "unlocked before" bash -c "exec 9>$F; flock 9; true; flock -u 9; exit 0"
	both "a subshell" bash -c "( flock 9; true ) 9>$F"
	both "a subshell, and more" bash -c "( flock 9; true ) 9>$F; exit 0"
}

test_python() {
	need runc || return
	local py='import fcntl, os, subprocess, sys
f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX)'
	both "to its end" python3 -c "$py" "$F"
	both "with a subprocess" python3 -c "$py; subprocess.run('true')" "$F"
	both "with one that inherits, and stays" python3 -c "$py; os.set_inheritable(f.fileno(), True); subprocess.Popen(['sleep', '600'], close_fds=False)" "$F"
	both "a record lock" python3 -c "$py; fcntl.flock(f, fcntl.LOCK_UN); fcntl.lockf(f, fcntl.LOCK_EX)" "$F"
}

test_stopped_by_a_sigterm_that_is_handled() {
	need runc || return
	local u
	for u in '' -u; do
		# shellcheck disable=SC2086 # a word or none
		start $u 1 bash -c "trap 'exit 0' TERM; exec 9>$F; flock 9; echo >$SHARED/in; sleep 600 & wait"
		must '[ -e "$SHARED/in" ]'; rm "$SHARED/in"
		runc_ kill "$ID" TERM
		ended; free_after "trap $u" $?
	done
}

test_the_next_container_gets_it_from_one_that_ends() {
	need runc || return
	start 1 bash -c "exec 9>$F; flock 9; until [ -e $SHARED/go ]; do sleep 0.02; done; exit 0"
	local first=$PID
	wait_held "$F"
	start 2 flock "$F" touch "$SHARED/got"
	must '[ "$(R zcard "netflock:{lock:$F}:queue")" = 1 ]' '' "it waits:"
	assertFalse '[ -e "$SHARED/got" ]'
	touch "$SHARED/go"
	ended; assertEquals 0 $?
	{ wait $first; } 2>/dev/null
	assertTrue "it worked under the lock" '[ -e "$SHARED/got" ]'
	rm "$SHARED/go" "$SHARED/got"
	assertNoKeys
}

test_what_a_second_process_of_the_container_holds() {
	need runc || return
	start 1 bash -c "until [ -e $SHARED/go ]; do sleep 0.02; done; exit 0"
	must 'runc_ exec "$ID" true 2>/dev/null' '' "it runs:"
	runc_ exec "$ID" flock "$F" sleep 600 &
	wait_held "$F"
	touch "$SHARED/go"
	ended; free_after "its PID 1 has ended" $?
	rm "$SHARED/go"
}

test_killed() {
	need runc || return
	local u n
	for u in '' -u; do
		# Not even a third of the common lease is waited for. What tells the lease is the server's clock.
		# shellcheck disable=SC2086 # a word or none
		NF_CONTAINER_TTL=2s start $u 1 bash -c "exec 9>$F; flock 9; sleep 600"
		wait_held "$F"
		assertBetween "its lease $u" 1 2000 "$(R pttl "lock:$F")"
		keeps "$F" 4000 "renewed by the keeper inside $u"
		runc_ kill "$ID" KILL; ended; assertEquals "killed $u" 137 $?
		must '[ -z "$(keepers)" ]' '' "its keeper has died with it $u:"
		n=$(R pttl "lock:$F")
		assertTrue "nobody renews it $u ($n)" '[ $n -le 2000 ]'
		must '! held "$F"' '' "it ends $u:"
		assertEquals "free $u" 0 "$(busy "$F")"
		assertNoKeys
	done
}

test_deleted_by_force_while_another_waits() {
	need runc || return
	NF_CONTAINER_TTL=2s start 1 flock "$F" sleep 600
	local first=$PID id=$ID
	wait_held "$F"
	start 2 flock "$F" touch "$SHARED/got"
	must '[ "$(R zcard "netflock:{lock:$F}:queue")" = 1 ]' '' "it waits:"
	runc_ delete -f "$id"
	{ wait $first; } 2>/dev/null
	must '[ -e "$SHARED/got" ]' '' "the other gets in when that lease is over:"
	ended; rm -f "$SHARED/got"
	assertNoKeys
}

. /usr/share/shunit2/shunit2
