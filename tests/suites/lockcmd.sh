#!/bin/bash
# netflock lock beside flock(1), which is its model; and netflock fence.
. "$(dirname "$0")/../lib.sh"

export NETFLOCK_URL=$NF_URL NETFLOCK_PREFIX=$D NETFLOCK_TTL=$AGES SHELL=/bin/sh

L() { bare "$1" "$NETFLOCK" lock "${@:2}"; }                # L HOST WORDS...: netflock lock
Lspawn() { "$TESTS/host" "$1" "$NETFLOCK" lock "${@:2}" & PID=$!; }
fence() { bare "$1" "$NETFLOCK" fence "${@:2}"; }           # fence HOST WORDS...
commands_end() { pkill -KILL -P "$1"; kill -KILL "$1" 2>/dev/null; { wait "$1"; } 2>/dev/null; true; } # of a lock command, the model's too
steal() { R set "lock:$1" stolen px 60000 >/dev/null; }     # as if another host had been let in

# same WORDS...: the model and ours, on one host, end alike and print alike but for their own name; $RC
same() {
	local want got
	bare 1 flock "$@" >"$W/want" 2>"$W/want.err"; want=$?
	bare 1 "$NETFLOCK" lock "$@" >"$W/got" 2>"$W/got.err"; got=$?
	assertEquals "flock $* ($(cat "$W/want.err" "$W/got.err"))" "$want" "$got"
	assertEquals "what flock $* prints" "$(sed 's/took [0-9.]*/took/; s/^flock: /netflock: /' "$W/want")" "$(sed 's/took [0-9.]*/took/' "$W/got")"
	[ -s "$W/want.err" ] && W1=yes || W1=no
	[ -s "$W/got.err" ] && W2=yes || W2=no
	assertEquals "does flock $* complain" $W1 $W2
	RC=$got
}
is() { assertEquals "status of: ${*:2}" "$1" "$RC"; }       # the model's own status, lest two wrongs make a right

test_a_free_lock_runs_the_command_as_flock_does() {
	same "$F" true; is 0 plain
	same "$F" sh -c 'exit 7'; is 7 status
	same "$F" sh -c 'kill -KILL $$'; is 137 "killed command"
	same "$F" sh -c 'printf "[%s]" "$@"' sh 'a b' '' '*'
	same "$F" -c 'echo shell; exit 5'; is 5 -c
	same "$F" --command 'exit 6'; is 6 --command
	local o; for o in -s -x -e -n --shared --exclusive --nb --nonblock "-w 1" "--wait 0.5" "--timeout 2" -w0 -F --no-fork -o --close -u --unlock -sn; do
		# shellcheck disable=SC2086
		same $o "$F" sh -c 'exit 3'; is 3 "$o"
	done
	same --verbose "$F" true; is 0 --verbose
	# (What flock(1) prints before it becomes the command is lost in its buffer, unless that is a terminal's.)
	assertContains "$(L 1 --verbose -F "$F" true)" "executing true"
	assertContains "$(L 1 -v "$F" true)" "executing true"
	same "$D" echo folder; is 0 "a folder"
	same "$F" /nonexistent/x; is 69 "no such command"
	same "$F" /etc/passwd; is 69 "not executable"
}

test_wrong_usage_ends_as_with_flock() {
	same; is 64 "nothing"
	same foo; is 64 "no number"
	same -F -o "$F" true; is 64 "-F -o"
	same "$F" -c true more; is 64 "-c and more"
	same -w banana "$F" true; is 64 "-w banana"
	same -E 256 -n "$F" true; is 64 "-E 256"
	same -E x "$F" true; is 64 "-E x"
	same --nonsense "$F" true; is 64 --nonsense
	same -Z "$F" true; is 64 -Z
	same 999; is 65 "a descriptor that is not open"
	same "$D/no/such" true; is 66 "no such folder"
	assertEquals "an exit status" 64 "$(L 1 --outage-exit-code 300 "$F" true 2>/dev/null; echo $?)"
	assertEquals "a setting" 64 "$(L 1 --ttl banana "$F" true 2>/dev/null; echo $?)"
	L 1 -V >"$W/out"; assertEquals 0 $?; assertContains "$(cat "$W/out")" "$("$NETFLOCK" --version)"
}

