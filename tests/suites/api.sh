#!/bin/bash
# include/netflock.h: what a program is told about its locks.
. "$(dirname "$0")/../lib.sh"

steal() { R set "lock:$1" stolen px 60000 >/dev/null; }     # as if another host had been let in

new_actor() { PROBE=api actor "$@"; }

number() { case $2 in '' | *[!0-9]*) fail "$1: $2 is no number" ;; *) assertTrue 0 ;; esac; }

test_the_header_compiles_as_c_and_c_plus_plus_and_links() {
	need gcc g++ || return 0
	gcc -std=c99 -Wall -Wextra -Werror -pedantic -fsyntax-only -x c "$TOP/include/netflock.h"; assertEquals "C99" 0 $?
	g++ -std=c++98 -Wall -Wextra -Werror -fsyntax-only -x c++ "$TOP/include/netflock.h"; assertEquals "C++98" 0 $?
	gcc -D_GNU_SOURCE -DLINKED -I"$TOP/include" -o "$W/shared/api_c" "$TESTS/probes/api.c" -L"$BUILD" -lnetflock; assertEquals "gcc" 0 $?
	g++ -DLINKED -Wall -Wextra -Werror -I"$TOP/include" -o "$W/shared/api_cc" -x c++ "$TESTS/probes/api.c" -L"$BUILD" -lnetflock; assertEquals "g++" 0 $?
	[ -z "${TEST_ASAN:-}" ] || return 0
	local p n; for p in api_c api_cc; do
		# Linked, it needs no preload.
		printf 'version\nopen %s\nflock 3 ex\nfence 3\nlease 3\n' "$F" |
			bare 1 LD_LIBRARY_PATH="$BUILD" NETFLOCK_PREFIX="$D" NETFLOCK_URL="$NF_URL" "$W/shared/$p" 3>&- >"$W/out" 2>&1
		assertEquals "$p: $(cat "$W/out")" "READY" "$(sed -n 1p "$W/out")"
		assertEquals "netflock $(sed -n 2p "$W/out")" "$("$NETFLOCK" --version)"
		assertEquals OK "$(sed -n 4p "$W/out")"
		assertEquals "the token" "$(($(R get "netflock:{lock:$F}:fence") - 1))" "$(sed -n 5p "$W/out")" # a release adds one
		number "$p: lease" "$(sed -n 6p "$W/out")"
	done
	rm -f "$W/shared"/api_*
}

test_without_the_library_nothing_is_protected() {
	printf 'version\nopen %s\nflock 3 ex\nfence 3\nlease 3\n' "$F" | bare 1 "$PROBES/api" 3>&- >"$W/out" 2>&1
	assertEquals 3 "$(grep -c "not protected" "$W/out")"
}

test_fence_and_lease_of_a_plain_lock() {
	new_actor a 1
	local n m; n=$(ask a open "$F"); m=$(ask a open "$F")
	assertEquals ENOLCK "$(ask a fence "$n")"; assertEquals ENOLCK "$(ask a lease "$n")"
	assertEquals EBADF "$(ask a fence 99)"; assertEquals EBADF "$(ask a lease 99)"
	assertEquals ENOLCK "$(ask a fence "$(ask a open "$W/shared/outside")")"
	assertEquals OK "$(ask a flock "$n" ex)"
	assertEquals "$(R get "netflock:{lock:$F}:fence")" "$(ask a fence "$n")"
	assertBetween lease 1 $((${AGES%s} * 1000)) "$(ask a lease "$n")"
	assertEquals "another description" ENOLCK "$(ask a fence "$m")"
	assertEquals "a duplicate" "$(ask a fence "$n")" "$(ask a fence "$(ask a dup "$n")")"
	local first; first=$(ask a fence "$n")
	ask a flock "$n" un >/dev/null
	assertEquals ENOLCK "$(ask a lease "$n")"
	assertEquals OK "$(ask a flock "$n" sh)"
	assertTrue "it grows" "[ '$(ask a fence "$n")' -gt '$first' ]"
}

