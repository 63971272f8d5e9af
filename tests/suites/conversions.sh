#!/bin/bash
# The four operations, their conversions, and each way in which a tenure ends while its process lives on.
. "$(dirname "$0")/../lib.sh"

writer() { H "${1:-2}" flock -n "$F" true; echo $?; }
reader() { H "${1:-2}" flock -n -s "$F" true; echo $?; }
soon_free() { must "! held $F" '' "$1 frees the file for the other host;"; assertEquals "$1" 0 "$(busy "$F")"; assertNoKeys; }

# An actor on host 1 that holds F by its descriptor x.
holder() {
	actor a 1 NETFLOCK_ON_LOST=log
	assertEquals OK "$(ask a "${1:-open}" x ${2-c} "$F")"
	assertEquals OK "$(ask a flock x "${3:-EX}")"
	assertEquals "held" 1 "$(busy "$F")"
}

test_an_upgrade_excludes_readers_and_a_downgrade_lets_them_in() {
	holder open c SH
	assertEquals "a reader beside a reader" 0 "$(reader)"
	assertEquals OK "$(ask a flock x EX)"
	assertEquals "a reader beside a writer" 1 "$(reader)"
	assertEquals string "$(R type "lock:$F")"
	assertEquals OK "$(ask a flock x SH)"
	assertEquals "a reader after the downgrade" 0 "$(reader)"
	assertEquals "a writer after the downgrade" 1 "$(writer)"
	assertEquals OK "$(ask a flock x UN)"
	assertEquals 0 "$(writer)"
	assertNoKeys
}

test_the_same_operation_twice_changes_nothing() {
	holder
	assertEquals OK "$(ask a flock x EX)"
	assertEquals OK "$(ask a flock x 'EX|NB')"
	assertEquals 1 "$(writer)"
	assertEquals OK "$(ask a flock x SH)"
	assertEquals OK "$(ask a flock x SH)"
	assertEquals OK "$(ask a flock x UN)"
	assertEquals OK "$(ask a flock x UN)"
	assertNoKeys
}

test_a_failed_upgrade_has_dropped_the_shared_lock_as_in_the_kernel() {
	holder open c SH
	spawn 2 flock -s "$F" sleep 300
	must '[ "$(R zcard "lock:$F")" = 2 ]'
	assertEquals EAGAIN "$(ask a flock x 'EX|NB')"
	must '[ "$(R zcard "lock:$F")" = 1 ]' '' "only host 2's shared lock is left;"
	kill_strays_of_host2
	assertNoKeys
}
kill_strays_of_host2() { pkill -KILL -P $PID; kill $PID 2>/dev/null; { wait $PID; } 2>/dev/null; }

test_two_hosts_that_upgrade_at_once_do_not_deadlock() {
	local f=$D/up
	actor a 1; actor b 2
	ask a open x c "$f" >/dev/null; ask b open x c "$f" >/dev/null
	assertEquals OK "$(ask a flock x SH)"
	assertEquals OK "$(ask b flock x SH)"
	tell a flock x EX; tell b flock x EX
	# Each drops its shared lock before it asks for the other, so one gets in, and the other when that is done.
	local first='' second=b
	must 'read -r -t 0 -u "${ACT_OUT[a]}" || read -r -t 0 -u "${ACT_OUT[b]}"' '' "one of them gets in;"
	if read -r -t 0 -u "${ACT_OUT[a]}"; then first=a; else first=b second=a; fi
	assertEquals OK "$(reply $first)"
	ask $first flock x UN >/dev/null
	assertEquals OK "$(reply $second)"
}

test_unlocking_through_a_duplicate_frees_the_other_host() {
	holder
	assertEquals OK "$(ask a dup x y)"
	assertEquals OK "$(ask a flock y UN)"
	soon_free "LOCK_UN through a dup"
	assertEquals OK "$(ask a flock x EX)"
	assertEquals OK "$(ask a dupfd x z)"
	assertEquals OK "$(ask a flock z UN)"
	soon_free "LOCK_UN through an F_DUPFD"
}

test_closing_one_of_two_descriptors_keeps_the_lock_and_the_last_one_frees_it() {
	holder
	ask a dup x y >/dev/null
	assertEquals OK "$(ask a close x)"
	assertEquals "one descriptor is left" 1 "$(writer)"
	assertEquals OK "$(ask a close y)"
	soon_free "closing the last"
}

test_another_description_of_the_same_file_may_be_closed() {
	holder
	ask a open y c "$F" >/dev/null
	assertEquals "a second description contends" EAGAIN "$(ask a flock y 'EX|NB')"
	assertEquals OK "$(ask a close y)"
	assertEquals 1 "$(writer)"
}

