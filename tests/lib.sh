# shellcheck shell=bash
# lib.sh: what every suite of tests/suites needs; a suite sources it first and shunit2 last.
#
# A suite has a temporary folder $W, a redis-server of its own (unix socket and a loopback port that the kernel
# chose), and "hosts" (see ./host).
#
# Time. Tests wait for events (must, wait_until) and never for a length of time that is meant to be "long enough". No test
# asserts a number of milliseconds. What a test says of time is an order of events, a comparison with what the plain kernel
# does in the same moments, or a bound that means "not never" and is a multiple of the lease. A lease that a test does not
# speak of does not end during the test ($AGES): what is free within $PATIENCE was freed, and did not run out.
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
# TEST_PASS is "asan" or "tsan" in the passes under sanitizers (see ./run), TEST_ASAN the libraries of theirs.
LIBDIR=$BUILD${TEST_PASS:+/$TEST_PASS}
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

# How long an event may take before a test says that it never comes, in seconds. Much more than it needs on a busy machine,
# since a machine's speed is not what is tested. Where something has to come *before* a lease ends, the lease is given $AGES:
# whatever happens within $PATIENCE was not the lease's end.
PATIENCE=30
export AGES=90s

now_ms() { local t=${EPOCHREALTIME/[.,]/}; echo $((t / 1000)); }

# nap SECONDS: without a process of its own.
exec {NAP}<> <(:)
nap() { read -r -t "$1" -u "$NAP"; return 0; }

