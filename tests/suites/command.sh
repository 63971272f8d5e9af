#!/bin/bash
# The netflock command: run and status.
. "$(dirname "$0")/../lib.sh"

nf() { NETFLOCK_URL=$NF_URL NETFLOCK_PREFIX=$D "$NETFLOCK" "$@"; }
run1() { bare "$1" "$NETFLOCK" run --prefix "$D" --url "$NF_URL" --ttl 45s -- "${@:2}"; }
j() { json "$W/json" "$1"; }
suite_setup() { json_start; }
# The entries, whatever the outermost form is: a list, or an object with one list in it.
L='(d if isinstance(d, list) else next(v for v in d.values() if isinstance(v, list)))'

test_run_protects_the_command() {
	run1 1 flock "$F" sleep 30 &
	wait_held "$F"
	assertEquals 1 "$(busy "$F")"
	run1 2 flock -n "$F" true; assertEquals 1 $?
	run1 2 flock -n "$D/y" true; assertEquals 0 $?
	assertBetween "the ttl" 30001 45000 "$(R pttl "lock:$F")"
}

test_run_passes_arguments_status_and_environment() {
	run1 1 sh -c 'exit 42'; assertEquals 42 $?
	assertEquals '[a b][][*]' "$(run1 1 sh -c 'printf "[%s]" "$@"' sh 'a b' '' '*')"
	bare 1 LD_PRELOAD=/nonexistent/mine.so "$NETFLOCK" run --prefix "$D" --url "$NF_URL" -- sh -c 'echo "$LD_PRELOAD"' >"$W/out" 2>/dev/null
	assertContains "another preload is kept" "$(cat "$W/out")" /nonexistent/mine.so
	assertContains "$(cat "$W/out")" libnetflock.so
	run1 1 /nonexistent/program 2>"$W/err"; assertEquals "not found" 127 $?
	assertContains "$(cat "$W/err")" /nonexistent/program
	run1 1 /etc/passwd 2>/dev/null; assertEquals "not executable" 126 $?
}

test_run_is_replaced_by_the_command_so_that_signals_are_its_own() {
	spawn_bare 1 "$NETFLOCK" run --prefix "$D" --url "$NF_URL" -- sleep 30; local p=$PID
	must '[ "$(cat /proc/$p/comm)" = sleep ]'
	kill -USR1 $p; { wait $p; RC=$?; } 2>/dev/null
	assertEquals $((128 + 10)) $RC
}

test_run_without_options_takes_the_configuration_from_the_environment() {
	bare 1 NETFLOCK_PREFIX="$D" NETFLOCK_URL="$NF_URL" "$NETFLOCK" run -- flock "$F" sleep 30 &
	wait_held "$F"
	assertEquals 1 "$(busy "$F")"
}

test_run_refuses_a_static_program() {
	run1 1 "$PROBES/static" "$F" >"$W/out" 2>"$W/err"
	assertNotEquals 0 $?
	assertEquals "it must not run" "" "$(cat "$W/out")"
	assertTrue "$(cat "$W/err")" 'grep -qi static "$W/err"'
	assertContains "$(cat "$W/err")" "$PROBES/static"
}

test_run_refuses_a_program_with_another_c_library() {
	run1 1 "$PROBES/foreign" "$F" >"$W/out" 2>"$W/err"
	assertNotEquals 0 $?
	assertEquals "it must not run" "" "$(cat "$W/out")"
	assertContains "$(cat "$W/err")" "$PROBES/foreign"
}

test_run_refuses_a_set_uid_program() {
	# As nobody: for root a set-uid-root program is an ordinary one.
	install -m 4755 /usr/bin/flock "$W/suidflock"
	bare 1 setpriv --reuid=65534 --regid=65534 --clear-groups "$NETFLOCK" run --prefix "$D" --url "$NF_URL" -- \
		"$W/suidflock" -n "$W/shared" echo in >"$W/out" 2>"$W/err"
	assertNotEquals 0 $?
	assertEquals "" "$(cat "$W/out")"
	assertTrue "$(cat "$W/err")" 'grep -qi -e "set-uid" -e setuid -e "set-user" "$W/err"'
}

test_run_runs_scripts() {
	printf '#!/bin/sh\necho script "$1"\n' >"$W/script"; chmod +x "$W/script"
	assertEquals "script a" "$(run1 1 "$W/script" a)"
	printf '#!%s\n' "$PROBES/static" >"$W/sscript"; chmod +x "$W/sscript"
	run1 1 "$W/sscript" >"$W/out" 2>&1
	assertNotEquals "a script for a static interpreter is refused" 0 $?
}

