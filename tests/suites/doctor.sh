#!/bin/bash
# netflock doctor and netflock run --strict: real programs, mounts and servers.
. "$(dirname "$0")/../lib.sh"

export NETFLOCK_URL=$NF_URL NETFLOCK_PREFIX=$D

# doctor WORDS...: $RC, and the findings in $W/json.
doctor() { timeout -k 5 "$PATIENCE" "$NETFLOCK" doctor --json "$@" >"$W/json" 2>"$W/err"; RC=$?; }
# level ID: the worst of that id; "-" if there is none. text ID: what the findings of that id say.
level() { q "['-', 'ok', 'warn', 'fail'][max((['ok', 'warn', 'fail'].index(x['level']) for x in d if x['id'] == '$1'), default=-1) + 1]"; }
text() { q "' | '.join(x['text'] + '; ' + (x['remedy'] or '') for x in d if x['id'] == '$1')"; }
q() { json "$W/json" "$1"; }
# finds LEVEL ID [TEXT]
finds() {
	assertEquals "$2 ($(cat "$W/json" "$W/err"))" "$1" "$(level "$2")"
	[ -z "${3:-}" ] || assertContains "$2" "$(text "$2")" "$3"
}
strict() { "$NETFLOCK" run --strict "$@" >"$W/out" 2>"$W/err"; RC=$?; }
refused() { # TEXT: by --strict, on one line
	assertEquals "refused ($(cat "$W/err"))" 125 "$RC"
	assertEquals "nothing ran" "" "$(cat "$W/out")"
	assertEquals "one line ($(cat "$W/err"))" 1 "$(wc -l <"$W/err")"
	assertContains "$(cat "$W/err")" "$1"
}
as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }

suite_setup() {
	json_start
	chmod 777 "$D"
	cat >"$W/t.c" <<'C'
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) { (void)argv; if (argc > 1) pause(); puts("ran"); return 0; }
C
	cat >"$W/go.S" <<'S'
	.section .note.go.buildid, "a", @note
	.long 4, 4, 4
	.ascii "Go\0\0"
	.ascii "abcd"
	.section .note.GNU-stack, "", @progbits
S
	gcc -static -o "$W/static" "$W/t.c" && gcc -o "$W/plain" "$W/t.c" && gcc -o "$W/go" "$W/t.c" "$W/go.S"
}

test_all_is_well() {
	doctor "$F" -- flock "$F" true
	assertEquals "$(cat "$W/json" "$W/err")" 0 $RC
	finds ok config.prefix "$D"
	finds ok library "$SO"
	finds ok keeper netflock-keeper
	finds ok redis.reachable "$SOCK"
	finds ok redis.version "Redis $(R info server | sed -n 's/\r//; s/^redis_version://p')"
	finds ok redis.role; finds ok redis.persistence; finds ok redis.eviction noeviction
	finds ok redis.replicas "no replicas"; finds ok redis.acl; finds ok redis.clock
	assertNotEquals "latency" - "$(level redis.latency)"
	finds ok path.key "lock:$F"
	finds ok path.filesystem "$(stat -f -c %T "$D" | sed 's/ext2.ext3/ext/')"
	finds ok path.flock; finds ok path.record
	finds ok command.reached flock
	assertEquals "each has what a program reads" "['id', 'level', 'remedy', 'subject', 'text']" "$(q 'sorted({k for x in d for k in x})')"
	assertNoKeys
}

test_a_line_for_each_finding() {
	"$NETFLOCK" doctor "$F" /usr >"$W/out"; assertEquals 1 $?
	assertEquals "aligned" 1 "$(grep -v '^netflock' "$W/out" | sed -E 's/^(ok  |warn|fail)  [a-z.]+ +/&|/' | awk -F'|' '{ print length($1) }' | sort -u | wc -l)"
	assertContains "$(cat "$W/out")" "fail  path.key"
	assertNotContains "no colours in a file" "$(cat "$W/out")" $'\033'
	script -qec "$NETFLOCK doctor" /dev/null >"$W/tty"
	assertContains "colours on a terminal" "$(cat "$W/tty")" $'\033[32mok'
	NO_COLOR=1 script -qec "$NETFLOCK doctor" /dev/null >"$W/tty"
	assertNotContains "NO_COLOR" "$(cat "$W/tty")" $'\033'
}

