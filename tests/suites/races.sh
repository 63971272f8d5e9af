#!/bin/bash
# Many threads, on two hosts at once, under ThreadSanitizer: the library, the keeper and the program are built with it, and
# with the assertions on who has which mutex (NF_ASSERT_LOCKS). Nothing may be reported.
# tsan: only: it brings its own library, keeper and program.
. "$(dirname "$0")/../lib.sh"

TSAN=$BUILD/tsan # make built-tsan
RACES=$TSAN/tests/races
REPORTS=$W/reports
# A forked child may start threads; nobody waits a second at the end of each process. The sanitizer is not to look for names:
# it would call our close() on its way, with the locks of the thread that it reports on.
OPTIONS="die_after_fork=0 atexit_sleep_ms=0 symbolize=0"

# A keeper starts with an empty environment: the one beside the library is a script that gives it these options.
export NF_PRELOAD=$W/tsan/libnetflock.so
mkdir "$W/tsan" "$REPORTS"
chmod 1777 "$REPORTS"
if [ -x "$RACES" ] && cp "$TSAN/libnetflock.so" "$W/tsan"; then
	cat >"$W/tsan/netflock-keeper" <<-S
		#!/bin/sh
		exec 2>>"$REPORTS/keeper"
		TSAN_OPTIONS="$OPTIONS log_path=$REPORTS/keeper.tsan" exec "$TSAN/netflock-keeper" "\$@"
	S
	chmod 755 "$W/tsan/netflock-keeper"
else
	echo "shunit2:ERROR $TSAN is not built"
	exit 2
fi

reports() { # with names
	find "$REPORTS" -type f -size +0 -exec head -qn 60 {} + | awk -v tsan="$TSAN" '
		match($0, /\((libnetflock\.so|netflock-keeper|races)\+0x[0-9a-f]+\)/) {
			split(substr($0, RSTART + 1, RLENGTH - 2), at, "+")
			cmd = "addr2line -fspe " tsan (at[1] == "races" ? "/tests/" : "/") at[1] " " at[2]
			if (!(cmd in name)) { cmd | getline name[cmd]; close(cmd) }
			print $1, name[cmd]; next
		}
		!/<null>/'
}

# start HOST WHAT THREADS MS [VAR=VALUE...]: one more of $PIDS.
start() {
	local n=${#PIDS[@]} host=$1 what=$2 threads=$3 ms=$4; shift 4
	spawn "$host" TSAN_OPTIONS="$OPTIONS log_path=$REPORTS/$what.$host" NETFLOCK_LOG="$W/log" NETFLOCK_ON_LOST=log "$@" \
		timeout 60 "$RACES" "$what" "$D" "$threads" "$ms" >"$W/out.$n" 2>"$W/err.$n"
	PIDS+=("$PID")
}
ended() { # ended N
	wait "${PIDS[$1]}"
	status_is 0 $? "process $1" "$W/err.$1"
	assertEquals "process $1: $(cat "$W/err.$1")" "failed 0" "$(cat "$W/out.$1")"
}

ON="1 2"
race() { # race WHAT THREADS MS [VAR=VALUE...]: a process on each host of $ON
	local host n
	PIDS=()
	for host in $ON; do start "$host" "$@"; done
	for n in "${!PIDS[@]}"; do ended "$n"; done
	must '[ -z "$(keepers)$(guards)" ]' 10
	assertEquals "reports" "" "$(reports)"
	rm -rf "${REPORTS:?}"/*
}

test_locks_conversions_and_closes_of_common_files() { race flock 8 2000; }
test_one_descriptor_in_all_threads() { race one 6 1500; }
test_record_locks_of_a_process_and_of_descriptions() { ON="1 1 2" race records 5 2000 NETFLOCK_TTL=300ms; }
test_renewals_of_short_leases_while_others_lock() { race hold 8 1500 NETFLOCK_TTL=300ms; }
test_forks_while_others_lock() { race fork 6 1500 NETFLOCK_TTL=300ms; }
test_hand_overs_to_keepers_of_many_files() { race heirs 4 1500 NETFLOCK_TTL=300ms; }
test_a_keeper_for_each_lock() { race flock 4 1500 NETFLOCK_KEEPER=always NETFLOCK_TTL=300ms; }
test_keepers_of_record_locks() { race records 4 1500 NETFLOCK_KEEPER=always; }
test_stand_ins_for_the_kernel_s_lock() { race flock 4 1000 NETFLOCK_LOCAL=off; }
test_stand_ins_that_a_keeper_has() { race fork 4 1000 NETFLOCK_LOCAL=off; }

test_the_configuration_is_read_by_all_threads_at_once_and_more_than_once() {
	printf 'url = %s\nttl = 1s\n' "$NF_URL" >"$W/conf"
	race first 8 1000 NETFLOCK_URL= NETFLOCK_TTL= NETFLOCK_CONF="$W/conf"
}

. /usr/share/shunit2/shunit2