# wait_until CONDITION [SECONDS]: evaluates the condition until it is true; 1 if it does not become true. It looks often at
# first and then every 80 ms: a look may be costly.
wait_until() {
	local t=${2:-$PATIENCE} pause=1 now
	now=${EPOCHREALTIME/[.,]/}
	[[ $t == *.* ]] || t=$t.
	local frac=${t#*.}000
	local end=$((now + ${t%.*} * 1000000 + 10#${frac:0:3} * 1000))
	until eval "$1"; do
		[ "${EPOCHREALTIME/[.,]/}" -lt "$end" ] || return 1
		nap "0.0$((pause / 10))$((pause % 10))"
		[ $pause -ge 8 ] || pause=$((pause * 2))
	done
}

# stays CONDITION MS [MESSAGE]: it holds at each look for so long, which is a number of leases: what is renewed stays longer than
# one, and what is not does not.
stays() {
	local end=$(($(now_ms) + $2))
	while [ "$(now_ms)" -lt "$end" ]; do
		eval "$1" || { fail "${3:-it stays true that} $1"; return 1; }
		nap 0.05
	done
}
# keeps FILE MS [MESSAGE]: its key is there at each look for so long.
keeps() { stays "held '$1'" "$2" "${3:+$3: }the key is there:"; }

fence_of() { R get "netflock:{$(key_of "$1")}:fence"; }
# freed_by COMMAND [FILE...]: that ends the tenures (of $F), by a release: the end of a lease would not move the fence on.
freed_by() {
	local f before=()
	local files=("${@:2}"); [ ${#files[@]} -gt 0 ] || files=("$F")
	for f in "${files[@]}"; do before+=("$(fence_of "$f")"); done
	eval "$1"
	for f in "${files[@]}"; do
		wait_free "$f"
		assertNotEquals "$f was released, and did not run out" "${before[0]}" "$(fence_of "$f")"
		before=("${before[@]:1}")
	done
	assertNoKeys
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
must() { wait_until "$1" "${2:-$PATIENCE}" || fail "${3:-waited ${2:-$PATIENCE} s for} $1"; }

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
wait_held() { wait_until "held '$1'" "${2:-$PATIENCE}" || fail "nobody took $1"; }
wait_free() { wait_until "! held '$1'" "${2:-$PATIENCE}" || fail "$1 is still held: $(R get "$(key_of "$1")" 2>&1)"; }

# What must not be left when nobody holds or waits. Fence counters, and the server's run id beside them, stay for a day, on
# purpose.
leftover_keys() { # names may contain line breaks, so the server looks through them
	R eval 'local r = {}
		for _, k in ipairs(redis.call("KEYS", "*")) do if not k:match(":r?fence$") and not k:match(":run$") then r[#r + 1] = k end end
		return r' 0 | grep -av '^$'
}
assertNoKeys() { wait_until '[ -z "$(leftover_keys)" ]' || fail "keys left: $(leftover_keys)"; }

# --- processes ----------------------------------------------------------------------------------------------

# strays: pids of what tests of this suite started and what still lives: by the mark in the environment, or, for
# programs that were started with an empty one, by the mounts of the host they run on.
strays() ( export -n NFTEST HOSTS; exec "$PROBES/strays" "NFTEST=$NFTEST" "$HOSTS" ) # or it would find itself
comm_is() { local c; { read -r c <"/proc/$1/comm"; } 2>/dev/null && [ "$c" = "$2" ]; }
named() { local p; for p in $(strays); do comm_is "$p" "$1" && echo "$p"; done; }
keepers() { named netflock-keeper; }
guards() { named netflock-guard; }          # a keeper has one, which takes its place when it is killed
# A new guard bears the keeper's name for a moment, and whoever was killed is there for a moment.
guarded() { must '[ "$(keepers | count) $(guards | count)" = "1 1" ]' $PATIENCE "a keeper with its guard;"; }
is_keeper() { comm_is "$1" netflock-keeper || comm_is "$1" netflock-guard; }
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
	if read -r -t "${2:-$PATIENCE}" -u "${ACT_OUT[$1]}" line; then echo "$line"; else echo "no answer"; fi
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
	: >"$W/redis.log"
	BEFORE=$(find "$W" -maxdepth 1 -type f)
}

# What a test has written into $W goes with it: "in" in an old output would be taken for the new one's.
forget_files() {
	local f
	while IFS= read -r f; do
		case $'\n'$BEFORE$'\n' in *$'\n'"$f"$'\n'*) ;; *) rm -f "$f" ;; esac
	done < <(find "$W" -maxdepth 1 -type f)
}

oneTimeTearDown() {
	kill_strays
	local p; for p in $(strays); do kill -KILL "$p" 2>/dev/null; done
	if declare -F suite_teardown >/dev/null; then suite_teardown; fi
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
	if ! wait_until '[ -z "$(strays)" ]'; then
		fail "processes left: $(for p in $(strays); do echo "$p $(tr '\0' ' ' <"/proc/$p/cmdline")"; done)"
		for p in $(strays); do kill -KILL "$p" 2>/dev/null; done
	fi
	[ -z "$REDIS_PID" ] || R flushall >/dev/null 2>&1
	forget_files
	echo "#ms $(($(now_ms) - TEST_T0))"
	return 0
}

# --- what netflock prints as JSON -----------------------------------------------------------------------------

# json_start: a suite calls it once (not in a subshell), for json FILE EXPRESSION: what Python makes of the expression, where
# d is what the file holds; h and w are all record locks in it and their waiters, for what netflock status prints. One
# process for a suite's hundreds of questions. It ends with the suite.
json_start() {
	mkfifo "$W/json.out"
	exec {JSON_OUT}<>"$W/json.out" {JSON_IN}> >(exec env -u NFTEST -u HOSTS python3 -c '
import json, sys
def word():
    read = b""
    while (c := sys.stdin.buffer.read(1)) != b"\0":
        if not c: sys.exit()
        read += c
    return read.decode()
while True:
    path, text = word(), word()
    try:
        with open(path) as f: d = json.load(f)
        rows = [e["records"] for e in d if "records" in e]
        h = [r for e in rows for r in e["holders"]]
        w = [r for e in rows for r in e["waiters"]]
        answer = str(eval(text, {"d": d, "h": h, "w": w}))
    except Exception as e:
        answer = "%s: %s" % (text, e)
    sys.stdout.buffer.write(answer.replace("\0", "").encode("utf-8", "surrogateescape") + b"\0")
    sys.stdout.flush()' >"$W/json.out")
}
json() {
	local answer
	printf '%s\0' "$1" "$2" >&"$JSON_IN"
	IFS= read -r -d '' -t "$PATIENCE" -u "$JSON_OUT" answer
	printf '%s\n' "$answer"
}
