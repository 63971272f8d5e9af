#!/bin/bash
# After Redis was restarted, failed over or emptied: the holders keep their locks, newcomers wait the grace, nobody is let
# in twice.
# shellcheck disable=SC1091
. "$(dirname "$0")/../lib.sh"

export NF_TTL=2s
FILES=10

suite_setup() {
	# holder N KIND FIRST LAST: takes the files, says "held", answers every line with "all" or the names it was told to have lost.
	cat >"$W/holder.py" <<-'PY'
		import fcntl, os, signal, sys
		kind, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
		lost = []
		signal.signal(signal.SIGTERM, lambda *a: lost.append(1))
		signal.siginterrupt(signal.SIGTERM, False)
		fds = []
		for i in range(first, last):
		    fd = os.open(f"{os.environ['D']}/{kind}{i}", os.O_RDWR | os.O_CREAT, 0o666)
		    if kind == "r":
		        fcntl.lockf(fd, fcntl.LOCK_EX, 10, 100)
		    else:
		        fcntl.flock(fd, fcntl.LOCK_SH if kind == "s" else fcntl.LOCK_EX)
		    fds.append(fd)
		print("held", flush=True)
		for line in sys.stdin:
		    print("lost" if lost else "all", flush=True)
	PY
	# contender FILES: tries all of them again and again until it is told to end; prints what it got.
	cat >"$W/contender.py" <<-'PY'
		import errno, fcntl, os, sys, time
		n, stop = int(sys.argv[1]), sys.argv[2]
		fds = [(k, i, os.open(f"{os.environ['D']}/{k}{i}", os.O_RDWR | os.O_CREAT, 0o666)) for k in "xsr" for i in range(n)]
		got, tries = [], 0
		while not os.path.exists(stop):
		    time.sleep(0.005)
		    for k, i, fd in fds:
		        tries += 1
		        try:
		            if k == "r":
		                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 105)
		            else:
		                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
		            got.append(f"{k}{i}")
		        except OSError as e:
		            if e.errno not in (errno.EAGAIN, errno.ENOLCK):
		                got.append(f"{k}{i}:{e}")
		print(f"tries {tries}", *got, flush=True)
	PY
}

# holders [VAR=VALUE...]: of each kind FILES files, on two hosts; also one lock whose locker is gone and that a keeper keeps.
holders() {
	local k h
	HOLD_IN=() HOLD_OUT=()
	for k in x s r; do
		for h in 1 2; do
			local in out
			mkfifo "$W/$k$h.in" "$W/$k$h.out"
			exec {in}<>"$W/$k$h.in" {out}<>"$W/$k$h.out"
			"$TESTS/host" -s "$h" "$@" python3 "$W/holder.py" "$k" $(((h - 1) * FILES / 2)) $((h * FILES / 2)) \
				<&"$in" >&"$out" 2>>"$W/err" {in}<&- {out}<&- &
			HOLD_IN+=("$in") HOLD_OUT+=("$out")
			rm "$W/$k$h.in" "$W/$k$h.out"
		done
	done
	local fd line
	for fd in "${HOLD_OUT[@]}"; do
		read -r -t "$PATIENCE" -u "$fd" line
		assertEquals "a holder" held "$line"
	done
	spawn 1 "$@" bash -c 'exec 9>"$D/kept"; flock 9; exec sleep 60' 2>>"$W/err"
	wait_held "$D/kept"
	must '[ -n "$(keepers)" ]'
}

