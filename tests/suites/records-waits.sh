#!/bin/bash
# F_SETLKW: who waits for whom, deadlocks between hosts, signals, and Redis away.
. "$(dirname "$0")/../lib-records.sh"

# interrupt NAME: a signal to that process, when it is asleep: in fcntl(), in recv() for Redis' message, or in read() while Redis
# is away. One that comes just before would be lost, as it would be with the kernel's own call.
asleep() {
	local nr state _
	read -r nr _ <"/proc/${ACT_PID[$1]}/syscall"
	read -r _ _ state _ <"/proc/${ACT_PID[$1]}/stat"
	case $state$nr in S72 | S25 | S45 | S207 | S0 | S63) return 0 ;; *) return 1 ;; esac
}
interrupt() {
	must "asleep $1"
	kill -USR1 "${ACT_PID[$1]}"
}

# nobody_waits: neither in the kernel nor in Redis is there a waiter of ours.
nobody_waits() {
	[ -n "$WORLD" ] || must '[ -z "$(R keys "*queue"; R keys "netflock:waits:*")" ]'
}

# --- getting in -----------------------------------------------------------------------------------------------

test_a_waiter_gets_in_when_its_range_is_unlocked() {
	cast a@1 b@2 c@3
	says OK a pset x w set 0 100
	starts_waiting b psetw x w set 10 10
	starts_waiting c psetw x r set 50 10
	says OK a pset x u set 0 15
	still_waits b; still_waits c
	says OK a pset x u set 15 5
	is_in b
	says EAGAIN a pset x r set 19 1
	still_waits c
	says OK a pset x r set 50 20 # a downgrade lets a reader in
	is_in c
	says OK a pset x r set 55 1
	says EAGAIN a pset x w set 55 1
	nobody_waits
	quiet_end
}

test_a_waiter_gets_in_when_the_holder_closes_exits_or_dies() {
	cast a@1 b@2
	says OK a pset x w set 0 10
	starts_waiting b psetw x w set 0 10; says OK a close x; is_in b
	says OK a open x rw keep "$F"
	starts_waiting a lockf x lock 10; actors_end b; is_in a
	cast b@2
	starts_waiting b psetw x r set 5 1; tell a _exit 0; is_in b
	actors_end b; actors_close
	NF_TTL=1s cast a@1; cast b@2
	says OK a pset x w set 0 10
	starts_waiting b psetw x w set 9 1
	killed a
	is_in b # nobody wakes it: it looks by itself when the lease is over
	quiet_end b
}

# asan: no: records-model.sh does that there, at random
test_lockf_and_descriptions_wait_too() {
	cast a@1 b@2 c@3
	says OK a lockf x lock 10
	starts_waiting b osetw x w set 5 10
	starts_waiting c lockf x lock 5
	says OK a lockf x ulock 0
	is_in b; is_in c
	starts_waiting a osetw x r set 0 10
	says OK c lockf x ulock 0
	still_waits a
	says OK b close x
	is_in a
	nobody_waits
	quiet_end
}

# calls COMMAND...: how many of them Redis has served, also in scripts; a BLPOP counts when it ends.
calls() {
	R info commandstats | tr -d '\r' | awk -F '[:=,]' -v of=" $* " '{ sub(/^cmdstat_/, "", $1); if (index(of, " " $1 " ")) n += $3 } END { print n + 0 }'
}
blocked() { [ "$(R info clients | sed -n 's/^blocked_clients:\([0-9]*\).*/\1/p')" = "$1" ]; }

test_it_is_woken_and_does_not_poll() {
	local n=5 t0 least
	with_shim || return 0
	cast a@1 b@2
	says OK a pset x w set 0 10
	R config set notify-keyspace-events El >/dev/null
	redis-cli -s "$SOCK" subscribe __keyevent@0__:lpop >"$W/events" &
	must '[ -s "$W/events" ]'
	R config resetstat >/dev/null
	t0=$(now_ms)
	for _ in $(seq $n); do
		starts_waiting b psetw x w set 0 10
		must 'blocked 1'
		says OK a pset x u set 0 10
		is_in b
		says OK b pset x u set 0 0
		says OK a pset x w set 0 10
	done
	assertEquals "messages" $n "$(calls rpush)"
	assertEquals "looks without sleeping" 0 "$(calls lpop lrange llen rpop)"
	# The messages have reached it. (It looks by itself every 2.6 s, which may be just then on a machine that is so slow.)
	least=$((n - ($(now_ms) - t0) / 2600))
	[ $least -ge 1 ] || least=1
	must '[ "$(grep -c "^netflock:.*:wait:" "$W/events")" -ge $least ]'
	R config set notify-keyspace-events "" >/dev/null
	quiet_end
}

