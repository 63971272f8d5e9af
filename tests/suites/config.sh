#!/bin/bash
# Configuration: environment and file, which of them wins, and what a wrong value does.
. "$(dirname "$0")/../lib.sh"

# Tries one lock and prints what came of it; the program itself always goes on.
cat >"$W/try.py" <<'S'
import errno, fcntl, sys
f = open(sys.argv[1], "a")
try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print("OK")
except OSError as e: print(errno.errorcode[e.errno])
try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError: pass
S

# wrong VARIABLE VALUE ALLOWED...: one line that names all of them; the program runs, its lock is refused.
wrong() {
	local var=$1 value=$2 word; shift 2
	H 1 "$var=$value" python3 "$W/try.py" "$F" >"$W/out" 2>"$W/err"
	assertEquals "$var=$value: the program runs" 0 $?
	assertEquals "$var=$value: a lock under the prefix" ENOLCK "$(cat "$W/out")"
	assertEquals "$var=$value: lines on stderr: $(cat "$W/err")" 1 "$(count <"$W/err")"
	assertContains "$var=$value" "$(cat "$W/err")" "$var"
	[ -z "$value" ] || assertContains "$var=$value" "$(cat "$W/err")" "$value"
	for word; do assertContains "$var=$value: what is allowed" "$(cat "$W/err")" "$word"; done
}

test_a_wrong_url_is_named() {
	wrong NETFLOCK_URL http://example.org redis:// unix://
	wrong NETFLOCK_URL localhost:6379 redis://
	wrong NETFLOCK_URL redis://h:70000/x redis://
	wrong NETFLOCK_URL redis://h:70000 redis://
	wrong NETFLOCK_URL redis://h:6379/db redis://
	wrong NETFLOCK_URL unix://relative unix://
}

test_a_wrong_ttl_is_named() {
	local v
	for v in banana 0 -5s 10x 1h2 99999999999999999999s s; do wrong NETFLOCK_TTL "$v" s; done
}

test_a_wrong_connect_timeout_is_named() { wrong NETFLOCK_CONNECT_TIMEOUT soon ms; wrong NETFLOCK_CONNECT_TIMEOUT -1s ms; }
test_a_wrong_on_outage_is_named() { wrong NETFLOCK_ON_OUTAGE maybe block error local; }
test_a_wrong_grace_is_named() { wrong NETFLOCK_GRACE perhaps auto always off; }
test_a_wrong_check_is_named() { wrong NETFLOCK_CHECK perhaps strict warn off; }
test_a_wrong_on_lost_is_named() { wrong NETFLOCK_ON_LOST SIGNOPE term kill log; }
test_a_wrong_keeper_is_named() { wrong NETFLOCK_KEEPER sometimes auto always never; }
test_a_wrong_local_is_named() { wrong NETFLOCK_LOCAL perhaps auto require off; }
test_a_wrong_log_level_is_named() { wrong NETFLOCK_LOG_LEVEL loud error warn info debug; }
test_a_wrong_log_is_named() { wrong NETFLOCK_LOG relative/file stderr syslog; }

test_a_wrong_prefix_is_named() {
	wrong NETFLOCK_PREFIX "relative/path:$D" absolute
	wrong NETFLOCK_PREFIX "$D=" NAME
}

test_a_password_file_that_is_not_there_is_named() {
	wrong NETFLOCK_PASSWORD_FILE "$W/no-such-file"
}

test_several_wrong_values_are_one_line_each() {
	H 1 NETFLOCK_TTL=banana NETFLOCK_ON_OUTAGE=maybe python3 "$W/try.py" "$F" >"$W/out" 2>"$W/err"
	assertEquals ENOLCK "$(cat "$W/out")"
	assertEquals 1 "$(grep -c NETFLOCK_TTL "$W/err")"
	assertEquals 1 "$(grep -c NETFLOCK_ON_OUTAGE "$W/err")"
}

test_with_a_wrong_value_files_elsewhere_are_locked_as_ever() {
	H 1 NETFLOCK_TTL=banana flock -n "$W/shared/other" true 2>/dev/null
	assertEquals 0 $?
}

test_flock_says_71_when_the_configuration_is_wrong() {
	H 1 NETFLOCK_TTL=banana flock -n "$F" true 2>/dev/null
	assertEquals 71 $?
}

test_a_missing_url_is_named() {
	bare 1 LD_PRELOAD="$NF_PRELOAD" NETFLOCK_PREFIX="$D" python3 "$W/try.py" "$F" >"$W/out" 2>"$W/err"
	assertEquals 0 $?
	# Either a default server, which is not there, or an error: but never a success that protects nobody.
	assertEquals ENOLCK "$(cat "$W/out")"
}