test_programs_that_the_library_does_not_reach() {
	doctor -- "$W/plain"; assertEquals 0 $RC; finds ok command.reached
	doctor -- "$W/static"; assertEquals 1 $RC; finds fail command.static "$W/static"
	doctor -- "$W/go"; assertEquals 1 $RC; finds fail command.go "$W/go"
	doctor -- "$PROBES/foreign"; assertEquals 1 $RC; finds fail command.libc musl
	printf '#!%s\n' "$W/static" >"$W/script"; chmod +x "$W/script"
	doctor -- "$W/script"; assertEquals 1 $RC; finds fail command.static "$W/static"
	printf '#!/bin/sh\n' >"$W/script"
	doctor -- "$W/script"; assertEquals 0 $RC; finds ok command.reached
	printf '#!/usr/bin/env -S -i sh\n' >"$W/script"
	doctor -- "$W/script"; assertEquals 1 $RC; finds fail command.environment
	printf '\177ELF\001\001\001\0\0\0\0\0\0\0\0\0\002\0\003\0\001\0\0\0' >"$W/elf32"; chmod +x "$W/elf32"
	doctor -- "$W/elf32"; assertEquals 1 $RC; finds fail command.machine "class 32"
	doctor -- "$W/none"; assertEquals 1 $RC; finds fail command.found "not found"
}

test_set_uid_set_gid_and_capabilities() {
	install -m 4755 "$W/plain" "$W/suid"; install -m 2755 "$W/plain" "$W/sgid"; install -m 755 "$W/plain" "$W/cap"
	setcap cap_net_raw+ep "$W/cap"
	local p; for p in suid sgid cap; do
		as_nobody "$NETFLOCK" doctor --json -- "$W/$p" >"$W/json" 2>"$W/err"; assertEquals "$p" 1 $?
		finds fail command.privileged "$W/$p"
	done
	doctor -- "$W/suid"; assertEquals "root's own" 0 $RC
}

test_what_takes_the_preload_away() {
	doctor -- env -i flock; assertEquals 1 $RC; finds fail command.environment
	doctor -- env -u LD_PRELOAD flock; assertEquals 1 $RC; finds fail command.environment
	doctor -- env A=b flock; assertEquals 0 $RC; finds ok command.reached /flock
	doctor -- env A=b "$W/static"; assertEquals 1 $RC; finds fail command.static
	doctor -- true; finds warn preload "LD_PRELOAD=$SO"
	LD_PRELOAD=$NF_PRELOAD doctor -- true; finds ok preload "$SO"
	env -u NETFLOCK_PREFIX "$NETFLOCK" doctor --json --prefix "$D" >"$W/json"; assertEquals 0 $?
	finds ok preload "netflock run"
	LD_PRELOAD=/nonexistent/libnetflock.so doctor 2>/dev/null; assertEquals 1 $RC; finds fail preload /nonexistent
}

test_a_process_that_runs() {
	actor a 1 NETFLOCK_URL="redis://u:secret@127.0.0.1:1/0" NETFLOCK_PASSWORD_FILE=secret NETFLOCK_TYPO=secret
	doctor --pid "${ACT_PID[a]}"; assertEquals "$(cat "$W/json")" 0 $RC
	finds ok pid.library "$SO"
	finds ok pid.environment "NETFLOCK_PREFIX=$D"
	assertContains "$(text pid.environment)" "NETFLOCK_TTL=$AGES"
	assertNotContains "no password" "$(cat "$W/json")" secret
	spawn_bare 1 -u LD_PRELOAD -u NETFLOCK_PREFIX sleep 61
	must '[ "$(cat /proc/$PID/comm)" = sleep ]'
	doctor --pid $PID; assertEquals 1 $RC
	finds fail pid.library "without LD_PRELOAD"; finds fail pid.prefix
	spawn_bare 1 LD_PRELOAD="$SO" "$W/static" wait
	must '[ "$(cat /proc/$PID/comm)" = static ]'
	doctor --pid $PID; assertEquals 1 $RC
	finds fail pid.library "though LD_PRELOAD names it"; finds fail command.static
	spawn 1 NETFLOCK_DISABLE=1 sleep 61
	must '[ "$(cat /proc/$PID/comm)" = sleep ]'
	doctor --pid $PID; assertEquals 1 $RC; finds fail pid.disabled
	doctor --pid 999999999; assertEquals 1 $RC; finds fail pid.maps "there is none"
	doctor --pid nonsense; assertEquals 2 $RC
}