# asan: no: it is about the scripts in Redis
test_waiters_on_one_range_get_in_in_their_order() {
	local n
	with_shim || return 0 # the kernel promises none
	cast a@1 b@2 c@3 d@4
	says OK a pset x w set 0 20
	starts_waiting b psetw x w set 0 10
	starts_waiting c psetw x w set 5 10
	starts_waiting d psetw x w set 0 20
	says OK a pset x u set 0 0
	is_in b; still_waits c; still_waits d
	says OK b pset x u set 0 0
	is_in c; still_waits d
	says OK c pset x u set 0 0
	is_in d
	quiet_end
}

# asan: no: it is about the scripts in Redis
test_a_waiter_holds_back_nobody_whose_range_is_free() {
	cast a@1 b@2 c@3 d@4
	says OK a pset x w set 0 10
	starts_waiting b psetw x w set 0 20
	says OK c pset x w set 10 10
	says OK d pset x w set 30 1
	says OK a pset x u set 0 0
	still_waits b
	says OK a pset x r set 0 5
	says OK d psetw x r set 0 5
	starts_waiting a psetw x w set 0 1
	says OK c pset x u set 0 0
	still_waits b; still_waits a
	says OK d close x
	is_in a
	says OK a pset x u set 0 0
	is_in b
	nobody_waits
	quiet_end
}

# asan: no: records-model.sh does that there, at random
test_a_waiter_holds_nothing_yet() {
	cast a@1 b@2 c@2 d@3
	says OK a pset x w set 0 10
	starts_waiting b psetw x w set 0 20
	# Neither its own host nor another one sees a lock of its.
	says "OK u" c pget x w set 10 10
	says "OK u" d pget x w set 10 10
	says OK c pset x w set 15 1; says OK c pset x u set 0 0
	says OK a pset x u set 0 0
	is_in b
	finds "w 0 20" b d pget x w set 15 1
	quiet_end
}

test_local_waiters_and_those_of_other_hosts_all_get_in() {
	local n left
	cast a@1 b@1 c@1 d@2 e@2
	says OK a pset x w set 0 10
	for n in b c d e; do starts_waiting $n psetw x w set 0 10; done
	says OK a pset x u set 0 0
	left="b c d e"
	while [ -n "$left" ]; do
		# One is in, the others are not.
		local in=''
		must 'one_of $left' || return
		says EAGAIN a pset x r set 0 1
		left=$(tr ' ' '\n' <<<"$left" | grep -vx "$in" | paste -sd' ')
		for n in $left; do still_waits $n 020; done
		says OK "$in" pset x u set 0 0
	done
	nobody_waits
	quiet_end
}
one_of() { # NAME...: the one of them that has an answer, which is OK, as $in
	for in; do
		if read -r -t 0 -u "${ACT_OUT[$in]}"; then is_in "$in"; return 0; fi
	done
	return 1
}

# asan: no: it is about the scripts in Redis
test_twenty_waiters_on_ranges_of_their_own_no_stampede() {
	local i
	with_shim || return 0
	cast a@1
	says OK a pset x w set 0 200
	for i in {1..20}; do cast "w$i@$((i + 1))"; tell "w$i" psetw x w set $((10 * i - 10)) 10; done
	must 'blocked 20'
	R config resetstat >/dev/null
	says OK a pset x u set 100 10
	is_in w11
	for i in 1 10 12 20; do in_wait "w$i" || fail "w$i woke up"; done
	assertEquals "messages to waiters" 1 "$(calls rpush)"
	# One script to unlock, one or two of the waiter; those who sleep look by themselves when they have slept for long enough.
	local ran; ran=$(calls eval evalsha)
	assertTrue "$ran scripts run for one unlock with twenty waiters" "[ $ran -le $((8 + $(calls blpop))) ]"
	says OK a pset x u set 0 0
	for i in 1 2 3 4 5 6 7 8 9 10 12 13 14 15 16 17 18 19 20; do is_in "w$i"; done
	nobody_waits
	quiet_end
}

