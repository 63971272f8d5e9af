#!/bin/bash
# One open file description, several descriptors or processes: duplicated, inherited, passed, locked again.
. "$(dirname "$0")/../lib.sh"

export LOCKFILE=$F PYTHONPATH=$TESTS/probes PYTHONDONTWRITEBYTECODE=1
QUEUE="netflock:{lock:$F}:queue"

# Marks by which a test and its programs wait for each other; see probes/steps.py.
begin() { STEPS=$(mktemp -d "$W/shared/XXXXXX"); export STEPS; }
go() { mkdir "$STEPS/$1"; }
seen() { [ -d "$STEPS/$1" ]; }
reached() { must "seen $1" $PATIENCE "${2:-}"; }
STAY='until [ -d "$STEPS/end" ]; do sleep 0.02; done'

py() { # HOST [VAR=VALUE] PROGRAM
	local n=$1; shift
	spawn "$n" "${@:1:$#-1}" python3 -c "from steps import *
${!#}"; }

# The kernel of the first host has the lock, so the other hosts must find it held.
still_held() { # MESSAGE [FILE]
	bare 1 flock -n "${2:-$F}" true; assertEquals "$1: the kernel's lock, without which this test says nothing" 1 $?
	held "${2:-$F}" || fail "$1: it is not held for other hosts"
}
let_go() { # MESSAGE PID: the holders end, and the lock with them; leases do not end here
	assertEquals "$1: held on another host" 1 "$(busy "$F")"
	go end; { wait "$2"; } 2>/dev/null
	wait_free "$F"
	assertNoKeys
}
queued() { [ "$(R zcard "$QUEUE")" = "${1:-1}" ]; }

test_a_duplicate_of_a_descriptor_that_a_child_has_ends_no_lock() {
	local how i=0 all=('os.dup(f)' 'libc.dup(f)' 'os.dup2(f, 50)' 'os.dup2(f, 51, inheritable=False)'
		'fcntl.fcntl(f, fcntl.F_DUPFD, 60)' 'fcntl.fcntl(f, fcntl.F_DUPFD_CLOEXEC, 61)')
	begin
	for how in "${all[@]}"; do
		py 1 LOCKFILE="$D/$i" "
f = opened()
child(lambda: until('end'))
d = $how
os.close(f)
flock(d, EX)
os.close(d)
done('closed$i'); until('end')"
		i=$((i + 1))
	done
	for i in "${!all[@]}"; do reached "closed$i" "${all[i]}:"; still_held "${all[i]}" "$D/$i"; done
	assertEquals "held on another host" 1 "$(busy "$D/0")"
	go end
	for i in "${!all[@]}"; do wait_free "$D/$i"; done
	assertNoKeys
}

test_a_duplicate_of_an_inherited_descriptor_ends_no_lock_of_the_shell_that_opened_it() {
	begin
	spawn 1 bash -c 'exec 9>"$1"; shift; "$@"; mkdir "$STEPS/closed"; '"$STAY" sh "$F" python3 -c '
import fcntl, os
d = os.dup(9); os.close(9)
fcntl.flock(d, fcntl.LOCK_EX)
e = os.dup(d); os.close(d); os.close(e)'
	reached closed; still_held "after the program"; let_go "the shell" $PID
}

test_standard_input_output_and_error_are_shared_with_the_shell_too() {
	local n
	begin
	for n in 0 1 2; do
		spawn 1 LOCKFILE="$D/$n" bash -c '{ "$@"; mkdir "$STEPS/closed'"$n"'"; '"$STAY"'; } '"$n"'<>"$LOCKFILE"' sh \
			python3 -c "import fcntl, os; fcntl.flock($n, fcntl.LOCK_EX); os.close($n)"
	done
	for n in 0 1 2; do reached "closed$n"; still_held "descriptor $n" "$D/$n"; done
	go end
	for n in 0 1 2; do wait_free "$D/$n"; done
	assertNoKeys
}

test_a_received_descriptor_that_is_closed_leaves_the_sender_s_lock() {
	begin
	py 1 "
a, b = socket.socketpair()
def sender():
    socket.send_fds(a, [b'x'], [opened()]); until('end')
child(sender)
f = socket.recv_fds(b, 1, 1)[1][0]
flock(f, EX)
os.close(f)
done('closed'); until('end')"
	reached closed; still_held "recvmsg"; let_go "recvmsg" $PID
}

test_descriptors_received_many_at_a_time_leave_the_sender_s_lock() {
	begin
	spawn 1 "$PROBES/receive" "$F" "$STEPS"
	reached closed; still_held "recvmmsg"; let_go "recvmmsg" $PID
}

test_a_duplicate_of_a_received_descriptor_leaves_the_sender_s_lock() {
	begin
	py 1 "
a, b = socket.socketpair()
def sender():
    socket.send_fds(a, [b'x'], [opened()]); until('end')
child(sender)
f = socket.recv_fds(b, 1, 1)[1][0]
d = os.dup(f)
flock(f, EX)
os.close(f); os.close(d)
done('closed'); until('end')"
	reached closed; still_held "dup"; let_go "dup" $PID
}

test_a_sent_descriptor_that_is_locked_and_closed_leaves_the_receiver_s_lock() {
	begin
	py 1 "
a, b = socket.socketpair()
def receiver():
    socket.recv_fds(b, 1, 1); done('received'); until('end')
f = opened()
d = os.dup(f); os.close(f)   # a number that no child has
child(receiver)
e = opened(); socket.send_fds(a, [b'x'], [e]); until('received')
flock(e, EX)
os.close(e)
done('closed'); until('end')"
	reached closed; still_held "sendmsg"; let_go "sendmsg" $PID
}

test_a_lock_that_is_a_child_s_standard_output_stays_when_the_parent_closes_its_file() {
	begin
	py 1 "
f = open(F, 'a')
flock(f, EX)
p = subprocess.Popen(STAY, stdout=f)
f.close()
done('closed'); p.wait()"
	reached closed; still_held "Popen"; let_go "Popen" $PID
}

test_a_lock_duplicated_by_posix_spawn_stays_in_the_child() {
	begin
	py 1 "
f = opened()
flock(f, EX)
p = os.posix_spawn(STAY[0], STAY, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, f, 1)])
os.close(f)
done('closed'); os.waitpid(p, 0)"
	reached closed; still_held "posix_spawn"; let_go "posix_spawn" $PID
}