test_wrong_settings() {
	NETFLOCK_TTL=banana NETFLOCK_ON_LOST=SIGNOPE doctor; assertEquals 1 $RC
	finds fail config.value banana; finds fail config.value SIGNOPE
	assertEquals "nothing beside the findings" "" "$(cat "$W/err")"
	NETFLOCK_TTL=banana NETFLOCK_LOG=$W/log doctor; finds fail config.value banana
	assertFalse "the log is left alone" "[ -e '$W/log' ]"
	NETFLOCK_LOG=nonsense doctor; finds fail config.value nonsense
	NETFLOCK_URL=redis://u:secret@nonsense:x doctor
	assertNotContains "no password" "$(cat "$W/json" "$W/err")" secret
	NETFLOCK_PREFIX=relative doctor; assertEquals 1 $RC; finds fail config.value relative
	NETFLOCK_PREFIX='' doctor; assertEquals 1 $RC; finds fail config.prefix "no prefix"
	NETFLOCK_DISABLE=1 doctor; assertEquals 1 $RC; finds fail config.disabled
	NETFLOCK_ON_OUTAGE=local doctor; assertEquals 0 $RC; finds warn config.outage
	NETFLOCK_KEEPER=never doctor; assertEquals 0 $RC; finds warn keeper
	printf 'prefix = %s\nttl = banana\n' "$D" >"$W/conf"
	NETFLOCK_PREFIX='' NETFLOCK_CONF=$W/conf doctor; assertEquals 1 $RC
	finds fail config.value "$W/conf:2"; finds ok config.prefix "$D"; finds ok config.source "$W/conf"
	mkdir "$W/folder"; chmod 777 "$W/folder"
	NETFLOCK_LOCAL=$W/folder doctor; assertEquals 1 $RC; finds fail config.local "$W/folder"
	chmod 700 "$W/folder"
	NETFLOCK_LOCAL=$W/folder doctor "$F"; assertEquals 0 $RC; finds ok config.local; finds ok path.flock "not asked"
}

test_library_and_keeper_that_are_not_there() {
	mkdir "$W/bin"; cp "$NETFLOCK" "$W/bin/"
	"$W/bin/netflock" doctor --json >"$W/json"; assertEquals 1 $?
	finds fail library "$W/bin"
	cp "$SO" "$W/bin/"
	"$W/bin/netflock" doctor --json >"$W/json"; assertEquals 1 $?
	finds fail keeper "$W/bin/netflock-keeper"
}

# (asan: no: the same calls as in the tests above)
test_file_systems() {
	mkdir "$W/tmpfs" "$W/low" "$W/up" "$W/work" "$W/over"
	# In a mount namespace of its own: nothing to be undone.
	unshare -m --propagation private sh -c '
		mount -t tmpfs tmpfs "$1/tmpfs" && mkdir "$1/tmpfs/up" "$1/tmpfs/work" &&
			mount -t overlay overlay -o "lowerdir=$1/low,upperdir=$1/tmpfs/up,workdir=$1/tmpfs/work" "$1/over" || exit 99
		timeout 60 "$2" doctor --json --prefix "$1" "$1/tmpfs/x" "$1/over/x" >"$1/json"' sh "$W" "$NETFLOCK" 2>"$W/err"
	assertEquals "$(cat "$W/err" "$W/json")" 0 $?
	assertEquals "is on tmpfs ($W/tmpfs)" "$(text path.filesystem | grep -o "is on tmpfs ($W/tmpfs)")"
	assertContains "$(text path.filesystem)" "is on overlay ($W/over)"
	finds ok path.flock works
	assertEquals "for each" 2 "$(q "sum(x['id'] == 'path.flock' for x in d)")"
}

test_paths() {
	: >"$F"; ln "$F" "$D/second"
	doctor "$F"; assertEquals 0 $RC; finds warn path.links "2 names"
	doctor /usr/x; assertEquals 1 $RC; finds fail path.key "below no prefix"
	doctor "$D/none/x"; assertEquals 1 $RC; finds fail path.key "No such file"
	NETFLOCK_PREFIX=$D=app doctor "$D/y"; assertEquals 0 $RC; finds ok path.key lock:app/y
	ln -s "$D/y" "$W/link"
	doctor "$W/link"; finds ok path.key "lock:$D/y"
	doctor /proc; finds ok path.flock "not tried"
	flock "$F" true; doctor "$F"; finds ok path.flock works
	rm "$F" "$D/second"
}

test_redis_is_away() {
	NETFLOCK_URL=unix:///nonexistent.sock doctor; assertEquals 3 $RC
	finds fail redis.reachable /nonexistent.sock
	R config set requirepass secret >/dev/null
	doctor; assertEquals "refused" 3 $RC
	redis-cli -s "$SOCK" -a secret --no-auth-warning config set requirepass '' >/dev/null
}

test_a_server_that_evicts() {
	R config set maxmemory-policy allkeys-random >/dev/null
	doctor; assertEquals 0 $RC; finds warn redis.eviction allkeys-random
	R config set maxmemory 100mb >/dev/null
	doctor; assertEquals 1 $RC; finds fail redis.eviction noeviction
	strict -- "$W/plain"; refused allkeys-random
	R config set maxmemory 0 >/dev/null; R config set maxmemory-policy noeviction >/dev/null
}