# --- deadlock ---------------------------------------------------------------------------------------------------

# asan: no: records-model.sh does that there, at random
test_of_two_that_wait_for_each_other_exactly_one_is_told() {
	cast a@1 b@2
	says OK a pset x w set 0 10
	says OK b pset x w set 10 10
	starts_waiting a psetw x w set 10 10
	says EDEADLK b psetw x w set 0 10
	still_waits a
	# Both still have what they had.
	finds "w 0 10" a b pget x w set 0 10
	says OK b pset x u set 10 10
	is_in a
	starts_waiting b psetw x w set 0 10
	says OK a pset x u set 0 0
	is_in b
	nobody_waits
	quiet_end
}

# asan: no: records-model.sh does that there, at random
test_a_circle_of_three_hosts_and_of_two_files() {
	local n
	cast a@1 b@2 c@3
	for n in a b c; do says OK $n open y rw keep "$D/other"; done
	says OK a pset x w set 0 1; says OK b pset y w set 0 1
	says OK c pset x w set 5 1
	starts_waiting a psetw y w set 0 1
	says OK b pset x w set 9 1
	tell b psetw x r set 5 1; must 'in_wait b'
	says EDEADLK c lockf x lock 1
	still_waits a; still_waits b
	says OK c pset x u set 0 0
	is_in b
	says OK b pset y u set 0 0
	is_in a
	nobody_waits
	quiet_end
}

# asan: no: records-model.sh does that there, at random
test_two_readers_that_both_want_to_write() {
	cast a@1 b@2
	says OK a pset x r set 0 10; says OK b pset x r set 0 10
	starts_waiting a psetw x w set 0 10
	says EDEADLK b psetw x w set 0 10
	says OK b pset x u set 0 0
	is_in a
	nobody_waits
	quiet_end
}

test_a_circle_over_a_local_wait() {
	cast a@1 b@1 c@2
	says OK a pset x w set 0 1; says OK b pset x w set 1 1; says OK c pset x w set 2 1
	starts_waiting a psetw x w set 1 1 # in the kernel
	starts_waiting b psetw x w set 2 1 # for the other host
	says EDEADLK c psetw x w set 0 1
	says OK c pset x u set 0 0
	is_in b
	says OK b pset x u set 0 0
	is_in a
	nobody_waits
	quiet_end
}

# asan: no: records-model.sh does that there, at random
test_no_deadlock_where_somebody_can_go_on() {
	cast a@1 b@2 c@3 d@4
	# A chain: d waits for c, c for b, b for a; and a reader among readers.
	says OK a pset x w set 0 1; says OK b pset x w set 1 1; says OK c pset x w set 2 1; says OK d pset x w set 3 1
	starts_waiting d psetw x w set 2 1; starts_waiting c psetw x w set 1 1; starts_waiting b psetw x w set 0 1
	says EAGAIN a pset x w set 3 1
	says OK a pset x u set 0 0
	is_in b; says OK b pset x u set 0 0
	is_in c; says OK c pset x u set 0 0
	is_in d; says OK d pset x u set 0 0
	says OK a pset x r set 0 10; says OK b pset x r set 0 10; says OK c pset x w set 20 1
	starts_waiting c psetw x w set 0 1
	says OK b psetw x r set 5 1
	says EAGAIN b pset x w set 20 1
	says OK b pset x u set 0 0
	still_waits c
	# It waited for b once, which must not be remembered: b waits for c now, and c for a alone.
	starts_waiting b psetw x w set 20 1
	says OK a pset x u set 0 0
	is_in c
	says OK c pset x u set 0 0
	is_in b
	nobody_waits
	quiet_end
}

test_a_wait_that_was_interrupted_is_no_part_of_a_circle() {
	cast a@1 b@2
	says OK a pset x w set 0 1; says OK b pset x w set 1 1
	starts_waiting a psetw x w set 1 1
	interrupt a; is_in a EINTR
	starts_waiting b psetw x w set 0 1
	says EDEADLK a psetw x w set 1 1
	interrupt b; is_in b EINTR
	starts_waiting a psetw x w set 1 1
	says OK b close x
	is_in a
	nobody_waits
	quiet_end
}