# all_hold: asks every holder; none was told of a loss, and every key is there again.
all_hold() {
	local i line
	for i in "${!HOLD_IN[@]}"; do
		echo >&"${HOLD_IN[$i]}"
		read -r -t "$PATIENCE" -u "${HOLD_OUT[$i]}" line
		assertEquals "holder $i ($(cat "$W/err"))" all "$line"
	done
	all_there || fail "keys are missing: $(R keys '*lock*')"
}
all_there() {
	local i keys=("$(key_of "$D/kept")")
	for ((i = 0; i < FILES; i++)); do keys+=("$(key_of "$D/x$i")" "$(key_of "$D/s$i")" "netflock:{lock:$D/r$i}:ranges"); done
	[ "$(R exists "${keys[@]}")" = ${#keys[@]} ]
}

# The holders take back what they have. It stays theirs beyond the grace, which is one lease, and beyond the next.
after_the_restart() {
	must all_there
	stays all_there 4200
	touch "$W/stop"
	contended
	all_hold
}

release_all() {
	local fd
	for fd in "${HOLD_IN[@]}" "${HOLD_OUT[@]}"; do exec {fd}>&-; done
	kill_strays
}

# contend [VAR=VALUE...]: two hosts try it all in the background; their findings in $W/c3 and $W/c4.
contend() {
	rm -f "$W/stop"
	for h in 3 4; do
		"$TESTS/host" -s "$h" NETFLOCK_CONNECT_TIMEOUT=200ms "$@" python3 "$W/contender.py" $FILES "$W/stop" >"$W/c$h" 2>>"$W/err" &
		CONTEND[h]=$!
	done
	must '[ "$(R info stats | sed -n "s/total_commands_processed:\([0-9]*\).*/\1/p")" -gt 1000 ]'
}
contended() {
	local h
	for h in 3 4; do
		wait "${CONTEND[$h]}"
		assertTrue "host $h tried: $(cat "$W/c$h")" "[ $(sed 's/^tries \([0-9]*\).*/\1/' "$W/c$h") -gt $((3 * FILES)) ]"
		assertEquals "host $h got in: $(cat "$W/c$h")" 2 "$(wc -w <"$W/c$h")"
	done
}

declare -a HOLD_IN HOLD_OUT CONTEND

test_restarted_without_its_data_the_holders_keep_their_locks() {
	: >"$W/err"
	holders NETFLOCK_GRACE=always
	contend NETFLOCK_GRACE=always
	redis_stop; redis_start
	after_the_restart
	assertContains "one line says it" "$(cat "$W/err")" "was restarted or has lost data"
	release_all
}

# (asan: no: the same calls as without the data)
test_restarted_with_its_data_the_holders_keep_their_locks() {
	: >"$W/err"
	redis_stop; redis_start --appendonly yes --appendfsync always --dir "$W"
	holders
	contend
	redis_stop; redis_start --appendonly yes --appendfsync always --dir "$W"
	after_the_restart
	release_all
	R flushall >/dev/null
	redis_stop; rm -rf "$W/appendonlydir"; redis_start
}

# (asan: no: the same calls as without the data)
test_failed_over_to_a_replica_that_missed_the_last_writes() {
	: >"$W/err"
	local replica=$W/replica.sock
	# The files are known to the replica, their present holders are not: it was cut off before they came.
	bare_files
	setsid redis-server --port 0 --unixsocket "$replica" --save '' --dir "$W" --replicaof 127.0.0.1 "$PORT" \
		>>"$W/redis.log" 2>&1 </dev/null &
	local pid=$!
	must 'redis-cli -s "$W/replica.sock" info replication 2>/dev/null | grep -q master_link_status:up'
	redis-cli -s "$replica" replicaof no one >/dev/null
	holders
	contend
	redis_stop
	REDIS_PID=$pid
	mv "$replica" "$SOCK"
	after_the_restart
	release_all
	redis_stop; redis_start
}

# Every file has been used once, and let go.
bare_files() {
	H 3 python3 -c "
import fcntl, os
for i in range($FILES):
    for k in 'xs':
        fcntl.flock(open(f\"{os.environ['D']}/{k}{i}\", 'w'), fcntl.LOCK_EX)
    f = open(f\"{os.environ['D']}/r{i}\", 'w')
    fcntl.lockf(f, fcntl.LOCK_EX, 10, 100)"
	H 3 flock "$D/kept" true
}

test_without_always_the_first_renewal_starts_the_grace() {
	: >"$W/err"
	spawn 1 NETFLOCK_LOG="$W/log" flock "$F" sleep 60
	wait_held "$F"
	redis_stop; redis_start
	must "held '$F'" # taken back
	assertContains "$(R get "netflock:{$(key_of "$F")}:run")" ":"
	assertEquals "another host" 1 "$(busy "$F")"
	assertContains "said" "$(cat "$W/log")" "taken back"
}

test_switched_off_a_lost_key_is_a_loss() {
	spawn 1 NETFLOCK_GRACE=off NETFLOCK_LOG="$W/log" python3 -c 'import fcntl, sys, time
f = open(sys.argv[1], "w")
fcntl.flock(f, fcntl.LOCK_EX)
time.sleep(60)' "$F"
	wait_held "$F"
	redis_stop; redis_start
	must "! kill -0 $PID 2>/dev/null"
	assertContains "said" "$(cat "$W/log")" "lost the lock"
}

test_a_new_file_on_a_fresh_server_waits_for_nothing() {
	redis_stop; redis_start
	H 1 flock -n "$F" true; assertEquals 0 $?
}

test_with_always_a_young_server_lets_nobody_in() {
	redis_stop; redis_start
	H 1 NETFLOCK_GRACE=always NETFLOCK_TTL="$AGES" flock -n "$D/y" true 2>"$W/err"
	status_is 71 $? "refused" "$W/err"
	timeout "$PATIENCE" "$TESTS/host" -s 1 NETFLOCK_GRACE=always flock "$F" true; assertEquals "after the grace" 0 $?
}

# (asan: no: the fence is made in Redis)
test_the_fence_grows_over_a_loss_of_all_data() {
	H 1 flock "$F" true
	local before; before=$(R get "netflock:{$(key_of "$F")}:fence")
	redis_stop; redis_start
	H 1 flock "$F" true
	local after; after=$(R get "netflock:{$(key_of "$F")}:fence")
	assertTrue "$before, then $after" "[ $after -gt $before ]"
}

. /usr/share/shunit2/shunit2
