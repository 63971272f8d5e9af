# shellcheck shell=bash
# lib.sh: what every suite of tests/suites needs; a suite sources it first and shunit2 last.
#
# A suite has a temporary folder $W, a redis-server of its own (unix socket and a loopback port that the kernel
# chose), and "hosts" (see ./host). Tests wait for events with wait_until and never for a length of time that is
# meant to be "long enough"; where a moment matters it is measured and compared with a window.
#
# After each test everything it started is killed, keepers are expected to go by themselves, and the server is
# emptied, so that no test sees another one's locks.

PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
unset LD_PRELOAD "${!NETFLOCK_@}" "${!NF_@}" 2>/dev/null

TESTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$(dirname "$TESTS")
BUILD=${BUILD:-$TOP/build}
PROBES=$BUILD/tests
if [ -n "${TEST_ASAN:-}" ]; then LIBDIR=$BUILD/asan; else LIBDIR=$BUILD; fi
SO=$LIBDIR/libnetflock.so           # the library under test
PLAIN_SO=$BUILD/libnetflock.so      # the one to be shipped, for tests on the file itself
NETFLOCK=$LIBDIR/netflock
# A sanitizer's library must come first in the list: it has to see every allocation.
export NF_PRELOAD="${TEST_ASAN:+$TEST_ASAN:}$SO"