test_descriptions_are_never_told_of_a_deadlock() {
	cast a@1 b@2
	says OK a oset x w set 0 1; says OK b oset x w set 1 1
	starts_waiting a osetw x w set 1 1
	starts_waiting b osetw x w set 0 1
	still_waits a 200; still_waits b
	interrupt b; is_in b EINTR
	says OK b oset x u set 0 0
	is_in a
	# A process that waits for a description, which waits for the process: the kernel sees no circle either.
	says OK b pset x w set 5 1
	starts_waiting b psetw x w set 0 1
	starts_waiting a osetw x w set 5 1
	still_waits a; still_waits b
	interrupt a; is_in a EINTR
	says OK a oset x u set 0 0
	is_in b
	nobody_waits
	quiet_end
}

# A process with two threads: one waits for the other host, the other works, and unlocks what that host waits for.
cat >"$W/two.py" <<'S'
import fcntl, os, sys, threading, time
path, say, go = sys.argv[1:]
def note(what): open(say + what, "w").close()
def until(what):
    while not os.path.exists(go + what): time.sleep(0.01)
f = open(path, "r+")
fcntl.lockf(f, fcntl.LOCK_EX, 1, 0)
fcntl.lockf(f, fcntl.LOCK_EX, 1, 20)
note("ready")
def waiter():
    fcntl.lockf(f, fcntl.LOCK_EX, 1, 10)
    note("in")
until("wait")
t = threading.Thread(target=waiter); t.start()
until("work")
for i in range(20):
    fcntl.lockf(f, fcntl.LOCK_EX, 1, 50); fcntl.lockf(f, fcntl.LOCK_UN, 1, 50)
fcntl.lockf(f, fcntl.LOCK_UN, 1, 20)
note("worked")
t.join()
S
test_a_process_of_which_only_one_thread_waits() {
	local p
	cast b@2 c@3
	spawn 1 python3 "$W/two.py" "$F" "$W/shared/say." "$W/shared/go."; p=$PID
	must '[ -e "$W/shared/say.ready" ]'
	says OK b pset x w set 10 1
	touch "$W/shared/go.wait"
	# c waits for the process, which waits for b, which waits for nobody.
	starts_waiting c psetw x w set 20 1
	says OK b psetw x w set 11 1
	touch "$W/shared/go.work"
	is_in c
	must '[ -e "$W/shared/say.worked" ]'
	assertFalse "its other thread still waits" '[ -e "$W/shared/say.in" ]'
	says OK b pset x u set 0 0
	must '[ -e "$W/shared/say.in" ]'
	wait $p; assertEquals 0 $?
	rm -f "$W"/shared/say.* "$W"/shared/go.*
	nobody_waits
	quiet_end
}

# --- signals ----------------------------------------------------------------------------------------------------

# interrupted HOLDER WAITER: every kind of wait ends with EINTR for a handler without SA_RESTART, and leaves no trace.
interrupted() {
	local cmd
	cast "$1" "$2" c@3
	says OK a pset x w set 0 10
	says OK b pset x r set 20 10
	for cmd in "psetw x w set 5 10" "psetw x r set 0 25" "osetw x w set 0 1" "lockf x lock 10"; do
		starts_waiting b $cmd
		interrupt b
		is_in b EINTR
		finds "w 0 10" a c pget x w set 0 10
		says "OK u" c pget x w set 10 10
		finds "r 20 10" b c pget x w set 20 10
	done
	says OK a pset x u set 0 0
	says OK c pset x w set 0 20
	nobody_waits
	quiet_end
}
# asan: no: records-model.sh does that there, at random
test_a_handler_without_sa_restart_ends_the_wait_for_another_host() { interrupted a@1 b@2; }
test_a_handler_without_sa_restart_ends_the_wait_in_the_kernel() { interrupted a@1 b@1; }

test_alarm_ends_the_wait_when_it_rings() {
	cast a@1
	actor b 2 NETFLOCK_CONNECT_TIMEOUT=500ms
	says OK b open x rw keep "$F"
	says OK a pset x w set 0 10
	says OK b alarm 700 norestart
	tell b psetw x w set 0 10
	must 'in_wait b || read -t 0 -u "${ACT_OUT[b]}"'
	# From here on nothing but the alarm can end its sleep: Redis is asleep, too.
	kill -STOP "$REDIS_PID"
	is_in b EINTR
	kill -CONT "$REDIS_PID"
	nobody_waits
	quiet_end
}

