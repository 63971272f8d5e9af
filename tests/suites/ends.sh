#!/bin/bash
# Programs that end, or end a thread, in unusual ways; and a descriptor's number that comes to mean another file.
. "$(dirname "$0")/../lib.sh"

export LOCKFILE=$F PYTHONPATH=$TESTS/probes PYTHONDONTWRITEBYTECODE=1

# Marks by which a test and its programs wait for each other; see probes/steps.py.
begin() { STEPS=$(mktemp -d "$W/shared/XXXXXX"); export STEPS; }
go() { mkdir "$STEPS/$1"; }
seen() { [ -d "$STEPS/$1" ]; }
reached() { must "seen $1" $PATIENCE "${2:-}"; }

py() { # HOST [VAR=VALUE] PROGRAM
	local n=$1; shift
	spawn "$n" "${@:1:$#-1}" python3 -c "from steps import *
${!#}"; }

test_a_program_whose_last_thread_ends_is_gone_and_so_is_its_lock() {
	timeout -k 1 $PATIENCE "$TESTS/host" -s 1 "$PROBES/mainends" last "$F"
	assertEquals "exit status" 0 $?
	assertEquals "freed" 0 "$(busy "$F")"
	assertNoKeys
}

test_a_thread_can_lock_when_main_has_ended() {
	local path
	mkdir -p "$W/shared/elsewhere"
	for path in "$F" "$W/shared/elsewhere/x"; do
		begin
		: >"$W/out"
		spawn 1 "$PROBES/mainends" worker "$path" "$STEPS" >"$W/out" 2>&1
		reached asked
		assertEquals "$path" "flock 0 " "$(cat "$W/out")"
		[ "$path" != "$F" ] || assertEquals "held on another host" 1 "$(busy "$F")"
		go end; wait $PID; assertEquals "exit status" 0 $?
		assertNoKeys
	done
}

test_a_thread_that_closes_the_lock_of_an_ended_main_frees_it() {
	begin
	spawn 1 "$PROBES/mainends" close "$F" "$STEPS"
	reached ready
	assertEquals "held on another host" 1 "$(busy "$F")"
	freed_by 'go close; reached closed'
	go end; wait $PID; assertEquals "exit status" 0 $?
}

test_a_lock_outlives_the_end_of_main_as_long_as_its_thread_keeps_it() {
	begin
	spawn 1 NETFLOCK_TTL=1s "$PROBES/mainends" close "$F" "$STEPS"
	reached ready
	keeps "$F" 1500
	assertEquals "held on another host" 1 "$(busy "$F")"
	freed_by 'go close; reached closed; go end; { wait $PID; } 2>/dev/null'
}

test_closedir_of_nothing_is_an_error_and_no_crash() {
	local how
	for how in bare H; do
		$how 1 python3 -c 'if 1:
			import ctypes, errno
			c = ctypes.CDLL(None, use_errno=True)
			print(c.closedir(None), errno.errorcode[ctypes.get_errno()])' >"$W/out" 2>&1
		status_is 0 $? "$how" "$W/out"
		assertEquals "$how" "-1 EINVAL" "$(cat "$W/out")"
	done
}

# --- a number that meant a file outside the prefix, and now means one inside it -----------------------------------

# again FIRST SECOND [BETWEEN]: locks and closes FIRST, then locks SECOND, which must get the same number.
again() {
	py 1 "
f = opened('$1'); flock(f, EX); os.close(f)
${3:-}
g = opened('$2')
print(f == g, flock(g, EX), flush=True)
done('in'); until('end')" >"$W/out" 2>&1
	reached in
	assertEquals "the same number, locked" "True 0" "$(cat "$W/out")"
}

test_a_hard_link_under_the_prefix_is_protected_after_a_lock_by_a_name_outside() {
	begin
	export NF_PREFIX=$D/in
	bare 1 sh -c "mkdir -p $D/in $D/out && touch $D/out/x && ln -f $D/out/x $D/in/x"; bare 2 mkdir -p "$D/in"
	again "$D/out/x" "$D/in/x"
	assertEquals "held on another host" 1 "$(busy "$D/in/x")"
	go end; wait $PID
	wait_free "$D/in/x"
	unset NF_PREFIX
	assertNoKeys
}

test_a_file_whose_folder_was_moved_under_the_prefix_is_protected() {
	begin
	export NF_PREFIX=$D/in
	bare 1 sh -c "mkdir -p $D/in $D/new && touch $D/new/x"; bare 2 mkdir -p "$D/in/new"
	again "$D/new/x" "$D/in/new/x" "os.rename('$D/new', '$D/in/new')"
	assertEquals "held on another host" 1 "$(busy "$D/in/new/x")"
	go end; wait $PID
	wait_free "$D/in/new/x"
	unset NF_PREFIX
	assertNoKeys
}

test_a_file_that_has_another_mount_under_the_prefix_is_protected() {
	begin
	# The host's folder is mounted under the prefix, and can be reached by its own name too.
	again "$HOSTS/1/mounted" "$D/mounted"
	assertEquals "held on another host" 1 "$(busy "$D/mounted")"
	go end; wait $PID
	wait_free "$D/mounted"
	assertNoKeys
}

test_a_duplicate_into_a_number_that_meant_a_file_outside_is_protected() {
	begin
	py 1 "
f = opened('$W/shared/plain'); flock(f, EX)
g = opened()
os.dup2(g, f)
print(flock(f, EX), flush=True)
done('in'); until('end')" >"$W/out" 2>&1
	reached in
	assertEquals 0 "$(cat "$W/out")"
	assertEquals "held on another host" 1 "$(busy "$F")"
	go end; wait $PID
	wait_free "$F"
	assertNoKeys
}

test_quick_exit_frees_the_lock_at_once() {
	H 1 python3 -c 'if 1:
		import ctypes, fcntl, sys
		f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX)
		ctypes.CDLL(None).quick_exit(7)' "$F"
	assertEquals "exit status" 7 $?
	wait_free "$F"
	assertNoKeys
}

test_a_lock_closed_after_chroot_is_freed() {
	begin
	mkdir -p "$STEPS/top/steps"
	py 1 "
f = opened(); flock(f, EX)
os.mkdir(STEPS + '/in'); until('chroot')
os.chroot(STEPS + '/top')
os.close(f); os.mkdir('/steps/closed')
while not os.path.isdir('/steps/end'): time.sleep(0.01)"
	reached in; assertEquals "held on another host" 1 "$(busy "$F")"
	go chroot; reached top/steps/closed
	wait_free "$F"
	assertNoKeys
	go top/steps/end; wait $PID
}

test_standard_error_that_takes_no_more_does_not_end_the_lease() {
	begin
	# A pipe that is full and that nobody reads: a warning cannot be written to it.
	py 1 NETFLOCK_TTL=3s NETFLOCK_CONNECT_TIMEOUT=300ms "
r, w = os.pipe()
os.set_blocking(w, False)
for size in 65536, 1:
    try:
        while True: os.write(w, b'x' * size)
    except BlockingIOError: pass
os.set_blocking(w, True)
os.dup2(w, 2)
f = opened(); flock(f, EX)
done('in'); until('end')"
	reached in
	R client pause 1500 all >/dev/null # more than a third of the lease, so that a renewal fails
	keeps "$F" 4000
	assertEquals "held on another host" 1 "$(busy "$F")"
	freed_by 'go end; wait $PID'
}

test_a_program_with_much_data_for_each_thread_can_lock() {
	H 1 "$PROBES/bigtls" "$F" >"$W/out" 2>&1
	status_is 0 $? "locks" "$W/out"
	assertEquals "flock 0 " "$(cat "$W/out")"
	assertNoKeys
}

test_a_message_with_wrong_rights_is_an_error_and_no_crash() {
	bare 1 "$PROBES/badrights" >"$W/plain" 2>&1
	H 1 "$PROBES/badrights" >"$W/out" 2>&1
	status_is 0 $? "with the shim" "$W/out"
	assertEquals "as without it" "$(cat "$W/plain")" "$(cat "$W/out")"
}

# --- a signal handler that has interrupted malloc() ----------------------------------------------------------------

# handler_closes MESSAGE [VAR=VALUE...]: $BEFORE is evaluated between the lock and the close.
handler_closes() {
	local message=$1; shift
	begin
	: >"$W/out"
	spawn 1 "$@" "$PROBES/handler" close "$F" "$STEPS" >"$W/out"
	reached in
	assertEquals "$message: held on another host" 1 "$(busy "$F")"
	eval "${BEFORE:-}"
	go go; reached closed "$message: $(cat "$W/out")"
	assertEquals "$message" closed "$(cat "$W/out")"
	wait_free "$F"
	assertNoKeys
	go end; wait $PID; assertEquals "$message: exit status" 0 $?
}

test_a_handler_that_has_interrupted_malloc_may_close_a_lock() {
	handler_closes "plain"
	handler_closes "a keeper has it" NETFLOCK_KEEPER=always
	handler_closes "a stand-in" NETFLOCK_LOCAL=off
	BEFORE='R client kill type normal skipme yes >/dev/null'
	handler_closes "the connection is gone, a unix socket"
	handler_closes "the connection is gone, a number" NETFLOCK_URL="redis://127.0.0.1:$PORT"
	handler_closes "the connection is gone, a name" NETFLOCK_URL="redis://localhost:$PORT"
	BEFORE='R client pause 1500 all >/dev/null'
	# For longer than the renewal thread stays when it has nothing to renew.
	handler_closes "Redis does not answer" NETFLOCK_CONNECT_TIMEOUT=900ms
	unset BEFORE
}

test_a_handler_that_has_interrupted_malloc_may_exit_with_a_lock() {
	local keeper
	for keeper in auto never always; do
		begin
		spawn 1 NETFLOCK_KEEPER=$keeper "$PROBES/handler" exit "$F" "$STEPS" >"$W/out"
		reached in; go go
		wait $PID; status_is 0 $? "$keeper" "$W/out"
		wait_free "$F"
		assertNoKeys
	done
}

test_handlers_that_close_locks_all_the_time_never_deadlock() {
	local how n
	for how in "auto 200" "always 40"; do
		n=${how#* }
		H 1 NETFLOCK_KEEPER="${how% *}" timeout -k 1 60 "$PROBES/handler" storm "$F" "$n" >"$W/out" 2>&1
		status_is 0 $? "NETFLOCK_KEEPER=$how" "$W/out"
		assertEquals "by the handler" "closed $n" "$(cat "$W/out")"
		assertNoKeys
	done
}

. /usr/share/shunit2/shunit2