W=$(mktemp -d "${TMPDIR:-/tmp}/nftest.XXXXXX") || exit 2
chmod 755 "$W"                      # some tests run programs as nobody
export NFTEST=${W##*/}              # marks this suite's processes, in their environment
export D=$W/locks HOSTS=$W/hosts
mkdir "$D" "$HOSTS" "$W/shared"     # $W/shared is the same folder on all hosts
SOCK=$W/redis.sock
export NF_URL=unix://$SOCK
F=$D/x
PORT='' REDIS_PID='' IN_TEST=''
export SHUNIT_COLOR=none

# --- waiting and measuring ---------------------------------------------------------------------------------

now_ms() { local t=${EPOCHREALTIME/[.,]/}; echo $((t / 1000)); }

# wait_until CONDITION [SECONDS]: evaluates the condition until it is true; 1 if it does not become true.
wait_until() {
	local end=$(($(now_ms) + $(awk "BEGIN { print int(${2:-5} * 1000) }")))
	until eval "$1"; do
		[ "$(now_ms)" -lt "$end" ] || return 1
		sleep 0.02
	done
}

# timed CMD...: runs it, its status in $RC and the milliseconds it took in $MS.
timed() {
	local t; t=$(now_ms)
	"$@"; RC=$?
	MS=$(($(now_ms) - t))
}

assertBetween() { # MESSAGE LOW HIGH VALUE
	if [ "$4" -ge "$2" ] && [ "$4" -le "$3" ]; then assertTrue 0; else fail "$1: $4 is not within $2...$3"; fi
}

# status_is WANTED STATUS MESSAGE FILE: with the file's content in the message. ("$(...)" in the arguments of an
# assertion would itself change "$?".)
status_is() { assertEquals "$3 ($(cat "$4"))" "$1" "$2"; }

# must CONDITION [SECONDS] [MESSAGE]: a failure if it does not become true in time.
must() { wait_until "$1" "${2:-5}" || fail "${3:-waited ${2:-5} s for} $1"; }

# --- the server ---------------------------------------------------------------------------------------------

R() { redis-cli -s "$SOCK" "$@"; }

free_port() {
	python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

redis_up() { [ "$(redis-cli -s "$SOCK" ${REDIS_AUTH:+-a "$REDIS_AUTH" --no-auth-warning} ping 2>/dev/null)" = PONG ]; }

# redis_start [ARG...]: keeps the port of an earlier start, so that clients find the server again. Between the
# kernel's choice of a port and our use somebody may take it: then the server ends at once, and we try another.
redis_start() {
	local try
	for try in 1 2 3 4 5 6 7 8; do
		[ -n "$PORT" ] && [ "$try" -lt 4 ] || PORT=$(free_port)
		# Not marked as part of a test (see strays), in a session of its own, holding none of our descriptors.
		env -u NFTEST setsid redis-server --port "$PORT" --bind 127.0.0.1 --unixsocket "$SOCK" \
			--unixsocketperm 777 --save '' --appendonly no --dir "$W" --daemonize no "$@" \
			>>"$W/redis.log" 2>&1 </dev/null &
		REDIS_PID=$!
		wait_until 'redis_up || ! kill -0 "$REDIS_PID" 2>/dev/null' 10
		redis_up && return 0
		redis_stop
	done
	echo "redis-server does not start:"; tail -5 "$W/redis.log"
	return 1
}

redis_stop() {
	[ -n "$REDIS_PID" ] || return 0
	kill -CONT "$REDIS_PID" 2>/dev/null
	kill -KILL "$REDIS_PID" 2>/dev/null
	{ wait "$REDIS_PID"; } 2>/dev/null
	REDIS_PID=
	rm -f "$SOCK"
}

# --- hosts --------------------------------------------------------------------------------------------------

H() { "$TESTS/host" -s "$@"; }              # H N [VAR=VALUE...] CMD...: on host N with the shim
bare() { "$TESTS/host" "$@"; }              # bare N CMD...: on host N without it
# In the background; $PID is the command's own process ("H ... &" would give that of a subshell).
spawn() { "$TESTS/host" -s "$@" & PID=$!; }
spawn_bare() { "$TESTS/host" "$@" & PID=$!; }

busy() { H "${2:-2}" flock -n "$1" true 2>/dev/null; echo $?; } # busy FILE [HOST]: 1 held elsewhere, 0 free

key_of() { printf 'lock:%s' "$1"; }
held() { [ "$(R exists "$(key_of "$1")")" = 1 ]; }
wait_held() { wait_until "held '$1'" "${2:-5}" || fail "nobody took $1"; }
wait_free() { wait_until "! held '$1'" "${2:-5}" || fail "$1 is still held: $(R get "$(key_of "$1")" 2>&1)"; }

# What must not be left when nobody holds or waits. Fence counters, and the server's run id beside them, stay for a day, on
# purpose.
leftover_keys() { # names may contain line breaks, so the server looks through them
	R eval 'local r = {}
		for _, k in ipairs(redis.call("KEYS", "*")) do if not k:match(":r?fence$") and not k:match(":run$") then r[#r + 1] = k end end
		return r' 0 | grep -av '^$'
}
assertNoKeys() { wait_until '[ -z "$(leftover_keys)" ]' 2 || fail "keys left: $(leftover_keys)"; }

# --- processes ----------------------------------------------------------------------------------------------

# strays: pids of what tests of this suite started and what still lives: by the mark in the environment, or, for
# programs that were started with an empty one, by the mounts of the host they run on.
strays() (
	export -n NFTEST HOSTS # or the pipeline would find itself
	grep -las -e "NFTEST=$NFTEST" -e "$HOSTS" /proc/[0-9]*/environ /proc/[0-9]*/mountinfo |
		cut -d/ -f3 | sort -un
)
named() { local p; for p in $(strays); do [ "$(cat "/proc/$p/comm" 2>/dev/null)" = "$1" ] && echo "$p"; done; }
keepers() { named netflock-keeper; }
guards() { named netflock-guard; }          # a keeper has one, which takes its place when it is killed
is_keeper() { case $(cat "/proc/$1/comm" 2>/dev/null) in netflock-keeper | netflock-guard) ;; *) false ;; esac; }
count() { wc -l | tr -d ' '; }

kill_strays() {
	local p
	for p in $(strays); do is_keeper "$p" || kill -KILL "$p" 2>/dev/null; done
	{ for p in $(jobs -p); do [ "$p" = "$REDIS_PID" ] || wait "$p"; done; } 2>/dev/null
}

# --- actors: a process on a host that does one call at a time, when told ------------------------------------

declare -A ACT_IN ACT_OUT ACT_PID

actor() { # actor NAME HOST [VAR=VALUE...]: see probes/$PROBE.c (default actor) for what it can be asked
	local name=$1 in out; shift
	rm -f "$W/$name.in" "$W/$name.out"
	mkfifo "$W/$name.in" "$W/$name.out"
	exec {in}<>"$W/$name.in" {out}<>"$W/$name.out"
	"$TESTS/host" -s "$@" "$PROBES/${PROBE:-actor}" <"$W/$name.in" >"$W/$name.out" {in}<&- {out}<&- &
	ACT_PID[$name]=$! ACT_IN[$name]=$in ACT_OUT[$name]=$out
	[ "$(reply "$name")" = READY ] || fail "actor $name does not start"
}
tell() { local n=$1; shift; echo "$*" >&"${ACT_IN[$n]}"; }
reply() { # reply NAME [SECONDS]
	local line
	if read -r -t "${2:-10}" -u "${ACT_OUT[$1]}" line; then echo "$line"; else echo "no answer"; fi
}
ask() { tell "$@"; reply "$1"; }

actors_close() {
	local n fd
	for n in "${!ACT_IN[@]}"; do
		fd=${ACT_IN[$n]}; exec {fd}>&-
		fd=${ACT_OUT[$n]}; exec {fd}>&-
	done
	ACT_IN=() ACT_OUT=() ACT_PID=()
}

# --- shunit2's hooks ----------------------------------------------------------------------------------------

# need CMD...: a test calls it for programs it cannot do without.
need() {
	local p
	for p; do
		command -v "$p" >/dev/null || { echo "SKIP: $p is not installed"; startSkipping; return 1; }
	done
}

oneTimeSetUp() {
	# The loader only warns about a library that it cannot load, and then nothing here would mean anything.
	[ -z "$(LD_PRELOAD=$NF_PRELOAD /bin/true 2>&1)" ] || { echo "shunit2:ERROR $SO cannot be preloaded"; exit 2; }
	redis_start || exit 2
	if declare -F suite_setup >/dev/null; then suite_setup; fi
}

oneTimeTearDown() {
	kill_strays
	local p; for p in $(strays); do kill -KILL "$p" 2>/dev/null; done
	redis_stop
	rm -rf "$W"
}

setUp() {
	IN_TEST=1
	TEST_T0=$(now_ms)
	redis_up || { redis_stop; redis_start; }
}

tearDown() {
	[ -n "$IN_TEST" ] || return 0   # shunit2 calls it once more at the end
	IN_TEST=
	kill_strays
	actors_close
	if ! wait_until '[ -z "$(strays)" ]' 8; then
		fail "processes left: $(for p in $(strays); do echo "$p $(tr '\0' ' ' <"/proc/$p/cmdline")"; done)"
		for p in $(strays); do kill -KILL "$p" 2>/dev/null; done
	fi
	[ -z "$REDIS_PID" ] || R flushall >/dev/null 2>&1
	echo "#ms $(($(now_ms) - TEST_T0))"
	return 0
}