test_an_inheritable_duplicate_keeps_the_lock_in_a_child_of_system() {
	begin
	py 1 "
f = opened()
flock(f, EX)
os.dup2(f, 9, inheritable=True)
os.system(STAY[2] + ' &')
os.close(9); os.close(f)
done('closed'); until('end')"
	reached closed; still_held "system"; let_go "system" $PID
}

test_a_lock_asked_for_again_is_not_let_go_to_a_waiter() {
	begin
	spawn 1 bash -c 'exec 9>"$LOCKFILE"; flock 9; mkdir "$STEPS/in"
		until [ -d "$STEPS/again" ]; do sleep 0.02; done
		flock 9; mkdir "$STEPS/has"; '"$STAY"
	local holder=$PID
	reached in
	spawn 2 flock "$F" mkdir "$STEPS/other"; local other=$PID
	must queued
	go again; reached has
	assertFalse "another host was let in" "seen other"
	still_held "asked for again"
	go end; wait $holder
	reached other; { wait $other; } 2>/dev/null
	assertNoKeys
}

test_a_lock_asked_for_again_is_not_let_go_while_a_child_works_under_it() {
	local who
	for who in parent child; do # which of them asks again
		begin
		py 1 "
f = opened()
flock(f, EX)
def ask():
    done('in'); until('again')
    flock(f, EX)
    done('has'); until('end')
if '$who' == 'child':
    child(ask)
else:
    child(lambda: until('end')); ask()
until('end')"
		local holder=$PID
		reached in
		spawn 2 flock "$F" mkdir "$STEPS/other"; local other=$PID
		must queued
		go again; reached has "the $who asks again:"
		assertFalse "the $who asked again, and another host was let in" "seen other"
		still_held "the $who asked again"
		go end; wait $holder
		reached other; { wait $other; } 2>/dev/null
		assertNoKeys
	done
}

# asan: no: the exclusive one's paths; the mode is Redis' business
test_a_shared_lock_asked_for_again_is_not_let_go_to_a_waiting_writer() {
	begin
	py 1 "
f = opened()
flock(f, SH)
child(lambda: until('end'))
done('in'); until('again')
flock(f, SH)
done('has'); until('end')"
	local holder=$PID
	reached in
	spawn 2 flock "$F" mkdir "$STEPS/other"; local other=$PID
	must queued
	go again; reached has
	assertFalse "another host was let in" "seen other"
	still_held "asked for again"
	go end; wait $holder
	reached other; { wait $other; } 2>/dev/null
	assertNoKeys
}

# A waiter has its own kernel's lock and waits for another host, when a process that shares its descriptor unlocks it:
# from then on the waiter has nothing, and must not take what others of its host get.
test_a_waiter_that_a_sharer_unlocked_takes_no_lock_from_its_host() {
	begin
	spawn 1 bash -c 'exec 9>"$LOCKFILE"; flock 9; until [ -d "$STEPS/release" ]; do sleep 0.02; done'
	local first=$PID
	wait_held "$F"
	py 2 "
f = opened()
def sharer():
    until('unlock'); flock(f, UN); done('unlocked'); until('end')
child(sharer)
flock(f, EX)
done('waited'); until('end')"
	local waiter=$PID
	must queued
	go unlock; reached unlocked
	kill -STOP $waiter # so that it asks again only when another has the lock
	go release; { wait $first; } 2>/dev/null
	py 2 "
f = opened()
flock(f, EX)
done('in'); until('end')"
	local taker=$PID token
	reached in
	token=$(R get "lock:$F")
	spawn 3 flock "$F" mkdir "$STEPS/other"; local other=$PID
	must queued
	kill -CONT $waiter
	reached waited "the one that lost it goes on:"
	assertEquals "the token of the one that holds it" "$token" "$(R get "lock:$F")"
	assertFalse "another host was let in" "seen other"
	bare 2 flock -n "$F" true; assertEquals "the kernel's lock" 1 $?
	go end; { wait $waiter $taker; } 2>/dev/null
	reached other; { wait $other; } 2>/dev/null
	assertNoKeys
}

