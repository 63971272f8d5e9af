#!/bin/bash
# Record locks where they are most likely to break: see docs/design.md for what is promised.
. "$(dirname "$0")/../lib.sh"

# An actor that evaluates lines of Python, and answers each with the value, or the name of the error.
cat >"$W/ev.py" <<'S'
import ctypes, errno, fcntl, os, signal, struct, subprocess, sys, threading, time
NAMES = {"r": fcntl.F_RDLCK, "w": fcntl.F_WRLCK, "u": fcntl.F_UNLCK}
CMDS = {"p": (5, 6, 7), "o": (36, 37, 38)} # get, set, set and wait
libc = ctypes.CDLL(None, use_errno=True)
def opened(path=None, flags=os.O_RDWR | os.O_CREAT):
    return os.open(path or os.environ["F"], flags, 0o666)
def call(fd, cmd, mode, start, length, whence=0):
    return struct.unpack("hhqqi4x", fcntl.fcntl(fd, cmd, struct.pack("hhqqi4x", NAMES[mode], whence, start, length, 0)))
def lk(fd, mode, start=0, length=0, kind="p", wait=False):
    call(fd, CMDS[kind][2 if wait else 1], mode, start, length)
    return "OK"
def get(fd, mode="w", start=0, length=0, kind="p"):
    t, whence, s, l, pid = call(fd, CMDS[kind][0], mode, start, length)
    return "free" if t == fcntl.F_UNLCK else "%s %d %d %s" % ("rw"[t], s, l, "-" if pid < 0 else pid)
def again(names): # this program anew, in the same process
    os.environ["FDS"] = " ".join("%s=%d" % (n, globals()[n]) for n in names.split())
    for n in names.split(): os.set_inheritable(globals()[n], True)
    os.execv(sys.executable, [sys.executable] + sys.argv)
for pair in os.environ.pop("FDS", "").split():
    globals()[pair.split("=")[0]] = int(pair.split("=")[1])
print("READY", flush=True)
while True:
    line = sys.stdin.readline()
    if not line: break
    line = line.rstrip("\n")
    try:
        try: r = eval(line)
        except SyntaxError: exec(line); r = "OK"
        print("OK" if r is None else r, flush=True)
    except OSError as e: print(errno.errorcode[e.errno], flush=True)
S
cat >"$W/ev" <<S
#!/bin/sh
exec /usr/bin/python3 -u $W/ev.py
S
chmod 755 "$W/ev"
export F
ev() { # ev NAME HOST [VAR=VALUE...]
	local probes=$PROBES; mkdir -p "$W/bin"; ln -sf "$W/ev" "$W/bin/actor"
	PROBES=$W/bin; actor "$@"; PROBES=$probes
}
is() { assertEquals "$2: $3" "$1" "$(ask "$2" "$3")"; } # is WANTED ACTOR LINE
killed() {
	local n
	for n; do kill -KILL "${ACT_PID[$n]}"; done
	for n; do { wait "${ACT_PID[$n]}"; } 2>/dev/null; done
}
# Of those that have something in the file: how many leases are over, but still noted?
run_out() { [ "$(R zcount "netflock:{lock:$F}:leases" -inf "$(now_ms)")" = "$1" ]; }

# asan: no: it is about the scripts in Redis
test_ranges_go_with_the_last_lease_also_where_another_ran_out_before() {
	ev a 1 NETFLOCK_TTL=1s; ev b 2 NETFLOCK_TTL=3s; ev c 3
	is OK a 'fd = opened()'; is OK a 'lk(fd, "r", 0, 10)'
	is OK b 'fd = opened()'; is OK b 'lk(fd, "r", 0, 10)'
	is OK c 'fd = opened()'
	killed a
	must 'run_out 1'
	killed b # its lease is good for two seconds more
	is EAGAIN c 'lk(fd, "w", 0, 10)' # a is taken out
	must '[ "$(R exists "netflock:{lock:$F}:leases")" = 0 ]'
	is OK c 'lk(fd, "w", 0, 10)'
}

cat >"$W/readers.py" <<'S'
import fcntl, os, signal, sys
f = open(sys.argv[1])
r, w = os.pipe()
pids = []
for i in range(40):
    pid = os.fork()
    if pid == 0:
        fcntl.lockf(f, fcntl.LOCK_SH)
        os.write(w, b".")
        signal.pause()
    pids.append(pid)
n = 0
while n < 40: n += len(os.read(r, 40))
for pid in pids: os.kill(pid, 9); os.waitpid(pid, 0)
S

test_more_dead_readers_of_this_host_than_fit_into_one_answer_do_not_keep_a_writer_out() {
	ev a 1 NETFLOCK_KEEPER=never; ev b 2
	is OK a 'fd = opened()'; is OK b 'fd = opened()'
	H 1 NETFLOCK_KEEPER=never python3 "$W/readers.py" "$F"
	is EAGAIN b 'lk(fd, "w")'
	is OK a 'lk(fd, "w")'
	is EAGAIN b 'lk(fd, "r", 7, 1)'
}

test_a_process_that_was_stopped_for_longer_than_its_lease_goes_on_if_nobody_was_in_between() {
	local i
	ev a 1 NETFLOCK_TTL=1s; ev b 2
	is OK a 'fd = opened()'; is OK a 'lk(fd, "r", 0, 10)'
	for i in 1 2 3; do # its renewal may be faster than its request
		kill -STOP "${ACT_PID[a]}"
		tell a "lk(fd, 'r', $i * 20, 10)"
		must 'run_out 1'
		kill -CONT "${ACT_PID[a]}"
		assertEquals OK "$(reply a)"
	done
	is OK b 'fd = opened()'; is EAGAIN b 'lk(fd, "w", 0, 10)'; is EAGAIN b 'lk(fd, "w", 60, 10)'
}