test_disable_switches_everything_off() {
	H 1 NETFLOCK_DISABLE=1 NETFLOCK_URL=nonsense flock -n "$F" redis-cli -s "$SOCK" keys '*' >"$W/out" 2>"$W/err"
	assertEquals 0 $?
	assertEquals "" "$(cat "$W/out" "$W/err")"
	H 1 NETFLOCK_DISABLE=0 flock -n "$F" redis-cli -s "$SOCK" keys 'lock:*' >"$W/out"
	assertEquals "0 means enabled" "lock:$F" "$(cat "$W/out")"
}

test_without_a_prefix_nothing_happens() {
	bare 1 LD_PRELOAD="$NF_PRELOAD" flock -n "$F" true 2>"$W/err"
	assertEquals 0 $?
	assertEquals "" "$(cat "$W/err")"
}

test_every_form_of_url() {
	local u
	R select 3 >/dev/null
	for u in "unix://$SOCK" "unix://$SOCK?db=3" "redis://127.0.0.1:$PORT" "redis://127.0.0.1:$PORT/3" \
		"redis://localhost:$PORT/0"; do
		H 1 NETFLOCK_URL="$u" flock -n "$F" true; assertEquals "$u" 0 $?
	done
	H 1 NETFLOCK_URL="redis://127.0.0.1:$PORT/3" flock -n "$F" redis-cli -s "$SOCK" -n 3 keys 'lock:*' >"$W/out"
	assertEquals "in database 3" "lock:$F" "$(cat "$W/out")"
	spawn 1 NETFLOCK_URL="redis://127.0.0.1:$PORT" flock "$F" sleep 30
	wait_held "$F"
	assertEquals "TCP and socket are one server" 1 "$(busy "$F")"
}

test_the_ttl_is_the_one_that_is_configured() {
	spawn 1 NETFLOCK_TTL=45s flock "$F" sleep 30; wait_held "$F"
	assertBetween "pttl" 30001 45000 "$(R pttl "lock:$F")"
	spawn 1 NETFLOCK_TTL=9500ms flock "$D/y" sleep 30; wait_held "$D/y"
	assertBetween "pttl" 1 9500 "$(R pttl "lock:$D/y")"
	spawn 1 NETFLOCK_TTL= flock "$D/z" sleep 30; wait_held "$D/z"
	assertBetween "the default is 30 s" 15000 30000 "$(R pttl "lock:$D/z")"
}

