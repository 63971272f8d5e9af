#!/bin/bash
# The queue in Redis: who is next, what a hand-over costs, and what happens to waiters that are dead.
. "$(dirname "$0")/../lib.sh"

F=crowd/x
KEY=lock:$F QUEUE="netflock:{lock:$F}:queue"


# Many hosts, cheaply: each has a folder of its own (so another inode) that has the same name in Redis.
turn() { # [VAR=VALUE...] NAME MODE MS|PATH: a host's turn, see probes/turn.c; $PID
	local vars=()
	while [[ $1 == *=* ]]; do vars+=("$1"); shift; done
	mkdir -p "$W/crowd/$1"
	env LD_PRELOAD="$NF_PRELOAD" NETFLOCK_PREFIX="$W/crowd/$1=crowd" NETFLOCK_URL="$NF_URL" NETFLOCK_TTL=20s \
		"${vars[@]}" "$PROBES/turn" "$W/crowd/$1/x" "$OUT" "$@" 2>>"$W/err" &
	PID=$!
}
waiting() { [ "$(R zcard "$QUEUE")" = "$1" ]; }
queue() { # NAME MODE ...: as turn, and sees to it that it is queued before the next one comes
	local n; n=$(R zcard "$QUEUE")
	turn "$@"
	must 'waiting $((n + 1))' 10 "$1 queues;"
}
ended() { local p; for p in $(jobs -p); do [ "$p" = "$REDIS_PID" ] || wait "$p"; done; } 2>/dev/null
is_in() { grep -q "^+$1 " "$OUT"; }
at() { sed -n "s/^$1 //p" "$OUT"; }           # at +NAME: when it got in
order() { grep -o '^+[^ ]*' "$OUT" | tr -d '+\n'; }
calls() { # [COMMANDS]: how often they were called, scripts and their waiting by default
	R info commandstats | tr -d '\r' | awk -F'[:=,]' -v what="^cmdstat_(${1:-evalsha|eval|blpop})\$" '$1 ~ what { n += $3 } END { print n + 0 }'; }
