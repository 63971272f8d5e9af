#!/bin/bash
# Which files are meant, and under which key: prefixes, links, and every name that a file system allows.
. "$(dirname "$0")/../lib.sh"

# hold PATH...: a holder of all of them on host 1, until let_go.
hold() {
	rm -f "$W/shared/in" "$W/shared/go"
	spawn 1 python3 -c 'if 1:
		import fcntl, os, sys, time
		fs = [open(p, "a") for p in sys.argv[3:]]
		for f in fs: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
		open(sys.argv[1], "w")
		while not os.path.exists(sys.argv[2]): time.sleep(0.01)' "$W/shared/in" "$W/shared/go" "$@"
	HOLDER=$PID
	must '[ -e $W/shared/in ]'
}
let_go() { touch "$W/shared/go"; wait "$HOLDER"; assertEquals "the holder" 0 $?; }
# tries [VAR=VALUE...] PATH...: what a flock -n of each says on host 2
tries() {
	local set=()
	while [[ $1 == NETFLOCK_*=* ]]; do set+=("$1"); shift; done
	H 2 "${set[@]}" bash -c 'for f; do flock -n "$f" true; echo $?; done' bash "$@" | paste -sd' '
}
# shown [VAR=VALUE...] PATH...: the keys that there are while host 1 holds each
shown() {
	local set=()
	while [[ $1 == NETFLOCK_*=* ]]; do set+=("$1"); shift; done
	H 1 "${set[@]}" bash -c 's=$1; shift; for f; do echo "$(flock -n "$f" redis-cli -s "$s" keys "*lock:*" | grep "^lock:")"; done' \
		bash "$SOCK" "$@"
}
lock_keys() { R keys 'lock:*' | grep -av '^$'; }

test_a_folder_that_only_looks_like_the_prefix_is_left_alone() {
	mkdir -p "$W/locksmith" "$W/lock"
	assertEquals "none for the first four" $'\n\n\n\n'"lock:$F" "$(shown "$W/locksmith/x" "$W/lock/x" "$W/locks-x" "$W/x" "$F")"
}

test_every_way_to_write_a_path_is_one_key() {
	mkdir -p "$HOSTS/1/sub" "$HOSTS/2/sub"
	ln -sf x "$HOSTS/2/link"; ln -sfn "$D" "$W/shared/linkdir"
	hold "$F"
	assertEquals "1 1 1 1 1 1" \
		"$(tries "$D/./x" "$D//x" "$D/sub/../x" "$D/link" "$W/shared/linkdir/x" "/proc/self/root$D/x")"
	H 2 sh -c "cd $D && flock -n x true"; assertEquals "relative" 1 $?
	assertEquals "lock:$F" "$(lock_keys)"
	let_go
}

test_the_prefix_may_be_written_through_a_link_and_with_slashes() {
	ln -sfn "$D" "$W/shared/prefixlink"
	hold "$F"
	assertEquals "trailing slash" 1 "$(tries NETFLOCK_PREFIX="$D/" "$F")"
	assertEquals "two of them" 1 "$(tries NETFLOCK_PREFIX="$D//" "$F")"
	assertEquals "a link, named" 1 "$(tries NETFLOCK_PREFIX="$W/shared/prefixlink=$D" "$F")"
	assertContains "a prefix that is a link works" \
		"$(shown NETFLOCK_PREFIX="$W/shared/prefixlink" "$W/shared/prefixlink/linked")" /linked
	let_go
}

test_hosts_that_mount_the_share_in_different_places_meet_by_name() {
	mkdir -p "$W/elsewhere"
	rm -f "$W/shared/in"
	spawn 1 NETFLOCK_PREFIX="$D=app" flock "$F" sh -c "touch $W/shared/in; sleep 300"
	must '[ -e $W/shared/in ]'
	assertEquals "lock:app/x" "$(lock_keys)"
	assertEquals "x is locked and y is not" "1 0" \
		"$(AT=$W/elsewhere tries NETFLOCK_PREFIX="$W/elsewhere=app" "$W/elsewhere/x" "$W/elsewhere/y")"
}

test_several_prefixes() {
	local p
	mkdir -p "$W/second"
	for p in "$D:$W/second lock:$F lock:$W/second/x" "$W/second=two:$D=one lock:one/x lock:two/x"; do
		# shellcheck disable=SC2086 # words
		assertEquals "$p" "$(printf '%s\n' ${p#* })" "$(shown NETFLOCK_PREFIX="${p%% *}" "$F" "$W/second/x" "$W/shared/x")"
	done
	assertEquals "the other way round" "lock:$F" "$(shown NETFLOCK_PREFIX="$W/second:$D" "$F")"
	assertNoKeys
}

# All at the same time: two that were one key would not both be granted.
test_strange_names_exclude_and_do_not_mix() {
	local n paths=() others=() keys=() long
	long=$(printf 'l%.0s' $(seq 255))
	for n in 'with space' 'a b{c}d' '{braces}' '}{' $'new\nline' $'tab\tand\001control' "$long" '*' '?[a-z]' "quote'\"" '\back\slash' \
		$'\303\274ml\303\244ut' $'not-utf8-\377\376' '%s%n' ':colon=equals' '-dash' '{lock:}' ' (deleted)' 'x (deleted)' x; do
		paths+=("$D/$n") others+=("$D/${n%?}_") keys+=("lock:$D/$n")
	done
	hold "${paths[@]}"
	assertEquals "the keys are the names, byte by byte" ${#keys[@]} "$(R exists "${keys[@]}")"
	assertEquals "one for each" ${#keys[@]} "$(R eval 'return #redis.call("KEYS", "lock:*")' 0)"
	assertEquals "held" "${paths[*]/*/1}" "$(tries "${paths[@]}")"
	assertEquals "other names are free" "${paths[*]/*/0}" "$(tries "${others[@]}")"
	let_go
	assertNoKeys
}

test_paths_near_the_limit() {
	cat >"$W/long.py" <<-'S'
		import fcntl, os, sys, time
		p = sys.argv[1]
		while len(p) + 201 < 3900: p += "/" + "d" * 200
		os.makedirs(p, exist_ok=True)
		p += "/" + "e" * (4095 - len(p) - 1)
		f = open(p, "a")
		try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
		except BlockingIOError: sys.exit(1)
		open(sys.argv[2], "w"); time.sleep(300)
	S
	# 4095 bytes is the longest path that open takes.
	spawn 1 python3 "$W/long.py" "$D" "$W/shared/long"
	must '[ -e $W/shared/long ]'
	assertEquals 1 "$(lock_keys | count)"
	assertEquals "length of the key" 4100 "$(lock_keys | tr -d '\n' | wc -c)"
	H 2 python3 "$W/long.py" "$D" "$W/shared/both"; assertEquals 1 $?
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
	assertEquals "lock:$D" "$(shown "$D")"
	assertNoKeys
}

. /usr/share/shunit2/shunit2