test_fence_and_lease_of_record_locks() {
	local kind m n first
	for kind in lockf ofd; do
		new_actor $kind 1; new_actor $kind-other 2
		n=$(ask $kind open "$D/$kind")
		assertEquals OK "$(ask $kind $kind "$n" x)"
		first=$(ask $kind fence "$n")
		assertEquals "$kind" "$(R get "netflock:{lock:$D/$kind}:rfence")" "$first"
		assertBetween "$kind: lease" 1 $((${AGES%s} * 1000)) "$(ask $kind lease "$n")"
		m=$(ask $kind open "$D/$kind")
		if [ $kind = lockf ]; then
			assertEquals "the process has it, through any descriptor" "$first" "$(ask $kind fence "$m")"
		else
			assertEquals "the description has it" ENOLCK "$(ask $kind fence "$m")"
		fi
		ask $kind $kind "$n" u >/dev/null
		assertEquals ENOLCK "$(ask $kind fence "$n")"; assertEquals ENOLCK "$(ask $kind lease "$n")"
		n=$(ask $kind-other open "$D/$kind")
		assertEquals OK "$(ask $kind-other $kind "$n" x)"
		assertTrue "$kind: it grows" "[ '$(ask $kind-other fence "$n")' -gt '$first' ]"
	done
	# The process's locks are not inherited.
	new_actor f 3; n=$(ask f open "$D/forked"); assertEquals OK "$(ask f lockf "$n" x)"
	number parent "$(ask f fence "$n")"
	ask f fork >/dev/null
	assertEquals "the child has none" ENOLCK "$(ask f fence "$n")"
	# flock's counts before record locks.
	new_actor b 3; n=$(ask b open "$D/both"); assertEquals OK "$(ask b flock "$n" ex)"; assertEquals OK "$(ask b lockf "$n" x)"
	assertEquals "$(R get "netflock:{lock:$D/both}:fence")" "$(ask b fence "$n")"
}

# More than a lease after the hand-over the lock is as good as ever, whoever renews it.
test_lease_while_a_keeper_renews() {
	local how reply n
	local -A fd token
	for how in fork exec ofd; do
		new_actor $how 1 NETFLOCK_TTL=2s
		n=$(ask $how open "$D/k$how")
		if [ $how = ofd ]; then assertEquals OK "$(ask $how ofd "$n" x)"; else assertEquals OK "$(ask $how flock "$n" ex)"; fi
		fd[$how]=$n token[$how]=$(ask $how fence "$n")
		# The parent of the child sleeps, and the child has the word: with a duplicate of the descriptor's number.
		reply=$(ask $how "${how/ofd/fork}"); [ "$reply" = OK ] || [ "$reply" = READY ] || fail "$how: $reply"
		[ $how = ofd ] || assertEquals "$how" "${token[$how]}" "$(ask $how fence "$n")"
	done
	stays "held '$D/kfork' && held '$D/kexec'" 3000
	for how in fork exec ofd; do
		n=${fd[$how]}
		[ $how = ofd ] || assertBetween "$how: lease" 1 2000 "$(ask $how lease "$n")"
		if [ $how != exec ]; then # back to the parent
			assertEquals OK "$(ask $how exit)"
			assertBetween "$how: the parent's lease" 1 2000 "$(ask $how lease "$n")"
			assertEquals "$how" "${token[$how]}" "$(ask $how fence "$n")"
		fi
	done
}

test_lease_of_a_lost_lock_is_0() {
	local n m
	new_actor a 1 NETFLOCK_TTL=1s NETFLOCK_ON_LOST=log
	new_actor b 1 NETFLOCK_ON_LOST=log
	new_actor c 1 NETFLOCK_TTL=1s NETFLOCK_ON_LOST=log
	n=$(ask a open "$F"); assertEquals OK "$(ask a flock "$n" ex)"
	m=$(ask b open "$D/kept"); assertEquals OK "$(ask b flock "$m" ex)"; ask b fork >/dev/null; ask b lease "$m" >/dev/null
	local r; r=$(ask c open "$D/record"); assertEquals OK "$(ask c lockf "$r" x)"
	steal "$F"; steal "$D/kept"
	must '[ "$(ask a lease '"$n"')" = 0 ]' "$PATIENCE" "renewed by itself:"
	must '[ "$(ask b lease '"$m"')" = 0 ]' "$PATIENCE" "renewed by a keeper, long before its lease ends:"
	number "its token stays what it was" "$(ask a fence "$n")"
	pkill -KILL -P "${ACT_PID[b]}"; kill -KILL "${ACT_PID[b]}"
	must '[ -z "$(keepers)" ]' # while it can tell Redis
	redis_stop
	must '[ "$(ask c lease '"$r"')" = 0 ]' "$PATIENCE" "a record lock, without Redis:"
}

test_a_child_that_unlocks_ends_the_parents_lock() {
	local n
	new_actor a 1; n=$(ask a open "$F"); assertEquals OK "$(ask a flock "$n" ex)"
	ask a fork >/dev/null
	ask a flock "$n" un >/dev/null
	assertEquals OK "$(ask a exit)"
	assertEquals ENOLCK "$(ask a lease "$n")"
}

test_an_inherited_lock_while_redis_is_away() {
	local n
	new_actor a 1
	n=$(ask a open "$F"); assertEquals OK "$(ask a flock "$n" ex)"
	number own "$(ask a fence "$n")"
	assertEquals READY "$(ask a exec)"
	redis_stop
	assertEquals EIO "$(ask a fence "$n")"
	assertEquals EIO "$(ask a lease "$n")"
	redis_start # or the keeper would wait for the end of its long lease
}

. /usr/share/shunit2/shunit2
