#!/bin/bash
# Which files are meant, and under which key: prefixes, links, and every name that a file system allows.
. "$(dirname "$0")/../lib.sh"

# hold PATH: a holder on host 1; says when it is in.
hold() {
	rm -f "$W/shared/in"
	spawn 1 NETFLOCK_TTL=1s python3 -c 'if 1:
		import fcntl, sys, time
		f = open(sys.argv[1], "a"); fcntl.flock(f, fcntl.LOCK_EX)
		open(sys.argv[2], "w"); time.sleep(60)' "$1" "$W/shared/in"
	must '[ -e $W/shared/in ]'
}
lock_keys() { R keys 'lock:*' | grep -av '^$'; }

test_a_folder_that_only_looks_like_the_prefix_is_left_alone() {
	mkdir -p "$W/locksmith" "$W/lock"
	local f
	for f in "$W/locksmith/x" "$W/lock/x" "$W/locks-x" "$W/x"; do
		H 1 flock -n "$f" "$(command -v redis-cli)" -s "$SOCK" keys '*' >"$W/out" 2>/dev/null
		assertEquals "$f" "" "$(cat "$W/out")"
	done
	H 1 flock -n "$F" redis-cli -s "$SOCK" keys 'lock:*' >"$W/out"
	assertEquals "lock:$F" "$(cat "$W/out")"
}

test_every_way_to_write_a_path_is_one_key() {
	local p
	mkdir -p "$HOSTS/1/sub" "$HOSTS/2/sub"
	ln -sf x "$HOSTS/2/link"; ln -sfn "$D" "$W/shared/linkdir"
	hold "$F"
	for p in "$D/./x" "$D//x" "$D/sub/../x" "$D/link" "$W/shared/linkdir/x" "/proc/self/root$D/x"; do
		assertEquals "$p" 1 "$(busy "$p")"
	done
	H 2 sh -c "cd $D && flock -n x true"; assertEquals "relative" 1 $?
	assertEquals "lock:$F" "$(lock_keys)"
}

test_the_prefix_may_be_written_through_a_link_and_with_slashes() {
	ln -sfn "$D" "$W/shared/prefixlink"
	hold "$F"
	H 2 NETFLOCK_PREFIX="$D/" flock -n "$F" true; assertEquals "trailing slash" 1 $?
	H 2 NETFLOCK_PREFIX="$D//" flock -n "$F" true; assertEquals "two of them" 1 $?
	H 2 NETFLOCK_PREFIX="$W/shared/prefixlink=$D" flock -n "$F" true; assertEquals "a link, named" 1 $?
	H 3 NETFLOCK_PREFIX="$W/shared/prefixlink" flock -n "$W/shared/prefixlink/linked" redis-cli -s "$SOCK" keys 'lock:*linked' >"$W/out"
	assertContains "a prefix that is a link works" "$(cat "$W/out")" lock:
}

test_hosts_that_mount_the_share_in_different_places_meet_by_name() {
	mkdir -p "$W/elsewhere"
	rm -f "$W/shared/in"
	spawn 1 NETFLOCK_PREFIX="$D=app" flock "$F" sh -c "touch $W/shared/in; sleep 30"
	must '[ -e $W/shared/in ]'
	assertEquals "lock:app/x" "$(lock_keys)"
	AT=$W/elsewhere H 2 NETFLOCK_PREFIX="$W/elsewhere=app" flock -n "$W/elsewhere/x" true
	assertEquals 1 $?
	AT=$W/elsewhere H 2 NETFLOCK_PREFIX="$W/elsewhere=app" flock -n "$W/elsewhere/y" true
	assertEquals 0 $?
}

test_several_prefixes() {
	local p
	mkdir -p "$W/second"
	for p in "$D:$W/second" "$W/second:$D" "$W/second=two:$D=one"; do
		H 1 NETFLOCK_PREFIX="$p" flock "$F" redis-cli -s "$SOCK" keys 'lock:*' >"$W/out"
		assertContains "$p" "$(cat "$W/out")" lock:
		H 1 NETFLOCK_PREFIX="$p" flock "$W/second/x" redis-cli -s "$SOCK" keys 'lock:*' >"$W/out"
		assertContains "$p" "$(cat "$W/out")" lock:
		H 1 NETFLOCK_PREFIX="$p" flock "$W/shared/x" redis-cli -s "$SOCK" keys 'lock:*' >"$W/out"
		assertEquals "$p" "" "$(cat "$W/out")"
	done
	assertNoKeys
}