begin() { # a server that knows the scripts already
	OUT=$(mktemp "$W/out.XXXXXX"); GO=$W/go.${OUT##*.}
	turn warm x 0; must 'grep -q -e -warm "$OUT" && ! held "$F"'
	: >"$OUT"
}
sleeping() { # the waiters sit at their lists
	[ "$(R info clients | tr -d '\r' | sed -n 's/^blocked_clients://p')" = "$1" ]; }

# --- what it costs ------------------------------------------------------------------------------------------

test_a_waiter_hardly_bothers_redis() {
	# 10 s of waiting are to cost less than 10 commands; this is the share of 6.2 s.
	begin
	turn a x "$GO"; must 'is_in a'
	R config resetstat >/dev/null
	queue b x 0
	sleep 6.2
	assertBetween "commands of one waiter in 6.2 s" 1 6 "$(calls)"
	touch "$GO"
	must 'is_in b'
	ended
	assertNoKeys
}

test_a_hand_over_costs_the_same_however_many_wait() {
	local n i before
	for n in 2 20 200; do
		[ -z "${TEST_ASAN:-}" ] || [ $n -lt 200 ] || n=40
		begin
		turn a x "$GO"; must 'is_in a'
		for i in $(seq $n); do turn "$i" x 0; done
		must "sleeping $n" 30
		R config resetstat >/dev/null
		touch "$GO"
		must '[ "$(grep -c "^-" "$OUT")" = $((n + 1)) ]' 60
		# One message wakes one waiter. If its last look was long ago, it is told beforehand, once, to look again.
		assertBetween "messages for $n hand-overs" $n $((2 * n + 2)) "$(calls rpush)"
		# The release, and the look after it. Where that takes seconds, those who wait ask to keep their place.
		[ $n -gt 20 ] || assertBetween "commands for $n hand-overs" $n $((n * 3 + 6)) "$(calls)"
		ended
	done
	assertNoKeys
}

test_a_waiter_is_in_with_the_message_that_wakes_it() {
	local before
	begin
	turn a x "$GO"; must 'is_in a'
	queue b x 0
	must 'sleeping 1'
	before=$(calls)
	touch "$GO"
	must 'is_in b'
	must '! held "$F"'
	# a: the release and the look after it; b: the release.
	assertEquals "commands" 3 $(($(calls) - before))
}

test_lock_nb_never_queues() {
	begin
	turn a x "$GO"; must 'is_in a'
	R config resetstat >/dev/null
	for i in 1 2 3; do turn "w$i" w 0; turn "r$i" r 0; done
	must '[ "$(grep -c "^!.* EAGAIN" "$OUT")" = 6 ]' 8 "$(cat "$OUT") "
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
		asks=$(calls evalsha)
		R rpush "netflock:{$KEY}:wait:$token" "$word" >/dev/null
		must '[ "$(calls evalsha)" -gt "$asks" ]' 5 "b asks, after \"$word\";"
		must 'sleeping 1'
	done
	assertFalse "it is not in" "is_in b"
	touch "$GO"
	must 'is_in b'
}

# --- the order ----------------------------------------------------------------------------------------------

test_first_come_first_served() {
	local i
	begin
	turn a x "$GO"; must 'is_in a'
	for i in b c d e f g h; do queue $i x 0; done
	touch "$GO"
	must 'is_in h'
	assertEquals abcdefgh "$(order)"
}

test_a_waiting_writer_is_not_overtaken_by_later_readers() {
	begin
	turn a s "$GO"; must 'is_in a'
	queue b x "$GO.b"
	queue c s 0
	turn d r 0
	must 'is_in d' 5 "one that does not wait is not made to;"
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
	assertBetween "from the first to the last of them, ms" 0 500 \
		$(($(at '+[bcd]' | sort -n | tail -1) - $(at '+[bcd]' | sort -n | head -1)))
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

test_waiters_that_were_killed_are_passed_over_at_once_however_many() {
	local k i p pids
	for k in 1 7; do
		begin
		turn a x "$GO"; must 'is_in a'
		pids=
		for i in $(seq $k); do queue "k$i" x 0; pids="$pids $PID"; done
		queue b x 0
		must "sleeping $((k + 1))"
		# shellcheck disable=SC2086 # a list
		{ kill -KILL $pids; wait $pids; } 2>/dev/null
		must 'sleeping 1'
		touch "$GO"
		must 'is_in b'
		assertBetween "$k dead: milliseconds to the living one" 0 1350 $(($(at +b) - $(at -a)))
		must '[ "$(R zcard "$QUEUE")" = 0 ]' 5 "rows of dead waiters are gone;"
		assertEquals "a${k:+b}" "$(order)"
	done
	must '[ -z "$(leftover_keys)" ]' 3 "$(leftover_keys)"
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
	assertBetween "milliseconds to the reader" 0 400 $(($(at +r2) - $(at -a)))
	assertBetween "milliseconds to the writer" 0 1350 $(($(at +b) - $(at -a)))
}

test_a_waiter_that_is_stopped_is_passed_over_within_two_seconds() {
	local when before after
	for when in "0 0" "1.5 0" "0 2.4"; do   # in the first sleep of both, in a longer one, long before its turn
		read -r before after <<<"$when"
		begin
		turn a x "$GO"; must 'is_in a'
		queue s x 0; local s=$PID
		queue b x "$GO.b"
		must "sleeping 2"
		sleep $before
		kill -STOP $s
		sleep $after
		touch "$GO"
		must 'is_in b'
		# Where Redis can see that nobody fetches the message it takes less.
		assertBetween "milliseconds, stopped after $before s for $after s" "$([ $after = 0 ] && echo 1000 || echo 0)" 2000 $(($(at +b) - $(at -a)))
		# It wakes up with a message that is worth nothing any more.
		local token; token=$(R get "$KEY")
		kill -CONT $s
		must 'waiting 1'
		assertEquals "b still has it" "$token" "$(R get "$KEY")"
		assertFalse "the stopped one is not in" "is_in s"
		touch "$GO.b"
		must 'is_in s'
		must '! held "$F"'
	done
}

test_a_waiter_that_is_cut_off_is_passed_over_within_two_seconds() {
	need iptables ip || return 0
	local net=$((RANDOM % 250)) link=nfq$$
	begin
	turn a x "$GO"; must 'is_in a'
	# A network of its own, in which packets to us are dropped later.
	NF_URL=redis://10.251.$net.1:$PORT NETNS=1 NF_PREFIX="$D=crowd" spawn 1 sh -c '
		until ip addr show dev nf1 2>/dev/null | grep -q "inet "; do sleep 0.02; done
		exec "$@"' sh "$PROBES/turn" "$D/x" "$OUT" cut x 0
	local p=$PID
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
	assertBetween "milliseconds" 1000 2000 $(($(at +b) - $(at -a)))
	assertFalse "is_in cut"
	kill -KILL "$p"
	R config set bind 127.0.0.1 >/dev/null
	ip link del "$link" 2>/dev/null
	must '[ -z "$(leftover_keys)" ]' 9
}

test_the_head_of_the_queue_is_in_when_a_killed_holder_s_lease_ends() {
	begin
	turn NETFLOCK_TTL=1200ms NETFLOCK_KEEPER=never a x "$GO"; local p=$PID; must 'is_in a'
	queue b x 0
	queue c x 0
	must 'sleeping 2'
	{ kill -KILL $p; wait $p; } 2>/dev/null
	local end; end=$(($(now_ms) + $(R pttl "$KEY")))
	must 'is_in b'
	assertBetween "milliseconds after the lease's end" -5 200 $(($(at +b) - end))
	must 'is_in c'
}

test_a_grant_that_crosses_with_an_interrupted_wait_is_passed_on() {
	local i t ms=30
	# b's time is up about when a gives the lock back (closer each time): b has it, or c gets it at once.
	actor a 1; actor b 2; actor c 3
	F=$D/y
	for n in a b c; do ask $n open x c "$F" >/dev/null; done
	for i in $(seq 30); do
		assertEquals OK "$(ask a flock x EX)"
		ask b alarm $ms norestart >/dev/null
		tell b flock x EX
		tell c flock x EX
		sleep 0.02
		tell a flock x UN
		t=$(reply b 5)
		if [ "$t" = OK ]; then
			ask b flock x UN >/dev/null
			ms=$((ms > 6 ? ms - 3 : ms))
		else
			ms=$((ms + 4))
		fi
		[ "$t" = OK ] || [ "$t" = EINTR ] || fail "b: $t"
		echo "$t" >>"$W/crossed"
		assertEquals "c, after b said $t" OK "$(reply c 5)"
		ask c took >"$W/took"
		assertBetween "c's milliseconds" 0 900 "$(sed 's/OK //' "$W/took")"
		reply a >/dev/null
		ask c flock x UN >/dev/null
	done
	assertEquals "both ways were seen ($(sort "$W/crossed" | uniq -c | tr '\n' ' '))" 2 "$(sort -u "$W/crossed" | count)"
	assertNoKeys
	F=crowd/x
}

. /usr/share/shunit2/shunit2
