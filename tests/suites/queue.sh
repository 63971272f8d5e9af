#!/bin/bash
# The queue in Redis: who is next, what a hand-over costs, and what happens to waiters that are dead.
. "$(dirname "$0")/../lib.sh"

F=crowd/x
KEY=lock:$F QUEUE="netflock:{lock:$F}:queue"


# Many hosts, cheaply: each has a folder of its own (so another inode) that has the same name in Redis.
declare -A PIDOF
WATCH=
turn() { # [VAR=VALUE...] NAME MODE MS|PATH: a host's turn, see probes/turn.c; $PID
	local vars=()
	while [[ $1 == *=* ]]; do vars+=("$1"); shift; done
	mkdir -p "$W/crowd/$1"
	env LD_PRELOAD="$NF_PRELOAD" NETFLOCK_PREFIX="$W/crowd/$1=crowd" NETFLOCK_URL="$NF_URL" NETFLOCK_TTL="$AGES" \
		"${vars[@]}" "$PROBES/turn" "$W/crowd/$1/x" "$OUT" "$@" 2>>"$W/err" &
	PID=$! PIDOF[$1]=$!
}
waiting() { [ "$(R zcard "$QUEUE")" = "$1" ]; }
queue() { # NAME MODE ...: as turn, and sees to it that it is queued before the next one comes
	local n; n=$(R zcard "$QUEUE")
	turn "$@"
	must 'waiting $((n + 1))' "" "$1 queues;"
}
ended() { local p; for p in $(jobs -p); do [ "$p" = "$REDIS_PID" ] || [ "$p" = "$WATCH" ] || wait "$p"; done; } 2>/dev/null
is_in() { grep -q "^+$1 " "$OUT"; }
order() { grep -o '^+[^ ]*' "$OUT" | tr -d '+\n'; }
calls() { # [COMMANDS]: how often they were called, scripts and their waiting by default
	R info commandstats | tr -d '\r' | awk -F'[:=,]' -v what="^cmdstat_(${1:-evalsha|eval|blpop})\$" '$1 ~ what { n += $3 } END { print n + 0 }'; }
begin() { # a server that knows the scripts already, and from now on says all that it is asked for
	OUT=$(mktemp "$W/out.XXXXXX"); GO=$W/go.${OUT##*.} LOG=$W/log.${OUT##*.} PIDOF=()
	turn warm x 0; must 'grep -q -e -warm "$OUT" && ! held "$F"'
	: >"$OUT"
	[ -z "$WATCH" ] || { kill "$WATCH"; wait "$WATCH"; } 2>/dev/null
	redis-cli -s "$SOCK" monitor >"$LOG" & WATCH=$!
	must '[ -s "$LOG" ]'
}
sleeping() { # the waiters sit at their lists
	[ "$(R info clients | tr -d '\r' | sed -n 's/^blocked_clients://p')" = "$1" ]; }
slept() { grep -c "\"BLPOP\".*:${PIDOF[$1]}:turn:" "$LOG"; } # so often it has gone to sleep

# What Redis was asked for so far: a line "SECONDS WHAT NAME ARGUMENT" each, with the time by Redis' clock. WHAT is
# ask, sleep (at its list, ARGUMENT seconds), release, renew, and of what scripts do: grant, told (to look again).
events() {
	local name names=''
	for name in "${!PIDOF[@]}"; do names+="${PIDOF[$name]} $name "; done
	R echo "mark $((++MARK))" >/dev/null
	must 'grep -q "\"mark $MARK\"" "$LOG"'
	awk -v names="$names" '
		BEGIN { n = split(names, a, " "); for (i = 1; i < n; i += 2) name[a[i]] = a[i + 1] }
		match($0, /:[0-9]+:turn:[0-9]+"/) {
			split(substr($0, RSTART + 1), token, ":"); rest = substr($0, RSTART + RLENGTH)
			if (/ lua] "RPUSH"/) what = rest ~ /""/ ? "told" : "grant"
			else if (/] "BLPOP"/) what = "sleep"
			else if (/] "EVALSHA"/) what = rest ~ /^ "[0-9]+"/ ? "ask" : rest ~ /^ "[xs]" "[01]" / ? "release" : "renew"
			else next
			gsub(/"/, "", rest)
			print $1, what, name[token[1]] rest
		}' "$LOG"
}