test_strange_names_exclude_and_do_not_mix() {
	local n long
	long=$(printf 'l%.0s' $(seq 255))
	for n in 'with space' '{braces}' '}{' $'new\nline' $'tab\tand\001control' "$long" '*' '?[a-z]' "quote'\"" '\back\slash' \
		$'\303\274ml\303\244ut' $'not-utf8-\377\376' '%s%n' ':colon=equals' '-dash' '{lock:}' ' (deleted)' 'x (deleted)'; do
		hold "$D/$n"
		assertEquals "held: $n" 1 "$(busy "$D/$n")"
		assertEquals "another name" 0 "$(busy "$D/${n%?}_")"
		must '[ "$(R eval "return #redis.call(\"KEYS\", \"lock:*\")" 0)" = 1 ]' 2 "one key for $n;"
		kill $PID; { wait $PID; } 2>/dev/null
		must '[ -z "$(leftover_keys)" ]' 4 "key of $n is freed;"
	done
}

test_the_key_is_the_name_byte_by_byte() {
	hold "$D/a b{c}d"
	assertEquals 1 "$(R exists "lock:$D/a b{c}d")"
}

test_paths_near_the_limit() {
	# 4095 bytes is the longest path that open takes.
	H 1 python3 -c 'if 1:
		import fcntl, os, sys, time
		p = sys.argv[1]
		while len(p) + 201 < 3900: p += "/" + "d" * 200
		os.makedirs(p, exist_ok=True)
		p += "/" + "e" * (4095 - len(p) - 1)
		f = open(p, "a"); fcntl.flock(f, fcntl.LOCK_EX); open(sys.argv[2], "w"); time.sleep(60)' "$D" "$W/shared/long" &
	must '[ -e $W/shared/long ]' 5
	assertEquals 1 "$(lock_keys | count)"
	assertBetween "length of the key" 4090 4120 "$(lock_keys | tr -d '\n' | wc -c)"
	H 2 python3 -c 'if 1:
		import fcntl, os, sys
		p = sys.argv[1]
		while len(p) + 201 < 3900: p += "/" + "d" * 200
		os.makedirs(p, exist_ok=True)
		p += "/" + "e" * (4095 - len(p) - 1)
		f = open(p, "a")
		try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
		except BlockingIOError: sys.exit(1)' "$D"
	assertEquals 1 $?
}

test_a_path_beyond_the_limit_is_an_error_or_protected_but_no_crash() {
	# Reached by openat, deeper than PATH_MAX: the kernel cannot name it.
	H 1 python3 -c 'if 1:
		import fcntl, os, sys
		os.chdir(sys.argv[1])
		for i in range(30):
		    os.makedirs("d" * 200, exist_ok=True); os.chdir("d" * 200)
		f = os.open("x", os.O_RDWR | os.O_CREAT)
		try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
		except OSError as e: print(e.errno)' "$D" >"$W/out" 2>/dev/null
	assertEquals "it goes on" 0 $?
	rm -rf "$HOSTS/1"/d*
	assertNoKeys
}

test_a_file_that_is_renamed_while_held_frees_the_key_that_was_taken() {
	actor a 1
	ask a open x c "$F" >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	assertEquals OK "$(ask a rename "$F" "$D/renamed")"
	assertEquals 1 "$(busy "$F")"
	assertEquals OK "$(ask a flock x UN)"
	assertNoKeys
	assertEquals 0 "$(busy "$F")"
	rm -f "$HOSTS/1/renamed"
}

test_a_file_that_is_unlinked_while_held_and_made_anew_still_excludes() {
	actor a 1
	ask a open x c "$F" >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	assertEquals OK "$(ask a unlink "$F")"
	assertEquals 1 "$(busy "$F")"
	touch "$HOSTS/1/x"
	H 1 flock -n "$F" true; assertEquals "a new file on the holder's own host" 1 $?
	assertEquals OK "$(ask a close x)"
	assertNoKeys
	assertEquals 0 "$(busy "$F")"
}

test_the_prefix_folder_itself_can_be_locked() {
	H 1 flock -n "$D" redis-cli -s "$SOCK" keys 'lock:*' >"$W/out"
	assertEquals "lock:$D" "$(cat "$W/out")"
	assertNoKeys
}

. /usr/share/shunit2/shunit2