test_a_file_that_cannot_be_made_ends_as_with_flock() {
	bare 1 sh -c "mkdir '$D/ro' && mount -t tmpfs -o ro none '$D/ro' || exit 9
		flock '$D/ro/f' true; a=\$?; '$NETFLOCK' lock '$D/ro/f' true; echo \$a \$?" >"$W/out" 2>/dev/null
	assertEquals "73 73" "$(cat "$W/out")"
	rm -rf "$HOSTS/1/ro"
}

# The model meets a holder on its own host, ours also one on another.
test_a_held_lock_ends_as_with_flock() {
	spawn 1 flock "$F" sleep 61; local p=$PID; wait_held "$F"
	local o want
	for o in "-n 1" "--nb 1" "--nonblock 1" "-s -n 1" "-x -n 1" "-nE 9 9" "-n -E 0 0" "-n --conflict-exit-code 42 42" "-w 0.1 1" "-w 0 1" \
		"--wait 0.1 -E 7 7" "--timeout 0.1 1" "--verbose -n 1" "--verbose -w 0.1 1" "-F -n 1" "-o -n 1"; do
		want=${o##* }; o=${o% *}
		# shellcheck disable=SC2086
		same $o "$F" echo in; is "$want" "$o"
		# shellcheck disable=SC2086
		L 2 $o "$F" echo in >"$W/out" 2>&1; assertEquals "on host 2: $o" "$want" $?
		assertEquals "$o: the command has not run" "" "$(grep -x in "$W/out" "$W/got" "$W/want")"
	done
	# It ends by itself, and not before its time.
	timed L 2 -w 0.5 "$F" true; assertEquals "-w 0.5" 1 $RC
	assertTrue "after $MS ms" "[ $MS -ge 500 ]"
	commands_end $p
	wait_free "$F"
	Lspawn 1 "$F" sleep 61; p=$PID; wait_held "$F"
	same -n "$F" true; is 1 "held by netflock lock"
}

test_it_waits_for_util_linux_on_another_host_and_the_other_way_round() {
	local h; for h in flock netflock; do
		if [ $h = flock ]; then spawn 1 flock "$F" sleep 61; else Lspawn 1 "$F" sleep 61; fi
		local p=$PID; wait_held "$F"
		rm -f "$W/shared/in"
		if [ $h = netflock ]; then spawn 2 flock "$F" touch "$W/shared/in"; else Lspawn 2 "$F" touch "$W/shared/in"; fi
		local w=$PID
		must '[ "$(R exists "netflock:{lock:$F}:queue")" = 1 ]' "$PATIENCE" "the waiter stands in the queue;"
		assertFalse "$h is ignored" '[ -e $W/shared/in ]'
		commands_end $p
		must '[ -e $W/shared/in ]' "$PATIENCE" "in after $h has gone;"
		wait $w; assertEquals 0 $?
		wait_free "$F"
	done
	assertNoKeys
}

test_shared_locks_hold_together() {
	Lspawn 1 -s "$F" sleep 61
	spawn 2 flock -s "$F" sleep 61
	must '[ "$(R zcard "lock:$F")" = 2 ]'
	L 3 -s -n "$F" true; assertEquals "a third reader" 0 $?
	L 3 -n "$F" true; assertEquals "a writer" 1 $?
}

# Also with a program of this host that has no library: the kernel's lock is taken.
# (asan: no: the same calls as in the test before)
test_it_takes_the_kernels_lock_too() {
	Lspawn 1 "$F" sleep 61; wait_held "$F"
	bare 1 flock -n "$F" true; assertEquals 1 $?
}

test_a_descriptor_of_the_shell() {
	local go; mkfifo "$W/go"
	bare 1 bash -c "exec 9>'$F'; '$NETFLOCK' lock 9 || exit 3; '$NETFLOCK' lock -n 9 || exit 4; echo locked; read -r _
		'$NETFLOCK' lock -u 9; echo unlocked; sleep 61" <"$W/go" >"$W/out" 2>&1 &
	exec {go}>"$W/go"
	must 'grep -q ^locked $W/out'
	assertEquals "held, though the locker is gone" 1 "$(busy "$F")"
	assertEquals 1 "$(L 2 -n "$F" true; echo $?)"
	echo >&$go
	must 'grep -q unlocked $W/out'
	assertEquals "unlocked" 0 "$(L 2 -n "$F" true; echo $?)"
	exec {go}>&-; rm -f "$W/go"
}

test_the_command_has_the_descriptor_unless_close_is_given() {
	assertEquals 1 "$(L 1 "$F" sh -c "find /proc/self/fd -lname '$F' | wc -l")"
	assertEquals 0 "$(L 1 -o "$F" sh -c "find /proc/self/fd -lname '$F' | wc -l")"
	# What the command leaves running has the lock on.
	L 1 "$F" sh -c 'sleep 61 >/dev/null 2>&1 & :'; assertEquals 0 $?
	assertEquals "the child has it" 1 "$(busy "$F")"
	L 1 -o "$D/y" sh -c 'sleep 61 >/dev/null 2>&1 & :'
	wait_free "$D/y"
	assertEquals "nobody has it, with -o" 0 "$(busy "$D/y")"
}

# (asan: no: the same calls as in the tests before)
test_one_after_the_other_without_waiting() {
	local i; for i in 1 2 3; do L 1 -n "$F" true; assertEquals "$i" 0 $?; L 2 -n "$F" true; assertEquals "$i" 0 $?; done
}

# flock(1) passes no signals on: it dies, and the command goes on under the lock.
# (asan: no: no code of ours runs)
test_a_signal_ends_it_as_it_ends_flock() {
	local h; for h in flock netflock; do
		if [ $h = flock ]; then spawn 1 flock "$F" sleep 61; else Lspawn 1 "$F" sleep 61; fi
		local p=$PID; wait_held "$F"
		must '[ -n "$(pgrep -P $p sleep)" ]'
		local c; c=$(pgrep -P $p)
		kill -TERM $p; { wait $p; RC=$?; } 2>/dev/null
		assertEquals $h 143 $RC
		assertTrue "$h: the command runs on" "kill -0 $c"
		assertEquals "$h: under the lock" 1 "$(busy "$F")"
		kill -KILL $c
		wait_free "$F"
	done
}

test_a_file_below_no_prefix_is_refused() {
	L 1 "$W/shared/f" touch "$W/shared/ran" 2>"$W/err"; assertEquals 78 $?
	assertContains "$(cat "$W/err")" "$W/shared/f is below no prefix"
	bare 1 NETFLOCK_PREFIX= "$NETFLOCK" lock "$F" touch "$W/shared/ran" 2>"$W/err"; assertEquals "no prefix" 78 $?
	bare 1 NETFLOCK_TTL=banana "$NETFLOCK" lock "$F" touch "$W/shared/ran" 2>"$W/err"; assertEquals "wrong setting" 78 $?
	bare 1 bash -c "exec 9>'$W/shared/g'; '$NETFLOCK' lock 9" 2>"$W/err"; assertEquals "a descriptor" 78 $?
	mkdir -p "$W/alone"; cp "$NETFLOCK" "$W/alone"
	bare 1 "$W/alone/netflock" lock "$F" touch "$W/shared/ran" 2>"$W/err"; assertEquals "no library" 78 $?
	assertFalse "the command has not run" '[ -e $W/shared/ran ]'
	rm -rf "$W/alone"
	bare 1 NETFLOCK_DISABLE=1 NETFLOCK_FENCE=5 "$NETFLOCK" lock "$W/shared/f" sh -c 'echo "in $NETFLOCK_FENCE"' >"$W/out"
	assertEquals "switched off it is flock(1)" "in " "$(cat "$W/out")"
}

test_the_settings_as_options() {
	bare 1 NETFLOCK_PREFIX= NETFLOCK_URL=unix:///no.sock "$NETFLOCK" lock --prefix "$D" --url "$NF_URL" -n "$F" --ttl 45s sh -c "
		redis-cli -s '$SOCK' pttl 'lock:$F'; tr '\0' ' ' <\"/proc/\$PPID/cmdline\"; env | grep NETFLOCK_TTL" >"$W/out" 2>"$W/err"
	status_is 0 $? "" "$W/err"
	assertBetween ttl 1 45000 "$(head -1 "$W/out")"
	assertContains "$(cat "$W/out")" NETFLOCK_TTL=45s
	assertNotContains "the url is not in the process list" "$(cat "$W/out")" "$NF_URL"
}

test_redis_away_is_told_from_held() {
	local u=unix:///no.sock
	bare 1 NETFLOCK_URL=$u "$NETFLOCK" lock -n "$F" touch "$W/shared/ran" 2>"$W/err"; assertEquals "-n" 75 $?
	bare 1 NETFLOCK_URL=$u "$NETFLOCK" lock -n -E 9 --outage-exit-code 12 "$F" touch "$W/shared/ran" 2>/dev/null; assertEquals "chosen" 12 $?
	bare 1 NETFLOCK_URL=$u "$NETFLOCK" lock -w 0.3 -E 9 "$F" touch "$W/shared/ran" 2>/dev/null; assertEquals "-w" 75 $?
	bare 1 NETFLOCK_URL=$u "$NETFLOCK" lock --on-outage error "$F" touch "$W/shared/ran" 2>/dev/null; assertEquals "error" 75 $?
	R config set requirepass secret >/dev/null
	L 1 "$F" touch "$W/shared/ran" 2>"$W/err"; assertEquals "refused" 75 $?
	redis-cli -s "$SOCK" -a secret --no-auth-warning config set requirepass '' >/dev/null
	assertFalse "the command has not run" '[ -e $W/shared/ran ]'
	NETFLOCK_FENCE=5 bare 1 NETFLOCK_URL=$u "$NETFLOCK" lock --on-outage local "$F" sh -c 'echo "in $NETFLOCK_FENCE"' >"$W/out" 2>/dev/null
	assertEquals "allowed to be local, without a token" "in " "$(cat "$W/out")"
}

test_the_command_keeps_the_preload_unless_it_cannot_load_it() {
	assertContains "$(L 1 "$F" sh -c 'echo $LD_PRELOAD')" libnetflock.so
	spawn 2 flock "$D/y" sleep 61; wait_held "$D/y"
	L 1 "$F" flock -n "$D/y" true; assertEquals "its own locks hold between hosts" 1 $?
	L 1 -n "$F" "$PROBES/foreign" "$D/z" >"$W/out" 2>&1; assertNotEquals "a program with another C library" 127 $?
	assertNotContains "$(cat "$W/out")" "symbol"
	NETFLOCK_ON_LOST=USR2 L 1 "$F" sh -c 'echo $NETFLOCK_ON_LOST' >"$W/out"; assertEquals USR2 "$(cat "$W/out")"
	L 1 "$F" sh -c 'echo "<$NETFLOCK_ON_LOST>"' >"$W/out"; assertEquals "<>" "$(cat "$W/out")"
}

# --- loss ------------------------------------------------------------------------------------------------------

# The cases of a test lose their locks side by side: case N has the file $D/N, its errors in $W/err.N.
# trapper NAME CODE: a command that notes SIGTERM and ends with CODE then; its child, which has no trap, is told too
trapper() { echo "sleep 61 & echo \$! >$W/shared/child.$1; trap ': >$W/shared/told.$1; exit $2' TERM; touch $W/shared/up.$1; wait"; }
loser() { NETFLOCK_TTL=1s Lspawn 1 "${@:2}" 2>"$W/err.$1"; LOSER[$1]=$PID; } # loser N WORDS...
up() { must "[ -e $W/shared/up.$1 ]"; }
lost() { # lost N: it ends for its loss, and not when its sleep is over; its status in $RC
	must "! kill -0 ${LOSER[$1]} 2>/dev/null" "$PATIENCE" "case $1 is told:"
	{ wait "${LOSER[$1]}"; RC=$?; } 2>/dev/null
}
declare -A LOSER

test_a_lost_lock_is_told_to_the_command_and_its_children() {
	local k n=0 modes='NETFLOCK_KEEPER=auto NETFLOCK_KEEPER=never NETFLOCK_KEEPER=always NETFLOCK_LOCAL=off'
	rm -f "$W/shared"/*
	for k in $modes; do
		n=$((n + 1))
		spawn_bare 1 $k NETFLOCK_TTL=1s "$NETFLOCK" lock "$D/$n" sh -c "$(trapper $n 9)" 2>"$W/err.$n"; LOSER[$n]=$PID
	done
	for n in 1 2 3 4; do up $n; steal "$D/$n"; done
	n=0
	for k in $modes; do
		n=$((n + 1))
		lost $n; assertEquals "$k: its own status" 9 $RC
		assertTrue "$k: the command is told" "[ -e $W/shared/told.$n ]"
		assertContains "$(cat "$W/err.$n")" "the lock on $D/$n was lost"
		must "! kill -0 $(cat "$W/shared/child.$n") 2>/dev/null" "$PATIENCE" "$k: the child too;"
	done
}

test_the_exit_status_after_a_loss() {
	local n
	rm -f "$W/shared"/*
	loser 1 "$D/1" sh -c "$(trapper 1 0)"
	loser 2 "$D/2" sh -c "touch $W/shared/up.2; exec sleep 61"
	loser 3 --on-lost kill "$D/3" sh -c "$(trapper 3 0)"
	loser 4 --on-lost USR1 "$D/4" sh -c "trap 'exit 8' USR1; touch $W/shared/up.4; while :; do sleep 0.05; done"
	# With "log" the command is left alone.
	loser 5 --on-lost log "$D/5" sh -c "touch $W/shared/up.5; until [ -e $W/shared/go ]; do sleep 0.05; done; exit 0"
	for n in 1 2 3 4 5; do up $n; steal "$D/$n"; done
	lost 1; assertEquals "it ended with 0" 76 $RC
	lost 2; assertEquals "SIGTERM ended it" 143 $RC
	lost 3; assertEquals "kill" 137 $RC
	lost 4; assertEquals "USR1" 8 $RC
	must "grep -q 'was lost' $W/err.5"
	assertTrue "it runs on" "kill -0 ${LOSER[5]}"
	touch "$W/shared/go"
	lost 5; assertEquals "log" 0 $RC
}

# Its own user is switched off: Redis goes on for the others, and lets the next one in as soon as the lease is over. The lease
# is long, since the margin that the command is told before its end is a part of it; and on a busy machine the teller comes
# first, where we may say so.
# (asan: no: waits for the end of a lease, and a loss is told in the tests above)
test_the_command_is_told_before_redis_lets_anybody_else_in() {
	local first=''
	! chrt -f 1 true 2>/dev/null || first='chrt -f 1'
	rm -f "$W/shared"/*
	R acl setuser app on nopass '~*' '&*' +@all >/dev/null
	NETFLOCK_TTL=1s Lspawn 1 "$D/y" sleep 61; local other=$PID
	# shellcheck disable=SC2086 # words
	spawn_bare 1 NETFLOCK_URL="redis://app:x@127.0.0.1:$PORT" NETFLOCK_TTL=6s $first "$NETFLOCK" lock "$F" \
		sh -c "trap 'echo told >>$W/shared/log; exit 9' TERM; touch $W/shared/up.1; sleep 61 & wait" 2>"$W/err"; local p=$PID
	up 1
	spawn 2 flock "$F" sh -c "echo in >>$W/shared/log"
	must '[ "$(R exists "netflock:{lock:$F}:queue")" = 1 ]'
	R acl setuser app off >/dev/null; R client kill user app >/dev/null
	stays "held '$D/y' && kill -0 $other" 2000 "one that reaches Redis is renewed:"
	must "grep -qs told $W/shared/log"
	{ wait $p; RC=$?; } 2>/dev/null; assertEquals 9 $RC
	must "grep -qs in $W/shared/log"
	assertEquals "told in" "$(paste -sd' ' "$W/shared/log")"
	R acl deluser app >/dev/null
}

test_a_command_that_unlocks_is_left_alone() {
	rm -f "$W/shared"/*
	NETFLOCK_TTL=1s Lspawn 1 "$F" sh -c "flock -u 3; touch $W/shared/up.1; until [ -e $W/shared/go ]; do sleep 0.05; done; exit 4" 3>&- 2>"$W/err"; local p=$PID
	up 1
	spawn 2 flock "$F" sleep 61; wait_held "$F"
	stays "kill -0 $p" 1300
	touch "$W/shared/go"; wait $p; status_is 4 $? "its own status" "$W/err"
	assertEquals "" "$(cat "$W/err")"
}

# --- the fencing token -----------------------------------------------------------------------------------------

test_the_token_grows_and_is_the_same_wherever_it_is_asked_for() {
	local a b c
	a=$(L 1 "$F" sh -c 'echo $NETFLOCK_FENCE'); b=$(L 2 "$F" sh -c 'echo $NETFLOCK_FENCE'); c=$(L 1 -F "$F" sh -c 'echo $NETFLOCK_FENCE')
	assertTrue "$a $b $c" "[ '$a' -gt 0 ] && [ '$b' -gt '$a' ] && [ '$c' -gt '$b' ]"
	L 1 "$F" sh -c "echo \$NETFLOCK_FENCE; '$NETFLOCK' fence '$F'; '$NETFLOCK' fence 3; redis-cli -s '$SOCK' get 'netflock:{lock:$F}:fence'" 3>&- >"$W/out" 2>&1
	assertEquals "$(cat "$W/out")" 1 "$(sort -u "$W/out" | count)"
	bare 1 bash -c "exec 9>'$F'; LD_PRELOAD=$NF_PRELOAD flock 9; '$NETFLOCK' fence '$F'; '$NETFLOCK' fence 9" >"$W/out" 2>&1
	assertEquals "$(cat "$W/out")" 1 "$(sort -u "$W/out" | count)"
	assertEquals 2 "$(count <"$W/out")"
}

test_fence_is_for_this_hosts_own_live_lock_alone() {
	fence 1 "$F" >"$W/out" 2>&1; assertEquals "no such file" 1 $?
	bare 1 touch "$F"
	fence 1 "$F" >"$W/out" 2>&1; assertEquals "not locked" 1 $?
	spawn 2 flock "$F" sleep 61; local p=$PID; wait_held "$F"
	fence 1 "$F" >"$W/out" 2>&1; assertEquals "another host's" 1 $?
	assertEquals "a number is printed for nobody else's lock" "" "$(grep '^[0-9]' "$W/out")"
	fence 2 "$F" >"$W/out" 2>&1; assertEquals "its own" 0 $?
	# A reader without the library has the kernel's lock: then it is Redis who knows.
	spawn_bare 1 flock "$F" sleep 61
	must '[ "$(bare 1 flock -n "$F" true; echo $?)" = 1 ]'
	fence 1 "$F" >"$W/out" 2>"$W/err"; assertEquals "the kernel's alone" 1 $?
	assertContains "$(cat "$W/err")" "held by host2"
	# What a killed holder has left in Redis is no lock.
	PROBE=api actor a 3
	local n; n=$(ask a open "$D/killed"); assertEquals OK "$(ask a flock "$n" ex)"
	fence 3 "$D/killed" >"$W/out" 2>&1; assertEquals "held" 0 $?
	kill -KILL "${ACT_PID[a]}"; { wait "${ACT_PID[a]}"; } 2>/dev/null
	assertTrue "its token is there" "held '$D/killed'"
	fence 3 "$D/killed" >"$W/out" 2>&1; assertEquals "killed" 1 $?
	commands_end $p
}

test_the_token_of_a_shared_lock_lies_between_those_of_the_writers() {
	local before reader after
	before=$(L 1 "$F" sh -c 'echo $NETFLOCK_FENCE')
	spawn 2 flock -s "$F" sleep 61; local p=$PID
	must '[ "$(R zcard "lock:$F")" = 1 ]'
	reader=$(fence 2 "$F")
	fence 1 "$F" 2>/dev/null; assertEquals "a host that does not read" 1 $?
	commands_end $p; wait_free "$F"
	after=$(L 1 "$F" sh -c 'echo $NETFLOCK_FENCE')
	assertTrue "$before $reader $after" "[ '$reader' -gt '$before' ] && [ '$after' -gt '$reader' ]"
}

test_fence_and_its_exit_status() {
	fence 1 >"$W/out" 2>&1; assertEquals "nothing" 2 $?
	fence 1 a b >"$W/out" 2>&1; assertEquals "two" 2 $?
	fence 1 --nonsense a >"$W/out" 2>&1; assertEquals "an option" 2 $?
	fence 1 999 >"$W/out" 2>&1; assertEquals "not open" 2 $?
	fence 1 /etc/passwd >"$W/out" 2>&1; assertEquals "below no prefix" 2 $?
	assertContains "$(cat "$W/out")" "below no prefix"
	bare 1 NETFLOCK_TTL=banana "$NETFLOCK" fence "$F" >"$W/out" 2>&1; assertEquals "a wrong setting" 2 $?
	fence 1 --help >"$W/out"; assertEquals 0 $?
	bare 1 bash -c "exec 9>'$F'; '$NETFLOCK' fence 9" >"$W/out" 2>&1; assertEquals "a descriptor without a lock" 1 $?
	spawn 1 flock "$F" sleep 61; wait_held "$F"
	fence 1 --url unix:///no.sock "$F" >"$W/out" 2>&1; assertEquals "Redis away" 3 $?
	R config set requirepass secret >/dev/null
	fence 1 "$F" >"$W/out" 2>&1; assertEquals "Redis refuses" 3 $?
	redis-cli -s "$SOCK" -a secret --no-auth-warning config set requirepass '' >/dev/null
	fence 1 --host other "$F" >"$W/out" 2>&1; assertEquals "another identity" 1 $?
	fence 1 "$F" >/dev/full 2>&1; assertNotEquals "output that cannot be written" 0 $?
}

# (asan: no: a script, and calls that other tests make)
test_the_example_refuses_a_stale_holder() {
	need sqlite3 || return 0
	local ex=$TOP/docs/examples/fencing.sh db=$W/shared/balance.db
	L 1 "$F" "$ex" "$db" 10; assertEquals 0 $?
	L 2 "$F" "$ex" "$db" 5; assertEquals 0 $?
	L 1 "$F" sh -c "'$ex' '$db' 1 && '$ex' '$db' 1"; assertEquals "twice in one tenure" 0 $?
	assertEquals 17 "$(sqlite3 "$db" 'SELECT balance FROM account')"
	# Host 1 sleeps until its lock is lost and host 2 has written; then it wakes up and writes.
	rm -f "$W/shared/up" "$W/shared/go"
	Lspawn 1 --on-lost log "$F" sh -c "touch $W/shared/up; until [ -e $W/shared/go ]; do sleep 0.02; done; '$ex' '$db' 1000" 2>"$W/err"; local p=$PID
	must '[ -e $W/shared/up ]'
	R del "lock:$F" >/dev/null; R incr "netflock:{lock:$F}:fence" >/dev/null
	L 2 "$F" "$ex" "$db" 3; assertEquals 0 $?
	touch "$W/shared/go"; wait $p; assertEquals "the stale holder" 1 $?
	assertContains "$(cat "$W/err")" refused
	assertEquals "its write is not there" 20 "$(sqlite3 "$db" 'SELECT balance FROM account')"
}

. /usr/share/shunit2/shunit2