test_fclose_frees_the_other_host() {
	holder fopen ""
	assertEquals OK "$(ask a fclose x)"
	soon_free fclose
}

test_freopen_frees_the_other_host() {
	holder fopen ""
	assertEquals OK "$(ask a freopen x /dev/null | sed 's/ but errno changed//')"
	soon_free freopen
}

test_dup2_over_the_descriptor_frees_the_other_host() {
	holder
	ask a open n r /dev/null >/dev/null
	assertEquals OK "$(ask a dup2 n x)"
	soon_free dup2
}

test_dup3_over_the_descriptor_frees_the_other_host() {
	holder
	ask a open n r /dev/null >/dev/null
	assertEquals OK "$(ask a dup3 n x)"
	soon_free dup3
}

test_dup2_of_a_descriptor_onto_itself_keeps_the_lock() {
	holder
	assertEquals OK "$(ask a dup2 x x)"
	assertEquals 1 "$(writer)"
}

test_close_range_frees_the_other_host() {
	holder
	assertEquals OK "$(ask a close_range x x)"
	soon_free close_range
}

test_closefrom_frees_the_other_host() {
	holder
	assertEquals OK "$(ask a closefrom x)"
	soon_free closefrom
	# closefrom took the shim's own connection, too.
	ask a open x c "$F" >/dev/null
	assertEquals OK "$(ask a flock x EX)"
	assertEquals 1 "$(writer)"
}

test_closedir_frees_the_other_host() {
	mkdir -p "$HOSTS/1/dir" "$HOSTS/2/dir"
	F=$D/dir
	holder opendir ""
	assertEquals OK "$(ask a closedir x)"
	soon_free closedir
	F=$D/x
}

test_a_descriptor_number_that_is_reused_for_another_file_is_not_mistaken() {
	holder
	ask a close x >/dev/null
	ask a open x c "$D/y" >/dev/null
	assertEquals 0 "$(writer)"
	assertEquals OK "$(ask a flock x EX)"
	assertEquals "F stays free" 0 "$(writer)"
	assertEquals 1 "$(busy "$D/y")"
}

test_errno_is_untouched_by_success() {
	# The actor says so itself when a successful call changed it.
	actor a 1
	local c
	ask a open x c "$F" >/dev/null; ask a open n r /dev/null >/dev/null
	for c in 'flock x EX' 'flock x SH' 'flock x EX|NB' 'dup x y' 'close x' 'flock y UN' 'flock y EX' 'dup2 n y' \
		"fopen s $F" 'flock s EX' 'fclose s' "open x c $F" 'flock x EX' 'close_range x x' "open x c $F" \
		'flock x EX' 'dup3 n x' 'close n'; do
		assertEquals "$c" OK "$(ask a "$c")"
	done
}

# (asan: no: the same few calls many times)
test_would_block_is_said_only_when_somebody_holds_it() {
	local i
	actor a 1; actor b 2
	ask a open x c "$F" >/dev/null; ask b open x c "$F" >/dev/null
	for i in $(seq 20); do
		assertEquals "round $i" OK "$(ask a flock x 'EX|NB')" || break
		assertEquals "round $i" EAGAIN "$(ask b flock x 'EX|NB')" || break
		assertEquals "round $i" OK "$(ask a flock x UN)" || break
		assertEquals "round $i" OK "$(ask b flock x 'EX|NB')" || break
		assertEquals "round $i" EAGAIN "$(ask a flock x 'SH|NB')" || break
		assertEquals "round $i" OK "$(ask b flock x UN)" || break
	done
	assertNoKeys
}

test_odd_operations_get_the_kernel_s_answers() {
	# The same calls on a file that is no business of ours give the answers to compare with.
	local path op
	actor a 1
	ask a open o c "$W/shared/other" >/dev/null; ask a open x c "$F" >/dev/null
	for op in 0 'SH|EX' 16 'UN|EX' 'UN|SH' 'UN|NB' NB 1024 'SH|EX|NB' -1; do
		assertEquals "operation $op" "$(ask a flock o "$op")" "$(ask a flock x "$op")"
	done
	ask a open p p "$F" >/dev/null; assertEquals "O_PATH" EBADF "$(ask a flock p EX)"
	ask a close x >/dev/null; assertEquals "a closed descriptor" EBADF "$(ask a flock x EX)"
	ask a open r r "$F" >/dev/null; assertEquals "exclusive on a read-only descriptor" OK "$(ask a flock r EX)"
	assertEquals 1 "$(writer)"; ask a close r >/dev/null
	ask a open d d "$D" >/dev/null; assertEquals "a directory" OK "$(ask a flock d EX)"
	ask a open n r /dev/null >/dev/null; assertEquals "/dev/null" OK "$(ask a flock n EX)"
	ask a pipe u v >/dev/null; assertEquals "a pipe" OK "$(ask a flock u EX)"
}