# passed_over DEAD NEXT: one of DEAD (a pattern) was granted the file and did not fetch the message; NEXT was told to look, or
# did by itself, slept until 200 ms were over, and had the file with its first question after that.
passed_over() {
	events >"$W/events"
	assertEquals "grants to the dead" 1 "$(grep -c " grant $1 " "$W/events")"
	assertEquals "woken, not asleep for long, questions ($(cat "$W/events"))" "1 0 1" "$(awk -v dead="^($1)\$" -v next_one="$2" '
		$2 == "grant" && $3 ~ dead { since = $1 }
		!since || $3 != next_one { next }
		$2 == "told" || ($2 == "ask" && $1 < since + 0.2) { woken = 1 }
		$2 == "ask" { asked = 1; if ($1 > since + 0.205) late++ }
		$2 == "sleep" && asked && $4 > 0.5 { long++ }
		END { print woken + 0, long + 0, (late < 2) }' "$W/events")"
}

# watched STOPPED NEXT: when STOPPED was granted the file, NEXT was about to ask soon after the end of that grant (1.5 s), or
# was told to.
watched() {
	events >"$W/events"
	assertEquals "the next one looks in time ($(cat "$W/events"))" 1 "$(awk -v stopped="$1" -v next_one="$2" '
		$3 == next_one && $2 == "ask" && !since { asked = $1 }
		$3 == next_one && $2 == "sleep" && !since { asks = asked + $4 }
		$3 == stopped && $2 == "grant" { since = $1 }
		$3 == next_one && $2 == "told" && since { told = 1 }
		END { print (since && (told || asks < since + 1.81)) }' "$W/events")"
}

# --- what it costs ------------------------------------------------------------------------------------------

test_a_waiter_hardly_bothers_redis() {
	# Ten seconds of waiting cost less than ten commands: it asks again after one second, and then after three each time. One
	# that was told to look comes back after one, so that it need not be told again.
	begin
	turn a x "$GO"; must 'is_in a'
	queue b x 0
	must '[ "$(slept b)" = 2 ]'
	R rpush "netflock:{$KEY}:wait:$(R zrange "$QUEUE" 0 0 | cut -d: -f2-)" '' >/dev/null
	must '[ "$(slept b)" = 3 ]'
	assertEquals "all that b asks of Redis" "ask sleep ask sleep ask sleep" "$(events | awk '$3 == "b" { print $2 }' | paste -sd' ')"
	assertEquals "the seconds that it sleeps" "1 3 1" "$(events | awk '$2 == "sleep" && $3 == "b" { print int($4) }' | paste -sd' ')"
	touch "$GO"
	must 'is_in b'
	ended
	assertNoKeys
}

test_a_hand_over_costs_the_same_however_many_wait() {
	local n i pids
	for n in 2 100; do
		[ -z "${TEST_ASAN:-}" ] || [ $n -lt 100 ] || n=20
		begin
		turn a x "$GO"; must 'is_in a'
		queue b x "$GO.b"
		pids=()
		for i in $(seq $n); do turn "$i" x 0; pids+=("$PID"); done
		must "sleeping $((n + 1))"
		# Redis does not see that they are stopped. So they do not ask to keep their places meanwhile.
		kill -STOP "${pids[@]}"
		touch "$GO"
		must 'is_in b'
		must '[ "$(events | grep -c "release a ")" = 2 ]' # the release, and the look after it
		events | sed -n '/release a /,$p' | grep -v ' renew ' >"$W/events"
		assertEquals "what clients ask for; $n wait" "release a release a" "$(awk '$2 ~ /ask|sleep|release/ { print $2, $3 }' "$W/events" | paste -sd' ')"
		# One message wakes one waiter. The next two may be told, once, to look whether that one lives.
		assertEquals "grants" "grant b" "$(awk '$2 == "grant" { print $2, $3 }' "$W/events")"
		assertBetween "waiters told to look; $n wait" 0 2 "$(grep -c ' told ' "$W/events")"
		kill -CONT "${pids[@]}"
		touch "$GO.b"
		must '[ "$(grep -c "^-" "$OUT")" = $((n + 2)) ]'
		ended
	done
	assertNoKeys
}

