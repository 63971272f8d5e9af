#!/bin/bash
# demo.sh: shows the main job. Two "hosts" of this machine (see ./host: same paths, other inodes, as two machines
# have them) count in one file under a lock, once without netflock and once with it.
# Exit status 0 if the locked counter was right and nothing stayed behind.
cd "$(dirname "$0")/.." || exit 2
PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
unset LD_PRELOAD "${!NETFLOCK_@}"
BUILD=$(realpath "${BUILD:-build}")
export NF_PRELOAD=$BUILD/libnetflock.so
[ -e "$NF_PRELOAD" ] && [ -x "$BUILD/netflock" ] || { echo "$BUILD is not built: run make"; exit 2; }
[ "$(id -u)" = 0 ] || { echo "the demo needs root: it gives each host a mount namespace"; exit 2; }

W=$(mktemp -d "${TMPDIR:-/tmp}/netflock-demo.XXXXXX") || exit 2
export D=$W/locks HOSTS=$W/hosts NF_TTL=10s NF_URL=unix://$W/redis.sock COUNTER=$W/counter
mkdir "$D" "$HOSTS"
SERVER=
FAILED=0
EACH=60 # increments by each host

R() { redis-cli -s "$W/redis.sock" "$@"; }
say() { printf '\n%s\n' "$1"; }
show() { sed 's/^/    /'; }
# What of ours still runs: it has the folder's name in its environment, its mounts, or its open files.
ours() (
	export -n D HOSTS NF_URL COUNTER
	{
		grep -las "$W" /proc/[0-9]*/environ /proc/[0-9]*/mountinfo
		find /proc/[0-9]*/fd -maxdepth 1 -lname "$W/*" 2>/dev/null
	} | cut -d/ -f3 | sort -un | grep -vx -e "$$" -e "$BASHPID" -e "${SERVER:-0}"
)
clean() {
	local p
	trap - EXIT
	for p in $(ours); do kill -KILL "$p" 2>/dev/null; done
	[ -z "$SERVER" ] || kill "$SERVER" 2>/dev/null
	{ wait; } 2>/dev/null
	rm -rf "$W"
}
trap clean EXIT
trap 'clean; exit 130' INT TERM

# until_true CONDITION: for at most 5 seconds.
until_true() {
	local i
	for ((i = 0; i < 100; i++)); do
		eval "$1" && return 0
		sleep 0.05
	done
	return 1
}

# --- two programs that nobody changed ------------------------------------------------------------------------

# The real flock(1), as a shell script or a cron job uses it.
# shellcheck disable=SC2016 # the shell that it starts is to expand these
SCRIPT='i=0; while [ $i -lt '$EACH' ]; do i=$((i + 1))
	flock "$D/counter.lock" sh -c "n=\$(cat \$COUNTER); sleep 0.005; echo \$((n + 1)) >\$COUNTER"
done'

# Python's own fcntl.flock().
cat >"$W/count.py" <<END
import fcntl, os, time
for _ in range($EACH):
    with open(os.environ["D"] + "/counter.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open(os.environ["COUNTER"]) as f:
            n = int(f.read() or 0)
        time.sleep(0.005)
        with open(os.environ["COUNTER"], "w") as f:
            f.write("%d\n" % (n + 1))
END

# count [-s]: both hosts at once; how many increments are in the file then.
count() {
	local a b bad=0
	echo 0 >"$COUNTER"
	tests/host "$@" 1 sh -c "$SCRIPT" 2>>"$W/errors" & a=$!
	tests/host "$@" 2 /usr/bin/python3 "$W/count.py" 2>>"$W/errors" & b=$!
	wait $a || bad=1
	wait $b || bad=1
	N=$(cat "$COUNTER")
	return $bad
}

# --- the show ------------------------------------------------------------------------------------------------

redis-server --port 0 --unixsocket "$W/redis.sock" --save '' --appendonly no --dir "$W" >"$W/redis.log" 2>&1 </dev/null &
SERVER=$!
until_true '[ "$(R ping 2>/dev/null)" = PONG ]' || { cat "$W/redis.log"; exit 1; }
echo "Redis: a private redis-server on $W/redis.sock"
echo "host1: flock(1) from a shell script; host2: Python's fcntl.flock(). Same path, different inodes."
echo "Each adds 1 to one shared counter file, $EACH times, under a lock on $D/counter.lock."

say "1. Without netflock: each kernel knows only its own locks."
count # may well have met an empty file: that is the point
echo "   counter: ${N:-empty}, should be $((2 * EACH)): $((2 * EACH - ${N:-0})) updates lost"

say "2. With netflock (LD_PRELOAD, the programs are the same)."
: >"$W/errors"
if ! count -s; then
	FAILED=1
	show <"$W/errors"
fi
echo "   counter: $N, should be $((2 * EACH)): $((2 * EACH - N)) updates lost"
[ "$N" = $((2 * EACH)) ] || FAILED=1

say "3. Who has it? host1 holds the lock, host2 waits; \"netflock status\" from a third place:"
tests/host -s 1 flock "$D/counter.lock" sleep 2 &
until_true '[ "$(R exists "lock:$D/counter.lock")" = 1 ]'
T0=${EPOCHREALTIME/[.,]/}
tests/host -s 2 flock "$D/counter.lock" true & WAITER=$!
until_true '[ "$(R exists "netflock:{lock:$D/counter.lock}:queue")" = 1 ]'
if ! NETFLOCK_PREFIX=$D NETFLOCK_URL=$NF_URL "$BUILD/netflock" status >"$W/status" 2>&1; then FAILED=1; fi
show <"$W/status"
wait $WAITER || FAILED=1
echo "   host1 has released it, host2 has had it after $(((${EPOCHREALTIME/[.,]/} - T0) / 1000)) ms of waiting."

say "4. What is left?"
until_true '[ -z "$(ours)" ]'
KEYS=$(R --scan | grep -v -e 'fence$' -e ':run$')
LEFT=$(ours)
kill "$SERVER"
{ wait; } 2>/dev/null
SERVER=
rm -rf "$W"
MOUNTS=$(grep -c "$W" /proc/mounts)
echo "   keys: ${KEYS:-none} (but for the fence counter, which expires after a day); processes: ${LEFT:-none};" \
	"mounts: ${MOUNTS/#0/none}; files: $([ -e "$W" ] && echo "$W" || echo none)"
[ -z "$KEYS$LEFT" ] && [ "$MOUNTS" = 0 ] && [ ! -e "$W" ] || FAILED=1

if [ "$FAILED" = 0 ]; then say "netflock did its job."; else say "SOMETHING WENT WRONG, see above."; fi
exit "$FAILED"