# conffile [LINE...]: what /etc/netflock.conf says on the hosts of this test.
conffile() { mkdir -p "$W/etc"; rm -f "$W/etc"/*; printf '%s\n' "$@" >"$W/etc/netflock.conf"; }
onhost() { ETC=$W/etc "$TESTS/host" "$@"; }

test_the_file_alone_configures_a_host() {
	conffile '# a comment' '' "prefix = $D" "url=$NF_URL" '  ttl   =   7s  '
	onhost 1 LD_PRELOAD="$NF_PRELOAD" flock "$F" sleep 30 &
	wait_held "$F"
	assertBetween "the ttl of the file" 1 7000 "$(R pttl "lock:$F")"
	onhost 2 LD_PRELOAD="$NF_PRELOAD" flock -n "$F" true
	assertEquals 1 $?
}

# Which files are meant stands in the file alone, and that cannot be opened: no lock on this host only is passed off as one.
test_without_a_descriptor_left_to_read_the_file_a_lock_call_fails() {
	conffile "prefix = $D" "url=$NF_URL"
	onhost 1 LD_PRELOAD="$NF_PRELOAD" python3 -c 'if 1:
		import errno, fcntl, os, resource, sys
		f = open(sys.argv[1], "a")
		resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
		many = []
		try:
		    while True: many.append(os.dup(0))
		except OSError: pass
		try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); sys.exit("locked")
		except OSError as e: assert e.errno == errno.ENOLCK, e
		for fd in many: os.close(fd)
		fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
		sys.exit(os.spawnvp(os.P_WAIT, "redis-cli", ["redis-cli", "-s", sys.argv[2], "exists", "lock:" + sys.argv[1]]))' "$F" "$SOCK" \
		>"$W/out" 2>"$W/err"
	status_is 0 $? "" "$W/err"
	assertEquals "held afterwards" 1 "$(cat "$W/out")"
}

test_the_environment_wins_over_the_file() {
	conffile "prefix = $D" "url = unix://$W/not-there.sock" "ttl = 7s"
	onhost 1 LD_PRELOAD="$NF_PRELOAD" NETFLOCK_URL="$NF_URL" NETFLOCK_TTL=20s flock "$F" sleep 30 &
	wait_held "$F"
	assertBetween "the ttl of the environment" 7001 20000 "$(R pttl "lock:$F")"
}

test_a_wrong_line_of_the_file_is_named() {
	conffile "prefix = $D" "url = $NF_URL" "ttl = banana"
	onhost 1 LD_PRELOAD="$NF_PRELOAD" python3 "$W/try.py" "$F" >"$W/out" 2>"$W/err"
	assertEquals ENOLCK "$(cat "$W/out")"
	assertEquals "$(cat "$W/err")" 1 "$(count <"$W/err")"
	assertContains "$(cat "$W/err")" banana
	assertContains "$(cat "$W/err")" netflock.conf
	conffile "prefix = $D" "url = $NF_URL" "colour = blue"
	onhost 1 LD_PRELOAD="$NF_PRELOAD" python3 "$W/try.py" "$F" >"$W/out" 2>"$W/err"
	assertContains "an unknown key" "$(cat "$W/err")" colour
}

test_another_file_can_be_named_for_a_trial() {
	printf 'prefix=%s\nurl=%s\n' "$D" "$NF_URL" >"$W/my.conf"
	bare 1 LD_PRELOAD="$NF_PRELOAD" NETFLOCK_CONF="$W/my.conf" flock -n "$F" redis-cli -s "$SOCK" keys 'lock:*' >"$W/out"
	assertEquals "lock:$F" "$(cat "$W/out")"
}

test_a_set_uid_program_reads_only_the_file() {
	local user='setpriv --reuid=65534 --regid=65534 --clear-groups'
	install -m 4755 /usr/bin/flock "$W/suidflock"
	conffile "prefix = $D" "url = $NF_URL"
	echo "${NF_PRELOAD//:/ }" >"$W/etc/ld.so.preload"
	spawn 1 flock "$F" sleep 30
	wait_held "$F"
	# $user is to be split.
	# shellcheck disable=SC2086
	for v in NETFLOCK_DISABLE=1 NETFLOCK_URL=unix:///tmp/attacker NETFLOCK_PREFIX=/elsewhere NETFLOCK_CONF=/dev/null \
		NETFLOCK_LOG="$W/shared/planted" NETFLOCK_TTL=banana A=1; do
		onhost 2 $user env "$v" "$W/suidflock" -n "$F" true 2>"$W/err"
		status_is 1 $? "$v" "$W/err"
	done
	assertFalse "a log named by the caller" '[ -e $W/shared/planted ]'
	# The same without set-uid does listen.
	onhost 2 env NETFLOCK_DISABLE=1 flock -n "$F" true; assertEquals 0 $?
}

test_programs_started_with_an_empty_environment_are_reached_by_ld_so_preload() {
	conffile "prefix = $D" "url = $NF_URL"
	echo "${NF_PRELOAD//:/ }" >"$W/etc/ld.so.preload"
	spawn 1 flock "$F" sleep 30
	wait_held "$F"
	onhost 2 env -i /usr/bin/flock -n "$F" true; assertEquals 1 $?
}

test_the_log_goes_where_it_is_told() {
	# A server that is not there, and locking on this host alone: worth a line.
	local away='NETFLOCK_URL=unix:///nowhere.sock NETFLOCK_ON_OUTAGE=local NETFLOCK_CONNECT_TIMEOUT=200ms'
	H 1 $away NETFLOCK_LOG="$W/shared/nf.log" flock -n "$F" true 2>"$W/err"
	assertTrue "the file has it" 'grep -q nowhere $W/shared/nf.log'
	assertEquals "stderr has nothing" "" "$(cat "$W/err")"
	H 1 $away NETFLOCK_LOG=stderr flock -n "$F" true 2>"$W/err"
	assertTrue "stderr has it" 'grep -q nowhere $W/err'
	H 1 $away flock -n "$F" true 2>"$W/err"
	assertTrue "stderr is the default" 'grep -q nowhere $W/err'
	H 1 $away NETFLOCK_LOG_LEVEL=error flock -n "$F" true 2>"$W/err2"
	assertTrue "less is said at a lower level" '[ $(count <$W/err2) -le $(count <$W/err) ]'
	H 1 flock "$F" true 2>"$W/err"
	assertEquals "a lock that works is nothing to talk about" "" "$(cat "$W/err")"
}

test_disable_in_the_file_holds_for_prefixes_in_the_environment() {
	echo 'disable = 1' >"$W/off.conf"
	H 1 NETFLOCK_CONF="$W/off.conf" python3 -c 'import fcntl, subprocess, sys
f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX)
subprocess.run(sys.argv[2:])
fcntl.flock(f, fcntl.LOCK_UN)' "$F" redis-cli -s "$SOCK" exists "$(key_of "$F")" >"$W/out" 2>"$W/err"
	assertEquals "the key while the lock is held" 0 "$(cat "$W/out")"
	assertEquals "" "$(cat "$W/err")"
}

. /usr/share/shunit2/shunit2