# A process that remembers its lock must not believe in it when a sharer has let it go.
test_a_lock_that_a_sharer_let_go_is_asked_for_anew() {
	begin
	py 1 "
f = opened()
def sharer():
    until('convert'); flock(f, SH); flock(f, UN); done('unlocked'); until('end')
child(sharer)
flock(f, EX); done('in'); until('again')
print(flock(f, EX | NB), flush=True); done('asked'); until('end')" >"$W/out" 2>&1
	local first=$PID
	reached in; go convert; reached unlocked
	spawn 2 sh -c 'flock -n "$LOCKFILE" sh -c '"'mkdir \"\$STEPS/other\"; $STAY'"; local other=$PID
	reached other
	go again; reached asked
	assertEquals "while another host has it" "Resource temporarily unavailable" "$(cat "$W/out")"
	go end; { wait $first $other; } 2>/dev/null
	assertNoKeys
}

test_a_lock_that_a_sharer_s_failed_conversion_let_go_is_asked_for_anew() {
	begin
	py 2 "
f = opened()
flock(f, SH); done('reads'); until('gone')"
	local other=$PID
	reached reads
	py 1 "
f = opened()
def sharer():
    until('convert'); print(flock(f, EX | NB), flush=True); done('refused'); until('end')
child(sharer)
flock(f, SH); done('in'); until('again')
print(flock(f, SH), flush=True); done('asked'); until('end')" >"$W/out" 2>&1
	local first=$PID
	reached in; go convert; reached refused; go again; reached asked
	assertEquals "Resource temporarily unavailable 0" "$(paste -sd" " "$W/out")"
	go gone; { wait $other; } 2>/dev/null
	still_held "read again"
	let_go "read again" $first
}

test_a_failed_conversion_leaves_no_lock_to_a_duplicate_of_another_descriptor() {
	begin
	py 1 "
a = opened(); d = os.dup(a); flock(a, SH)
b = opened(); flock(b, SH)
print(flock(b, EX | NB), flush=True)
flock(a, UN); done('unlocked'); until('again')
print(flock(a, SH | NB), flush=True); done('asked'); until('end')" >"$W/out" 2>&1
	local first=$PID
	reached unlocked
	spawn 2 sh -c 'flock -n "$LOCKFILE" sh -c '"'mkdir \"\$STEPS/other\"; $STAY'"; local other=$PID
	reached other "nobody holds it, so another host gets in:"
	go again; reached asked
	assertEquals "refused, and refused" "Resource temporarily unavailable Resource temporarily unavailable" "$(paste -sd" " "$W/out")"
	go end; { wait $first $other; } 2>/dev/null
	assertNoKeys
}

test_two_sharers_that_lock_in_turn_hold_it_until_the_last_one_closes() {
	begin
	py 1 "
f = opened()
def sharer():
    until('second'); flock(f, EX)
    child(lambda: until('end'))
    done('locked'); until('end')
child(sharer)
flock(f, EX); done('in'); until('locked')
os.close(f); done('closed'); until('end')"
	reached in; go second; reached closed
	still_held "the first has closed"; let_go "the first has closed" $PID
}

# asan: no: a keeper and a renewal, as in keeper.sh
test_a_lock_on_an_inherited_descriptor_outlives_the_program_that_was_killed() {
	begin
	spawn 1 NETFLOCK_TTL=1s bash -c 'exec 9>"$LOCKFILE"; "$@"; mkdir "$STEPS/killed"; '"$STAY" sh \
		python3 -c 'import fcntl, os, signal; fcntl.flock(9, fcntl.LOCK_EX); os.kill(os.getpid(), signal.SIGKILL)' 2>/dev/null
	reached killed
	keeps "$F" 1500
	still_held "the shell has the description"; let_go "the shell has the description" $PID
}

test_a_file_renamed_between_two_locks_leaves_nothing_under_its_old_name() {
	begin
	py 1 "
f = opened(); flock(f, SH)
os.rename(F, F + '.new')
print(flock(f, EX), flush=True); done('in'); until('end')" >"$W/out" 2>&1
	reached in
	assertEquals 0 "$(cat "$W/out")"
	held "$F" && fail "the old name is still held"
	held "$F.new" || fail "the new name is not held"
	go end; wait $PID
	bare 1 rm -f "$F.new"
	assertNoKeys
}

test_a_hundred_readers_in_one_program_leave_nothing_when_all_have_unlocked() {
	local order
	for order in 'all' 'reversed(all)'; do
		begin
		py 1 "
all = [opened() for i in range(100)]
for f in all: flock(f, SH)
for f in $order: flock(f, UN)
done('unlocked'); until('end')"
		reached unlocked
		assertNoKeys
		go end; wait $PID
	done
}

. /usr/share/shunit2/shunit2