test_a_replica_and_its_master() {
	local replica=$W/replica.sock pid
	R config set repl-diskless-sync-delay 0 >/dev/null
	redis-server --port 0 --unixsocket "$replica" --save '' --dir "$W" --replicaof 127.0.0.1 "$PORT" >"$W/replica.log" 2>&1 &
	pid=$!
	must 'redis-cli -s "'"$replica"'" info replication 2>/dev/null | grep -q master_link_status:up'
	NETFLOCK_URL=unix://$replica doctor; assertEquals 1 $RC; finds fail redis.role "must name the master"
	doctor; assertEquals 0 $RC; finds ok redis.replicas "1 replicas"
	NETFLOCK_URL=unix://$replica strict -- "$W/plain"; refused replica
	kill -KILL $pid; { wait $pid; } 2>/dev/null || true
}

# The rights that netflock(7) names are enough; one less is found.
test_the_rights_of_a_user() {
	echo pw >"$W/pw"
	local rights; rights=$(sed -n '/^ACL SETUSER/,/^\.fi/p' "$TOP/docs/netflock.7" | sed '1s/.*>PASSWORD//; /^\.fi/d; s/\\e$//' | tr '\n' ' ')+info
	local url=redis://app@127.0.0.1:$PORT
	set -f
	# shellcheck disable=SC2086 # the rights are words
	{ R acl setuser app reset on '>pw' $rights >/dev/null
	NETFLOCK_URL=$url NETFLOCK_PASSWORD_FILE=$W/pw doctor; assertEquals "$(cat "$W/json")" 0 $RC
	finds ok redis.acl "all that is needed"; finds ok redis.version
	R acl setuser app -zadd -incr >/dev/null
	NETFLOCK_URL=$url NETFLOCK_PASSWORD_FILE=$W/pw doctor; assertEquals 1 $RC
	finds fail redis.acl "lacks +incr +zadd"
	R acl setuser app reset on '>pw' $rights resetkeys '~lock:*' >/dev/null
	NETFLOCK_URL=$url NETFLOCK_PASSWORD_FILE=$W/pw doctor; finds fail redis.acl "~netflock:waits:*"
	R acl setuser app reset on '>pw' $rights -info >/dev/null
	NETFLOCK_URL=$url NETFLOCK_PASSWORD_FILE=$W/pw doctor; assertEquals 0 $RC
	finds warn redis.acl +info; finds warn redis.info
	R acl setuser app reset on '>pw' '~*' +info >/dev/null
	NETFLOCK_URL=$url NETFLOCK_PASSWORD_FILE=$W/pw doctor; assertEquals 1 $RC; finds fail redis.acl scripts; }
	set +f
	assertNotContains "$(cat "$W/json")" pw@
	R acl deluser app >/dev/null
}

test_usage() {
	doctor --nonsense; assertEquals 2 $RC
	doctor --prefix relative; assertEquals 2 $RC
	doctor --; assertEquals "no command" 2 $RC
	doctor --pid; assertEquals 2 $RC
	"$NETFLOCK" doctor --help | grep -q 'Exit status'; assertEquals "help" 0 $?
	"$NETFLOCK" help doctor | grep -q -e --pid; assertEquals "help" 0 $?
	doctor "$F" --pid; assertEquals "no option behind a path: a path" 1 $RC
}

# (asan: no: the same calls as in the tests above)
test_strict_runs_what_is_protected() {
	strict --prefix "$D" -- "$W/plain"; status_is 0 $RC "runs" "$W/err"
	assertEquals ran "$(cat "$W/out")"
	strict -- sh -c 'exit 7'; assertEquals "the command's status" 7 $RC
	strict -- "$W/none"; assertEquals "not found" 127 $RC
	strict -- flock "$F" true; assertEquals 0 $RC
}

test_strict_refuses_what_is_not() {
	strict -- "$W/static"; refused static
	strict -- "$W/go"; refused Go
	strict -- env -i "$W/plain"; refused environment
	NETFLOCK_TTL=banana strict -- "$W/plain"; refused banana
	NETFLOCK_PREFIX='' strict -- "$W/plain"; refused prefix
	NETFLOCK_DISABLE=1 strict -- "$W/plain"; refused NETFLOCK_DISABLE
	NETFLOCK_URL=unix:///nonexistent.sock strict -- "$W/plain"; refused nonexistent
	"$NETFLOCK" run -- "$W/go" >"$W/out" 2>&1; assertEquals "not without --strict" 0 $?
}

. /usr/share/shunit2/shunit2