# flock(1) on a shell's descriptor: each operation is another process, which is gone when the next one comes.

test_an_upgrade_by_another_process_outlives_leases() {
	spawn 1 NETFLOCK_TTL=1s bash -c "exec 9>$F; flock -s 9; flock -x 9; touch $W/shared/up2; sleep 300"
	must '[ -e $W/shared/up2 ]'
	assertEquals "a reader on another host" 1 "$(reader)"
	stays '[ "$(R type "lock:$F")" = string ]' 1500 "still exclusive:"
	assertEquals "a reader on another host, later" 1 "$(reader)"
}

test_a_failed_upgrade_by_another_process_leaves_nothing() {
	spawn 2 flock -s "$F" sleep 300
	must '[ "$(R zcard "lock:$F")" = 1 ]'
	local reader2=$PID
	spawn 1 bash -c "exec 9>$F; flock -s 9; flock -n -x 9; echo \$? >$W/shared/refused; until [ -e $W/shared/over ]; do sleep 0.02; done"
	local shell=$PID; PID=$reader2
	must '[ -s $W/shared/refused ]'
	assertEquals 1 "$(cat "$W/shared/refused")"
	bare 1 flock -n "$F" true; assertEquals "the kernel has dropped the shared lock" 0 $?
	must '[ "$(R zcard "lock:$F")" = 1 ]' '' "only host 2's shared lock is left;"
	kill_strays_of_host2
	must '[ -z "$(leftover_keys)" ]' '' "nothing stays in Redis while the shell lives;"
	assertEquals "a writer" 0 "$(writer 3)"
	touch "$W/shared/over"; wait $shell
	rm -f "$W/shared/over" "$W/shared/refused"
}

# Neither waits for the end of the other's lease: that does not come during the test.
# (asan: no: as two hosts above, and each step of a shell's in the tests before)
test_two_shells_that_upgrade_at_once_get_in_one_after_the_other() {
	local h p1='' p2=''
	# What each does when it has upgraded: it notes that it is inside, and alone.
	cat >"$W/upgrade" <<-S
		exec 9>$F; flock -s 9; touch $W/shared/reads\$HOSTN
		until [ -e $W/shared/reads1 ] && [ -e $W/shared/reads2 ]; do sleep 0.01; done
		flock -x 9; mkdir $W/shared/inside || exit 9; sleep 0.3; rmdir $W/shared/inside
		echo \$HOSTN >>$W/shared/upgraded
	S
	for h in 1 2; do spawn $h bash "$W/upgrade"; eval "p$h=$PID"; done
	must '[ -e $W/shared/upgraded ] && [ "$(count <"$W/shared/upgraded")" = 2 ]'
	wait "$p1"; assertEquals "host 1" 0 $?
	wait "$p2"; assertEquals "host 2" 0 $?
	assertEquals "1 2" "$(sort "$W/shared/upgraded" | paste -sd' ')"
	assertNoKeys
}

# A waiting reader would ask again by itself in a second or more: it is the message that lets it in.
test_a_downgrade_by_another_process_lets_waiting_readers_of_another_host_in_at_once() {
	spawn 1 bash -c "exec 9>$F; flock -x 9; touch $W/shared/ex; until [ -e $W/shared/down ]; do sleep 0.01; done
		flock -s 9; touch $W/shared/sh; sleep 300"
	must '[ -e $W/shared/ex ]'
	assertEquals 1 "$(reader)"
	R config set notify-keyspace-events El >/dev/null
	R psubscribe '__keyevent@0__:rpush' >"$W/pushed" &
	must 'grep -q psubscribe "$W/pushed"'
	spawn 2 flock -s "$F" touch "$W/shared/read"
	must '[ "$(R zcard "netflock:{lock:$F}:queue")" = 1 ]'
	assertFalse "it has not read" "[ -e $W/shared/read ]"
	touch "$W/shared/down"
	must '[ -e $W/shared/read ]' '' "the reader that waited is in;"
	must 'grep -q "^netflock:{lock:$F}:wait:" "$W/pushed"' '' "the downgrade has sent it a message;"
	R config set notify-keyspace-events '' >/dev/null
	must '[ -e $W/shared/sh ]'
	assertEquals "a new reader" 0 "$(reader 3)"
	assertEquals "a writer" 1 "$(writer 3)"
}

. /usr/share/shunit2/shunit2