test_a_handler_with_sa_restart_does_not_end_the_wait() {
	local host
	for host in 2 1; do
		cast a@1 b@$host
		says OK a pset x w set 0 10
		says OK b handler restart
		starts_waiting b psetw x w set 0 10
		interrupt b; still_waits b; interrupt b; still_waits b
		says OK a pset x u set 0 0
		is_in b
		quiet_end
		actors_close
	done
	nobody_waits
}

# asan: no: records-model.sh does that there, at random
test_an_interrupted_upgrade_leaves_the_shared_lock() {
	cast a@1 b@2 c@3
	says OK a pset x r set 0 10; says OK b pset x r set 0 10
	starts_waiting b psetw x w set 0 10
	interrupt b; is_in b EINTR
	says OK a pset x u set 0 0
	finds "r 0 10" b c pget x w set 0 0
	says OK c pset x r set 0 10
	nobody_waits
	quiet_end
}

test_what_does_not_wait_is_not_interrupted() {
	cast a@1
	says OK a pset x w set 0 10
	cat >"$W/storm.py" <<-'S'
		import fcntl, signal, sys
		signal.signal(signal.SIGALRM, lambda *a: None)
		signal.siginterrupt(signal.SIGALRM, True)
		f = open(sys.argv[1], "r+")
		signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
		for i in range(150):
		    try:
		        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 5)
		        sys.exit("got in")
		    except BlockingIOError:
		        pass
		    fcntl.lockf(f, fcntl.LOCK_EX, 5, 20)
		    fcntl.lockf(f, fcntl.LOCK_UN, 5, 20)
		signal.setitimer(signal.ITIMER_REAL, 0)
	S
	bare 2 touch "$F"
	H 2 python3 "$W/storm.py" "$F" 2>"$W/err"; status_is 0 $? "" "$W/err"
	quiet_end
}

# asan: no: it is about the scripts in Redis
test_a_waiter_that_is_killed_is_passed_over() {
	cast a@1 b@2 d@4
	says OK a pset x w set 0 10
	starts_waiting b psetw x w set 0 10
	starts_waiting d psetw x w set 0 10
	killed b
	says OK a pset x u set 0 0
	is_in d # within a grant's short lease
	nobody_waits
	quiet_end a d
}

# --- Redis away ---------------------------------------------------------------------------------------------------

test_redis_away_is_enolck_and_never_busy_or_free() {
	with_shim || return 0
	cast a@1 b@2
	says OK a pset x w set 0 10
	R shutdown nosave; must '! redis_up'
	says ENOLCK b pset x w set 50 1
	says ENOLCK b pset x r set 0 1
	says ENOLCK b lockf x tlock 1
	says ENOLCK b oset x w set 0 1
	says ENOLCK b pget x w set 0 1
	says ENOLCK b lockf x test 1
	# Nothing stays in the kernel of what was refused; unlocking always works.
	spawn_told <(printf '%s\n' "open x rw keep $F" "pset x w set 0 0") 2 NETFLOCK_DISABLE=1 "$PROBES/records" >"$W/out"; wait $PID
	assertEquals "READY OK OK" "$(paste -sd' ' "$W/out")"
	says OK a pset x u set 0 0
	redis_stop; redis_start
	must 'answers OK b pset x w set 0 10'
	says OK b pset x u set 0 0
	quiet_end
}

test_a_blocking_call_waits_for_redis_or_fails_as_told() {
	with_shim || return 0
	cast a@1
	actor e 2 NETFLOCK_ON_OUTAGE=error; says OK e open x rw keep "$F"
	actor l 3 NETFLOCK_ON_OUTAGE=local; says OK l open x rw keep "$F"
	R shutdown nosave; must '! redis_up'
	says ENOLCK e psetw x w set 0 1
	says OK l psetw x w set 0 1; says OK l pset x u set 0 0
	tell a psetw x w set 0 1
	still_silent a
	redis_stop; redis_start
	is_in a
	quiet_end
}
still_silent() { local line; read -r -t 0.2 -u "${ACT_OUT[$1]}" line && fail "$1 should wait, and says $line"; }

test_redis_away_does_not_let_a_signal_be_lost() {
	with_shim || return 0
	cast a@1
	R shutdown nosave; must '! redis_up'
	tell a psetw x w set 0 1
	still_silent a
	interrupt a
	is_in a EINTR
	redis_stop; redis_start
	quiet_end
}

. /usr/share/shunit2/shunit2