test_run_refuses_a_wrong_option_or_value() {
	"$NETFLOCK" run --prefix relative --url "$NF_URL" -- true 2>"$W/err"; assertNotEquals 0 $?
	assertContains "$(cat "$W/err")" relative
	"$NETFLOCK" run --ttl banana --prefix "$D" --url "$NF_URL" -- true 2>"$W/err"; assertNotEquals 0 $?
	assertContains "$(cat "$W/err")" banana
	"$NETFLOCK" run --nonsense -- true 2>"$W/err"; assertNotEquals 0 $?
	assertContains "$(cat "$W/err")" nonsense
	"$NETFLOCK" run 2>/dev/null; assertNotEquals "no command" 0 $?
	"$NETFLOCK" nonsense 2>/dev/null; assertNotEquals 0 $?
}

test_help_names_what_there_is() {
	"$NETFLOCK" --help >"$W/out"; assertEquals 0 $?
	local w; for w in run status --prefix --url --ttl --json; do assertContains "$(cat "$W/out")" "$w"; done
}

test_status_with_nothing_held() {
	nf status >"$W/out"; assertEquals 0 $?
	nf status --json >"$W/json"; assertEquals 0 $?
	assertEquals 0 "$(j "len($L)")"
}

test_status_says_who_holds_and_who_waits() {
	spawn 1 flock "$F" sleep 31; local p=$PID
	wait_held "$F"
	spawn 2 flock "$F" true; local w=$PID
	must '[ "$(R zcard "netflock:{lock:$F}:queue")" = 1 ]'
	nf status --json >"$W/json"; assertEquals 0 $?
	nf status >"$W/out"; assertEquals 0 $?
	local x; for x in "$F" host1 host2 "$p" "$w" flock exclusive; do
		assertContains "text" "$(cat "$W/out")" "$x"
	done
	assertEquals "entries" 1 "$(j "len($L)")"
	assertContains "$(j "${L}[0].keys()")" key
	assertEquals "lock:$F" "$(j "${L}[0]['key']")"
	assertTrue "mode: $(cat "$W/json")" '[ "$(j "${L}[0][\"mode\"]")" = exclusive ]'
	# Who, since when, for how long, and under which fencing token.
	local h="${L}[0]['holders'][0]"
	assertEquals "host1 $p flock" "$(j "'%s %s %s' % (${h}['host'], ${h}['pid'], ${h}['command'])")"
	assertBetween "age, ms" 0 $(($(now_ms) - TEST_T0)) "$(j "${h}['age_ms']")"
	assertBetween "time left, ms" 1 $((${AGES%s} * 1000)) "$(j "${h}['left_ms']")"
	assertEquals "$(R get "netflock:{lock:$F}:fence")" "$(j "${h}['fence']")"
	assertEquals "host2 $w" "$(j "'%s %s' % (${L}[0]['waiters'][0]['host'], ${L}[0]['waiters'][0]['pid'])")"
	assertTrue "$(cat "$W/json")" "grep -q '\"pid\": *$p\\b' $W/json"
	kill $w
}

test_status_of_shared_locks_shows_every_holder() {
	spawn 1 flock -s "$F" sleep 31
	spawn 2 flock -s "$F" sleep 31
	must '[ "$(R zcard "lock:$F")" = 2 ]'
	nf status --json >"$W/json"
	assertContains "$(cat "$W/json")" host1
	assertContains "$(cat "$W/json")" host2
	assertTrue "$(cat "$W/json")" 'grep -q "\"shared\"" $W/json'
	nf status >"$W/out"
	assertTrue 'grep -q host1 $W/out && grep -q host2 $W/out'
}

test_status_of_a_path_shows_that_one_alone() {
	spawn 1 flock "$F" sleep 31; wait_held "$F"
	spawn 1 flock "$D/y" sleep 31; wait_held "$D/y"
	nf status --json "$D/y" >"$W/json"
	assertEquals 1 "$(j "len($L)")"
	assertEquals "lock:$D/y" "$(j "${L}[0]['key']")"
	nf status "$D/y" "$F" >"$W/out"
	assertContains "$(cat "$W/out")" "$F"
}

test_status_of_odd_names_and_of_plain_clients() {
	local n=$'new\nline "quote" \\ {b}'
	spawn 1 flock "$D/$n" sleep 31; wait_held "$D/$n"
	R set "lock:$D/plain" 'a plain "token"' px 600000 >/dev/null
	nf status --json >"$W/json"
	assertEquals 2 "$(j "len($L)")"
	assertContains "$(j "[e['key'] for e in $L if 'plain' not in e['key']][0]")" "$n"
	nf status >"$W/out"; assertEquals 0 $?
	assertEquals "a line break in a name must not break the table" 0 "$(grep -c '^line' "$W/out")"
}

test_status_without_redis_is_an_error() {
	NETFLOCK_URL=unix:///nonexistent.sock NETFLOCK_PREFIX=$D "$NETFLOCK" status >"$W/out" 2>"$W/err"
	assertNotEquals 0 $?
	assertContains "$(cat "$W/err")" nonexistent
}

test_status_works_with_the_preload_too() {
	spawn 1 flock "$F" sleep 31; wait_held "$F"
	H 1 "$NETFLOCK" status >"$W/out"; assertEquals 0 $?
	assertContains "$(cat "$W/out")" "$F"
}

. /usr/share/shunit2/shunit2
