#!/bin/bash
# The file that is shipped: what it exports and needs, what it costs a program that locks nothing, and whom it can
# live with in one process. Where the file itself is looked at it is the plain build, not a sanitizer's.
. "$(dirname "$0")/../lib.sh"

GLIBC_FLOOR=${GLIBC_FLOOR:-2.34}   # the README says so, too

exported() { nm -D --defined-only "$PLAIN_SO" | awk '{ sub(/@.*/, "", $3); print $3 }' | sort -u; }

# (asan: no: the shipped file is looked at)
test_it_exports_what_the_list_says_and_nothing_else() {
	local list=$TOP/shim/export/symbols
	[ -r "$list" ] || { fail "no $list"; return; }
	assertEquals "$(grep -v -e '^#' -e '^$' "$list" | sort -u)" "$(exported)"
}

# (asan: no: the shipped file is looked at)
test_it_wraps_at_least_the_calls_that_end_a_tenure() {
	local s all; all=$(exported)
	for s in flock close fclose freopen dup2 dup3 close_range closefrom; do
		assertTrue "$s" "echo '$all' | grep -qx $s"
	done
}

# (asan: no: the shipped file is looked at)
test_no_symbol_needs_a_newer_glibc_than_documented() {
	local newest
	newest=$(objdump -T "$PLAIN_SO" | grep -o 'GLIBC_[0-9.]*' | cut -d_ -f2 | sort -Vu | tail -1)
	assertEquals "newest version needed is $newest" "$GLIBC_FLOOR" "$(printf '%s\n%s\n' "$newest" "$GLIBC_FLOOR" | sort -V | tail -1)"
}

# (asan: no: the shipped file is looked at)
test_no_fortified_symbol_is_needed() {
	# They appear when a distribution's flags are used, and are missing in other C libraries.
	assertEquals "" "$(objdump -T "$PLAIN_SO" | grep '_chk$' | grep -v __stack_chk_fail)"
}

# (asan: no: the shipped file is looked at)
test_it_needs_libc_alone() {
	assertEquals "libc.so.6" "$(objdump -p "$PLAIN_SO" | awk '/NEEDED/ && $2 !~ /^ld-linux/ { print $2 }')"
}

# (asan: no: the shipped file is looked at)
test_nothing_is_executable_on_the_stack_and_nothing_is_relocated_in_text() {
	assertFalse "text relocations" 'objdump -p "$PLAIN_SO" | grep -q TEXTREL'
	assertFalse "executable stack" 'objdump -p "$PLAIN_SO" | grep -A1 STACK | grep -q "flags rwx"'
}

test_a_program_with_another_hiredis_is_locked_and_undisturbed() {
	mkfifo "$W/in"; exec 7<>"$W/in"
	H 1 "$PROBES/hiredis_clash" "$F" <"$W/in" >"$W/out" 2>&1 7<&- & local p=$!
	must 'grep -q locked $W/out'
	assertEquals 1 "$(busy "$F")"
	assertEquals 1 "$(R exists "lock:$F")"
	echo >&7; exec 7>&-
	wait $p; status_is 0 $? "" "$W/out"
	assertNoKeys
}

test_a_constructor_that_locks_before_ours_has_run_is_served() {
	# LD_PRELOAD's libraries are initialised from the last to the first: early before the shim.
	local r
	spawn_bare 1 LD_PRELOAD="$NF_PRELOAD:$PROBES/libearly.so" NETFLOCK_PREFIX="$D" NETFLOCK_URL="$NF_URL" \
		NETFLOCK_TTL="$AGES" EARLY_FILE="$F" EARLY_OUT="$W/early" sleep 30
	must '[ -s $W/early ]'
	assertEquals OK "$(cat "$W/early")"
	assertEquals 1 "$(busy "$F")"
	kill $PID; { wait $PID; } 2>/dev/null
	r=$(EARLY_FILE=$F EARLY_OUT=$W/early EARLY_CLOSE=1 bare 1 LD_PRELOAD="$NF_PRELOAD:$PROBES/libearly.so" \
		NETFLOCK_PREFIX="$D" NETFLOCK_URL="$NF_URL" NETFLOCK_TTL="$AGES" flock -n "$D/y" echo in)
	assertEquals in "$r"
	wait_free "$F"
}