test_it_goes_on_also_if_it_was_stopped_in_the_middle_of_a_renewal() {
	ev a 1 NETFLOCK_TTL=2s; ev b 2
	is OK a 'fd = opened()'; is OK a 'lk(fd, "r", 0, 10)'
	R client kill type normal >/dev/null
	kill -STOP "$REDIS_PID"
	# Its renewal thread waits for Redis' answer, the first of several: its connection was closed.
	must 'grep -q "^45 " /proc/${ACT_PID[a]}/task/*/syscall'
	kill -STOP "${ACT_PID[a]}"
	kill -CONT "$REDIS_PID"
	must 'run_out 1'
	kill -CONT "${ACT_PID[a]}"
	is OK a 'lk(fd, "r", 20, 10)'
	must 'run_out 0' # renewed
	is OK b 'fd = opened()'; is EAGAIN b 'lk(fd, "w", 0, 10)'; is EAGAIN b 'lk(fd, "w", 20, 10)'
}

test_threads_that_waited_for_the_same_range_leave_no_ticket() {
	ev a 1; ev b 2
	is OK a 'fd = opened()'; is OK b 'fd = opened()'; is OK b 'lk(fd, "w", 0, 10)'
	is OK a 'lk(fd, "w", 50, 10)'
	is OK a 'T = [threading.Thread(target=lk, args=(fd, "w", 0, 10, "p", True)) for i in range(3)]'
	is OK a 'for t in T: t.start()'
	must '[ "$(R zcard "netflock:{lock:$F}:rqueue")" = 3 ]'
	is OK b 'lk(fd, "u", 0, 10)'
	is OK a 'for t in T: t.join()'
	is OK a 'lk(fd, "u", 0, 10)'
	is OK b 'lk(fd, "w", 0, 10)'
	assertEquals "nobody waits" "" "$(R keys 'netflock:waits:*')"
}

test_a_wait_that_could_not_be_cancelled_at_once_is_cancelled_later() {
	ev a 1; ev b 2
	is OK a 'fd = opened()'; is OK b 'fd = opened()'; is OK b 'lk(fd, "w", 0, 10)'
	is OK a 'lk(fd, "w", 50, 10)'
	is OK a 'def on(*a): raise InterruptedError(errno.EINTR, "")'
	ask a 'signal.signal(signal.SIGUSR1, on)' >/dev/null
	tell a 'lk(fd, "w", 0, 10, "p", True)'
	must '[ "$(R zcard "netflock:{lock:$F}:rqueue")" = 1 ]'
	R acl setuser default -evalsha -eval >/dev/null
	must 'grep -q "^45 " "/proc/${ACT_PID[a]}/syscall"' # see interrupt in records-waits.sh
	kill -USR1 "${ACT_PID[a]}"
	assertEquals EINTR "$(reply a)"
	R acl setuser default +evalsha +eval >/dev/null
	must '[ -z "$(R keys "netflock:waits:*")" ]'
	assertEquals 0 "$(R zcard "netflock:{lock:$F}:rqueue")"
	is OK a 'lk(fd, "r", 20, 10)'
}

test_what_a_close_that_nobody_saw_has_dropped_is_asked_for_again() {
	ev a 1; ev b 2; ev q 1
	for i in a b q; do is OK $i 'fd = opened()'; done
	is OK a 'lk(fd, "w", 0, 10)'
	is OK a 'fd2 = opened()'; is 0 a 'libc.syscall(3, fd2)' # close(2), past the library
	is OK q 'lk(fd, "w", 0, 10)'; is OK q 'lk(fd, "u", 0, 10)'
	is OK a 'lk(fd, "w", 0, 10)'
	is EAGAIN b 'lk(fd, "w", 0, 10)'
}

# A PID namespace of its own, in which its number means nothing outside.
PIDS='echo 3999999 >/proc/sys/kernel/ns_last_pid; "$0"; exit $?'
apart() { ev "$@" unshare -pf --kill-child --mount-proc sh -c "$PIDS"; } # as ev

test_a_keeper_of_another_pid_namespace_does_not_take_a_process_on() {
	ev a 1; apart c 1; ev b 2
	for i in a b c; do is OK $i 'fd = opened()'; done
	is OK a 'lk(fd, "w", 0, 10)'; is READY a 'again("fd")'
	is OK c 'lk(fd, "w", 10, 10)'; is READY c 'again("fd")'
	must '[ "$(keepers | count)" = 2 ]'
	is EAGAIN b 'lk(fd, "w", 10, 10)'
	is OK a 'lk(fd, "u")'
	is EAGAIN b 'lk(fd, "w", 10, 10)'; is OK b 'lk(fd, "w", 0, 10)'
}

test_what_the_owner_has_given_up_is_no_loss_to_a_keeper_that_was_not_told() {
	ev a 1 NETFLOCK_KEEPER=always; apart c 1 NETFLOCK_KEEPER=always NETFLOCK_TTL=1s
	is OK a 'fd = opened()'; is OK c 'fd = opened()'
	is OK a 'lk(fd, "w", 0, 10)'
	is OK c 'lk(fd, "w", 10, 10)'; is OK c 'lk(fd, "u", 10, 10)'; is OK c 'lk(fd, "w", 20, 10)'
	local till; till=$(($(now_ms) + 2000)) # three renewals later
	must '[ "$(R zcount "netflock:{lock:$F}:leases" $till +inf)" = 2 ]'
	is OK c 'lk(fd, "w", 10, 10)'
}

. /usr/share/shunit2/shunit2