test_a_waiter_is_in_with_the_message_that_wakes_it() {
	begin
	turn a x "$GO"; must 'is_in a'
	queue b x 0
	must 'sleeping 1'
	touch "$GO"
	must 'is_in b'
	must '! held "$F"'
	# It does not ask, but gives the file back. (Should that take it long, it renews before.)
	assertEquals "grant release" "$(events | sed -n '/grant b/,$p' | awk '$3 == "b" && $2 != "renew" { print $2 }' | paste -sd' ')"
}

test_lock_nb_never_queues() {
	begin
	turn a x "$GO"; must 'is_in a'
	R config resetstat >/dev/null
	for i in 1 2 3; do turn "w$i" w 0; turn "r$i" r 0; done
	must '[ "$(grep -c "^!.* EAGAIN" "$OUT")" = 6 ]' "" "$(cat "$OUT") "
	assertEquals "nobody was put into the queue" "" "$(R info commandstats | grep -i zadd)"
	touch "$GO"
}

# A grant counts from a moment of Redis' clock. It is taken on trust only if that can be after the last answer, and not more
# time later than has passed here; otherwise the clock was set, or the message is an old one.
test_a_message_that_cannot_be_right_is_not_believed() {
	local token now word asks
	begin
	turn a x "$GO"; must 'is_in a'
	queue b x 0
	must 'sleeping 1'
	token=$(R zrange "$QUEUE" 0 0); token=${token#x:}
	for word in "7 +3000 1500" "7 +60000 1500" "7 -3000 1500" "7 -100000 1500" "7 +0 1" "7 +0 -5" "7 +0" 7 "7  1500" "x +0 1500" \
		"7 +0 1500 1" "99999999999999999999999999 +0 1500" "7 99999999999999999999999 1500"; do
		now=$(R time | awk 'NR == 1 { s = $1 } NR == 2 { printf "%d", s * 1000 + int($1 / 1000) }')
		[[ $word =~ ([+-][0-9]+) ]] && word=${word/${BASH_REMATCH[1]}/$((now + BASH_REMATCH[1]))}
		asks=$(slept b)
		R rpush "netflock:{$KEY}:wait:$token" "$word" >/dev/null
		must '[ "$(slept b)" -gt "$asks" ]' "" "b asks, after \"$word\";"
	done
	assertFalse "it is not in" "is_in b"
	touch "$GO"
	must 'is_in b'
}

# --- the order ----------------------------------------------------------------------------------------------

# (asan: no: the order is made in Redis)
test_first_come_first_served() {
	local i
	begin
	turn a x "$GO"; must 'is_in a'
	for i in b c d e f g h; do queue $i x 0; done
	touch "$GO"
	must 'is_in h'
	assertEquals abcdefgh "$(order)"
}

# (asan: no: the order is made in Redis)
test_a_waiting_writer_is_not_overtaken_by_later_readers() {
	begin
	turn a s "$GO"; must 'is_in a'
	queue b x "$GO.b"
	queue c s 0
	turn d r 0
	must 'is_in d' "" "one that does not wait is not made to;"
	assertEquals ad "$(order)"
	touch "$GO"
	must 'is_in b'
	must 'waiting 1'
	assertEquals adb "$(order)"
	touch "$GO.b"
	must 'is_in c'
	assertEquals adbc "$(order)"
}

test_readers_next_to_each_other_are_let_in_together() {
	begin
	turn a x "$GO"; must 'is_in a'
	queue b s "$GO.r"; queue c s "$GO.r"; queue d s "$GO.r"
	queue e x "$GO.e"
	queue f s 0
	touch "$GO"
	must 'is_in b && is_in c && is_in d'
	assertEquals "readers at once" 3 "$(R zcard "$KEY")"
	assertEquals "each had a message" "b c d" "$(events | awk '$2 == "grant" { print $3 }' | sort | paste -sd' ')"
	assertFalse "the writer waits" "is_in e"; assertFalse "so does the reader behind it" "is_in f"
	touch "$GO.r"
	must 'is_in e'
	assertFalse "the reader waits for the writer" "is_in f"
	touch "$GO.e"
	must 'is_in f'
	ended
	assertNoKeys
}

# --- waiters that are dead ----------------------------------------------------------------------------------

# (asan: no: they are passed over in Redis; the reader's test has the waiters' part)
test_waiters_that_were_killed_are_passed_over_at_once_however_many() {
	local k i pids
	for k in 1 7; do
		begin
		turn a x "$GO"; must 'is_in a'
		pids=()
		for i in $(seq $k); do queue "k$i" x 0; pids+=("$PID"); done
		queue b x 0
		must "sleeping $((k + 1))"
		{ kill -KILL "${pids[@]}"; wait "${pids[@]}"; } 2>/dev/null
		must 'sleeping 1'
		touch "$GO"
		must 'is_in b'
		passed_over 'k.' b
		must '[ "$(R zcard "$QUEUE")" = 0 ]' "" "rows of dead waiters are gone;"
		assertEquals ab "$(order)"
	done
	assertNoKeys
}

test_a_dead_reader_among_waiters_holds_up_no_writer() {
	begin
	turn a x "$GO"; must 'is_in a'
	queue r1 s 0; local p=$PID
	queue r2 s 0
	queue b x 0
	must "sleeping 3"
	{ kill -KILL $p; wait $p; } 2>/dev/null
	must 'sleeping 2'
	touch "$GO"
	must 'is_in r2'
	must 'is_in b'
	passed_over r1 b
	assertEquals "the reader had a message at once" "r1 r2" "$(events | awk '$2 == "grant" { print $3 }' | head -n 2 | paste -sd' ')"
}

# stopped_waiter NEXT-SLEEPS CHECK: two wait; the first is stopped when the second has gone to sleep so often.
stopped_waiter() {
	begin
	turn a x "$GO"; must 'is_in a'
	queue s x 0; local s=$PID
	queue b x "$GO.b"
	[ "$1" = early ] || must '[ "$(slept b)" = 2 ] && [ "$(slept s)" -ge 2 ]' # in its longer sleep
	must 'sleeping 2'
	kill -STOP $s
	# Long before its turn: Redis has woken it in vain, so that nobody fetches its grant.
	[ "$1" != early ] || must '[ "$(slept b)" -ge 2 ] && sleeping 1'
	touch "$GO"
	must 'is_in b'
	"$2" s b
	# It wakes up with a message that is worth nothing any more.
	local token; token=$(R get "$KEY")
	kill -CONT $s
	must 'waiting 1'
	assertEquals "b still has it" "$token" "$(R get "$KEY")"
	assertFalse "the stopped one is not in" "is_in s"
	touch "$GO.b"
	must 'is_in s'
	must '! held "$F"'
}

# (asan: no: it is passed over in Redis; see the one that was stopped long before)
test_a_waiter_that_is_stopped_is_passed_over_when_its_grant_ends() {
	stopped_waiter late watched
}

test_a_waiter_that_was_stopped_long_before_is_passed_over_like_a_dead_one() {
	stopped_waiter early passed_over
}

# (asan: no: it is passed over in Redis)
test_a_waiter_that_is_cut_off_is_passed_over_when_its_grant_ends() {
	need iptables ip || return 0
	local net=$((RANDOM % 250)) link=nfq$$
	begin
	turn a x "$GO"; must 'is_in a'
	# A network of its own, in which packets to us are dropped later.
	NF_URL=redis://10.251.$net.1:$PORT NETNS=1 NF_PREFIX="$D=crowd" spawn 1 sh -c '
		until ip addr show dev nf1 2>/dev/null | grep -q "inet "; do sleep 0.02; done
		exec "$@"' sh "$PROBES/turn" "$D/x" "$OUT" cut x 0
	local p=$PID
	PIDOF[cut]=$PID
	must '[ "$(readlink /proc/$p/ns/net)" != "$(readlink /proc/self/ns/net)" ] && [ "$(cat /proc/$p/comm)" = sh ]'
	ip link add "$link" type veth peer name nf1 netns "$p" || { fail "no veth"; return; }
	ip addr add "10.251.$net.1/24" dev "$link"; ip link set "$link" up
	R config set bind "127.0.0.1 10.251.$net.1" >/dev/null; R config set protected-mode no >/dev/null
	nsenter -n -t "$p" sh -c "ip addr add 10.251.$net.2/24 dev nf1; ip link set nf1 up"
	must 'waiting 1'
	queue b x 0
	must 'sleeping 2'
	nsenter -n -t "$p" iptables -A INPUT -j DROP
	nsenter -n -t "$p" iptables -A OUTPUT -j DROP
	touch "$GO"
	must 'is_in b'
	watched cut b
	assertFalse "is_in cut"
	kill -KILL "$p"
	R config set bind 127.0.0.1 >/dev/null
	ip link del "$link" 2>/dev/null
	assertNoKeys
}

test_the_head_of_the_queue_is_in_when_a_killed_holder_s_lease_ends() {
	begin
	turn NETFLOCK_TTL=1200ms NETFLOCK_KEEPER=never a x "$GO"; local p=$PID; must 'is_in a'
	queue b x 0
	queue c x 0
	must '[ "$(slept b)" -ge 2 ] && [ "$(slept c)" -ge 2 ]'
	{ kill -KILL $p; wait $p; } 2>/dev/null
	must 'is_in b'
	must 'is_in c'
	# Not the three seconds that a waiter else sleeps after the first second; and by Redis' clock it was not too soon.
	assertEquals "longer than the lease; after its end ($(events))" "0 1" "$(events | awk '
		$2 == "renew" && $3 == "a" { end = $1 + 1.199 }
		$2 == "sleep" && $3 == "b" && $4 > 1.25 { long++ }
		$2 == "ask" && $3 == "b" { asked = $1 }
		END { print long + 0, (asked > end) }')"
}

answered() { read -r -t 0 -u "${ACT_OUT[$1]}"; }

test_a_grant_that_crosses_with_an_interrupted_wait_is_passed_on() {
	local i t n
	# b's time is up about when a gives the lock back: b has it, or c gets it at once. Which of them differs from round to round.
	actor a 1; actor b 2; actor c 3
	F=$D/y
	: >"$W/crossed"
	for n in a b c; do ask $n open x c "$F" >/dev/null; done
	for i in $(seq 200); do
		assertEquals OK "$(ask a flock x EX)"
		ask b alarm $((5 + RANDOM % 40)) norestart >/dev/null
		tell b flock x EX
		tell c flock x EX
		nap 0.0$((10 + RANDOM % 30))
		tell a flock x UN
		assertEquals OK "$(reply a)"
		# On a slow machine b's time may be up before it waits at all. Then it waits on, perhaps behind c: a round for nothing.
		must 'answered b || answered c'
		if ! wait_until 'answered b' 1; then
			assertEquals OK "$(reply c)"; ask c flock x UN >/dev/null
			[ "$(reply b)" != OK ] || ask b flock x UN >/dev/null
			continue
		fi
		t=$(reply b)
		[ "$t" = OK ] || [ "$t" = EINTR ] || fail "b: $t"
		[ "$t" != OK ] || ask b flock x UN >/dev/null
		# Not when b's grant runs out: by the time b answers it has been passed on.
		assertContains "in Redis, when b had said $t: c (${ACT_PID[c]})" "$(R get "lock:$F")" ":${ACT_PID[c]}:"
		assertEquals "c, after b said $t" OK "$(reply c)"
		echo "$t" >>"$W/crossed"
		ask c flock x UN >/dev/null
		[ "$i" -lt 12 ] || [ "$(sort -u "$W/crossed" | count)" = 1 ] || break
	done
	assertEquals "both ways were seen ($(sort "$W/crossed" | uniq -c | tr '\n' ' '))" 2 "$(sort -u "$W/crossed" | count)"
	assertNoKeys
	F=crowd/x
}

. /usr/share/shunit2/shunit2