# Threads, and everything opened, before and after the first matching lock.
cat >"$W/quiet.py" <<'S'
import fcntl, os, sys
def fds():
    r = []
    for f in os.listdir("/proc/self/fd"):
        try: r.append(os.readlink("/proc/self/fd/" + f))
        except OSError: pass
    return r
def report(s): print(s, len(os.listdir("/proc/self/task")), sum(1 for f in fds() if f.startswith("socket:")), flush=True)
report("start")
f = open(sys.argv[2], "a"); fcntl.flock(f, fcntl.LOCK_EX); fcntl.flock(f, fcntl.LOCK_UN); f.close()
report("elsewhere")
f = open(sys.argv[1], "a"); f.close()
report("opened")
S

test_no_thread_and_no_socket_before_the_first_matching_lock() {
	H 1 python3 "$W/quiet.py" "$F" "$W/shared/other" >"$W/out"
	assertEquals "$(printf 'start 1 0\nelsewhere 1 0\nopened 1 0')" "$(cat "$W/out")"
}

# (asan: no: the shipped file is looked at)
test_no_file_is_opened_and_little_is_called_by_a_program_that_locks_nothing() {
	local with without
	without=$(bare 1 strace -qq -f -o /dev/stdout /bin/true | grep -c .)
	bare 1 strace -qq -f -o "$W/trace" env LD_PRELOAD="$PLAIN_SO" NETFLOCK_PREFIX="$D" NETFLOCK_URL="$NF_URL" /bin/true
	# What env did before is not ours.
	sed -n '/execve("\/bin\/true"/,$p' "$W/trace" >"$W/true.trace"
	with=$(grep -c . <"$W/true.trace")
	assertEquals "opened: " "" "$(grep -e openat -e 'open(' "$W/true.trace" | grep -v -e libc.so.6 -e ld.so -e libnetflock.so -e /proc/self/maps -e ENOENT)"
	assertEquals "sockets, threads: " "" "$(grep -e 'socket(' -e 'connect(' -e 'clone3\?(' -e 'pipe' -e 'eventfd' "$W/true.trace")"
	assertBetween "system calls more than without" 0 25 $((with - without))
}

# Soon, and not when it would have renewed the last one, which is not before the test gives up.
test_the_thread_ends_soon_after_the_last_tenure() {
	actor a 1 NETFLOCK_TTL=600s
	assertEquals "OK 1" "$(ask a threads)"
	ask a open x c "$F" >/dev/null
	ask a flock x EX >/dev/null
	ask a flock x UN >/dev/null
	must '[ "$(ask a threads)" = "OK 1" ]'
	assertEquals OK "$(ask a flock x EX)"
	assertEquals "and starts again" 1 "$(busy "$F")"
	ask a close x >/dev/null
	must '[ "$(ask a threads)" = "OK 1" ]'
}

test_programs_that_lock_nothing_just_work() {
	local c
	for c in true 'ls /' 'sh -c "echo a | cat | sort"' 'python3 -c "import subprocess; subprocess.run([\"true\"], check=True)"' \
		'perl -e "print 1"' 'sqlite3 :memory: "select 1"' "bash -c 'exec 3>/dev/null 9>&3 255>&1; ulimit -n 64; true'"; do
		H 1 sh -c "$c" >/dev/null 2>"$W/err"
		status_is 0 $? "$c" "$W/err"
		assertEquals "$c" "" "$(cat "$W/err")"
	done
}

test_user_namespaces_can_be_entered_under_the_preload() {
	# A second thread would make this fail.
	H 1 unshare -Ur true; assertEquals "unshare" 0 $?
	need bwrap || return 0
	H 1 bwrap --dev-bind / / true; assertEquals "bwrap" 0 $?
	H 1 bwrap --dev-bind / / --unshare-all true; assertEquals "bwrap --unshare-all" 0 $?
}

test_it_says_its_version() {
	"$NETFLOCK" --version >"$W/out"; assertEquals 0 $?
	assertTrue "$(cat "$W/out")" 'grep -Eq "^netflock [0-9]+\.[0-9]+" "$W/out"'
}

. /usr/share/shunit2/shunit2
