#!/bin/bash
# Record locks on two hosts, range by range: fcntl() and lockf().
. "$(dirname "$0")/../lib-records.sh"

segments() { R zcard "netflock:{lock:${1:-$F}}:ranges"; }

# asan: no: no code of ours runs
test_without_the_shim_both_hosts_get_in() {
	local go in
	with_shim || return 0
	in=$(printf '%s\n' "open x rw keep $F" "pset x w set 0 0")
	mkfifo "$W/go"; exec {go}<>"$W/go"
	echo "$in" >&$go
	WORLD=apart spawn_told "$W/go" 1 "$PROBES/records" >"$W/out1"
	must '[ "$(sed -n 3p "$W/out1")" = OK ]'
	bare 2 "$PROBES/records" <<<"$in" >"$W/out2"
	assertEquals "host 2 is not kept out by the kernel" OK "$(sed -n 3p "$W/out2")"
	bare 1 "$PROBES/records" <<<"$in" >"$W/out2"
	assertEquals "host 1 is" EAGAIN "$(sed -n 3p "$W/out2")"
	exec {go}>&-; rm -f "$W/go"
}

# asan: no: records-model.sh makes such calls there, at random
test_ranges_exclude_one_another_and_nothing_else() {
	cast a@1 b@2
	says OK a pset x w set 0 10
	says OK b pset x w set 10 10
	says EAGAIN b pset x w set 9 1
	says EAGAIN b pset x r set 0 1
	says EAGAIN b pset x w set 9 2
	says EAGAIN a pset x w set 0 11
	says OK b pset x w set 20 1
	says OK a open y rw keep "$D/other"; says OK b open y rw keep "$D/other"
	says OK a pset y w set 10 10
	says EAGAIN b pset y w set 19 1
	quiet_end
}

# asan: no: records-model.sh makes such calls there, at random
test_a_range_that_is_refused_is_not_taken_in_part() {
	cast a@1 b@2 c@3
	says OK a pset x w set 10 10
	says OK b pset x r set 0 5
	says EAGAIN b pset x w set 0 30
	finds "r 0 5" b c pget x w set 0 10
	says OK c pset x w set 5 5
	says OK c pset x w set 20 10
	says OK c pset x r set 0 5
	quiet_end
}

# asan: no: records-model.sh makes such calls there, at random
test_readers_share_and_writers_do_not() {
	cast a@1 b@2 c@3
	says OK a pset x r set 0 10
	says OK b pset x r set 5 10
	says OK c pset x r set 7 1
	says EAGAIN c pset x w set 0 1
	says EAGAIN b pset x w set 5 1
	says OK b pset x w set 10 5
	says EAGAIN c pset x r set 14 1
	says OK a pset x u set 0 0
	says EAGAIN b pset x w set 5 5
	says OK c pset x u set 0 0
	says OK b pset x w set 5 5
	quiet_end
}

test_whence_is_the_start_the_position_or_the_end() {
	cast a@1 b@2
	says OK a trunc x 100; bare 2 truncate -s 100 "$F"
	says OK a seek x 40
	says OK a pset x w cur 5 10
	says OK b pset x w set 44 1; says EAGAIN b pset x w set 45 1
	says EAGAIN b pset x w set 54 1; says OK b pset x w set 55 1
	says OK a pset x w cur -5 5
	says EAGAIN b pset x w set 39 1; says OK b pset x w set 34 1
	says OK a pset x w end -10 5
	says EAGAIN b pset x w set 90 1; says EAGAIN b pset x w set 94 1; says OK b pset x w set 95 1
	says OK a pset x w end 0 0
	says EAGAIN b pset x w end 5 1; says OK b pset x w end -1 1
	# The position of a duplicate is the same one; the lock stays where it was when the file grows.
	says OK a trunc x 200; bare 2 truncate -s 200 "$F"
	says EAGAIN b pset x w set 92 1
	says OK a dup x y dup; says OK a seek y 80
	says OK a pset x u cur 10 5
	says OK b pset x w set 92 1
	quiet_end
}

test_a_length_of_zero_reaches_to_the_last_offset_and_a_negative_one_back() {
	cast a@1 b@2
	says OK a pset x w set 100 0
	says OK b pset x w set 99 1
	says EAGAIN b pset x w set $MAX 1
	says EAGAIN b pset x w set 4611686018427387904 1
	says OK b pset x u set 0 0
	says OK a pset x u set 200 0
	says OK b pset x w set 200 0
	says OK a pset x u set 0 0
	says OK a pset x w set 100 -50
	says OK b pset x w set 49 1; says EAGAIN b pset x w set 50 1
	says EAGAIN b pset x w set 99 1; says OK b pset x w set 100 1
	says OK b pset x u set 0 0
	says OK a pset x w set 0 0
	says EAGAIN b pset x r set 0 1; says EAGAIN b pset x r set $MAX 0
	quiet_end
}

test_the_last_offsets() {
	cast a@1 b@2
	says OK a pset x w set $MAX 1
	finds "w $MAX 0" a b pget x w set 0 0
	says EAGAIN b pset x w set 0 0
	says OK b pset x w set 0 $MAX
	finds "w 0 $MAX" b a pget x r set 0 0
	says EOVERFLOW a pset x r set $MAX 2
	says OK b pset x u set 0 0
	says EAGAIN b pset x r set 9223372036854775806 2
	says OK b pset x r set 9223372036854775806 1
	says OK a pset x u set $MAX 0
	says OK b pset x w set $MAX -1
	says EOVERFLOW b pset x w set 2 $MAX
	says OK b pset x w set 1 $MAX
	finds "w 1 0" b a pget x r set $MAX 1
	quiet_end
}

test_what_the_kernel_refuses_is_refused() {
	cast a@1 b@2
	says OK b pset x w set 0 0
	says EINVAL a pset x w set -1 1
	says EINVAL a pset x w set 10 -11
	says EINVAL a pset x w cur -1 0
	says EINVAL a pset x 9 set 0 1
	says EINVAL a pset x w 7 0 1
	says EINVAL a pget x 9 set 0 1
	says EINVAL a pget x w set -1 1
	says OK a seek x 1
	says EOVERFLOW a pset x w cur $MAX 1
	says EOVERFLOW a pset x w set 9223372036854775800 100
	says EINVAL a oset x w set 0 1 77
	says EINVAL a oget x w set 0 1 77
	says EINVAL a lockf x 9 1
	says EBADF a pset z w set 0 1
	says EBADF a lockf z tlock 1
	says OK a open r r keep "$F"
	says EBADF a pset r w set 0 1; says EBADF a oset r w set 0 1
	says EBADF a lockf r tlock 1
	says OK a pset r u set 0 1
	says EAGAIN a pset r r set 0 1
	says OK a open w w keep "$F"
	says EBADF a pset w r set 0 1
	says EAGAIN a pset w w set 0 1
	says OK a open p path keep "$F"
	says EBADF a pset p w set 0 1; says EBADF a pget p w set 0 1; says EBADF a oset p r set 0 1
	# None of it has left a lock.
	says OK b pset x u set 0 0; says OK b close x
	[ -n "$WORLD" ] || assertEquals "" "$(leftover_keys)"
	says OK b open x rw keep "$F"
	says OK b pset x w set 0 0
	quiet_end
}

# asan: no: records-model.sh makes such calls there, at random
test_upgrade_and_downgrade() {
	cast a@1 b@2
	says OK a pset x r set 0 100
	says OK b pset x r set 0 100
	says EAGAIN a pset x w set 40 20
	finds "r 0 100" a b pget x w set 0 100
	says OK b pset x u set 40 20
	says OK a pset x w set 40 20
	says EAGAIN b pset x r set 40 1; says EAGAIN b pset x r set 59 1
	says OK b pset x r set 39 1; says OK b pset x r set 60 1
	says OK a pset x r set 0 0
	says OK b pset x r set 0 0
	says EAGAIN b pset x w set 50 1
	quiet_end
}

# asan: no: records-model.sh makes such calls there, at random
test_unlocking_the_middle_splits_and_locking_the_gap_merges() {
	cast a@1 b@2
	says OK a pset x w set 0 100
	says OK a pset x u set 40 20
	says OK b pset x w set 40 20
	says EAGAIN b pset x w set 39 1; says EAGAIN b pset x w set 60 1
	finds "w 0 40" a b pget x w set 0 40
	finds "w 60 40" a b pget x w set 50 0
	says OK b pset x u set 0 0
	says OK a pset x w set 40 20
	finds "w 0 100" a b pget x w set 99 1
	[ -n "$WORLD" ] || assertEquals "segments in Redis" 1 "$(segments)"
	says OK a pset x r set 10 10
	finds "w 0 10" a b pget x w set 0 1
	finds "r 10 10" a b pget x w set 10 1
	finds "w 20 80" a b pget x r set 10 20
	says OK a pset x u set 0 10; says OK a pset x u set 90 100
	says OK b pset x w set 0 10; says OK b pset x w set 90 0
	finds "w 20 70" a b pget x w set 50 1
	says OK a pset x w set 15 3
	says EAGAIN b pset x r set 17 1; says OK b pset x r set 18 1
	quiet_end
}

# asan: no: records-model.sh makes such calls there, at random
test_lockf_counts_from_the_position() {
	cast a@1 b@2
	says OK a seek x 100
	says OK a lockf x tlock -50
	says OK b seek x 49; says OK b lockf x tlock 1
	says OK b seek x 50; says EAGAIN b lockf x tlock 1
	says OK b seek x 99; says EAGAIN b lockf x tlock 1
	says OK b seek x 100; says OK b lockf x tlock 1
	says OK a seek x 10; says EINVAL a lockf x tlock -50
	says OK a seek x 60; says OK a lockf x ulock 10
	says OK b seek x 60; says OK b lockf x tlock 10
	finds "w 50 10" a b pget x w set 50 10
	finds "w 70 30" a b pget x w set 70 10
	says OK a seek x 0; says OK a lockf x ulock 0
	says OK b seek x 0; says OK b lockf x lock 0
	says EAGAIN a lockf x tlock 1
	says OK b lockf x ulock 0
	quiet_end
}

# asan: no: records-model.sh makes such calls there, at random
test_lockf_test_says_eacces_of_others_and_nothing_of_its_own() {
	cast a@1 b@2 c@1
	says OK a lockf x tlock 10
	says OK a lockf x test 10
	says EACCES b lockf x test 10
	says EACCES c lockf x test 10
	says EACCES b lockf x test 0
	says OK b seek x 10
	says OK b lockf x test 10
	says EACCES b lockf x test -1
	says OK a pset x r set 0 10
	says OK b lockf x test -1 # glibc asks for a shared lock
	says OK a lockf x ulock 0
	says OK b lockf x test -1
	quiet_end
}

test_getlk_tells_who_has_it() {
	cast a@1 b@2 c@1
	says "OK u" b pget x w set 0 0
	says OK a pset x w set 5 10
	finds "w 5 10" a b pget x w set 0 0
	finds "w 5 10" a b pget x r set 14 0
	finds "w 5 10" a b oget x r set 14 0
	finds "w 5 10" a c pget x r set 14 0
	says "OK u" a pget x w set 0 0
	says "OK u" b pget x w set 0 5
	says "OK u" b pget x w set 15 0
	# A description of one's own process is another owner; so is that of another host.
	finds "w 5 10" a a oget x w set 0 0
	says OK a pset x r set 5 10
	finds "r 5 10" a b pget x w set 0 0
	says "OK u" b pget x r set 0 0
	says OK b seek x 20
	finds "r 5 10" a b pget x w cur -10 1
	finds "r 5 10" a b pget x w cur 0 -20
	says OK a oset x r set 50 0
	finds "r 50 0" description b pget x w set 50 0
	finds "r 50 0" description b oget x w set 60 1
	finds "r 50 0" description a pget x w set 60 1
	says "OK u" a oget x w set 60 1
	quiet_end
}

test_getlk_takes_nothing() {
	cast a@1 b@2
	says "OK u" a pget x w set 0 0; says OK a lockf x test 0; says "OK u" a oget x w set 0 0
	[ -n "$WORLD" ] || assertEquals "" "$(leftover_keys)"
	says OK b pset x w set 0 0
	quiet_end
}

# asan: no: records-model.sh makes such calls there, at random
test_a_process_and_a_description_are_two_owners() {
	cast a@1 b@2
	says OK a oset x w set 0 10
	says EAGAIN a pset x w set 5 1
	says EAGAIN b oset x w set 5 1
	says EAGAIN b pset x r set 5 1
	says OK a open y rw keep "$F"
	says EAGAIN a oset y r set 5 1
	says OK a oset y r set 10 10
	says OK b oset x r set 10 10
	says EAGAIN b oset x w set 10 1
	says OK a pset y w set 20 10
	says EAGAIN a oset y w set 20 1
	says OK a pset x w set 20 10
	says OK a oset x u set 0 0
	says OK b pset x w set 0 10
	quiet_end
}

test_flock_and_record_locks_do_not_meet() {
	cast a@1 b@2 c@1
	says OK a flock x ex
	says OK b pset x w set 0 0
	says EAGAIN c flock x sh
	says EAGAIN b flock x sh
	says EAGAIN a pset x r set 0 1
	says OK a flock x un
	says OK b flock x ex
	says OK b pset x u set 0 0
	says OK a oset x w set 0 0
	says EAGAIN a flock x sh
	says OK b close x
	says OK c flock x ex
	quiet_end
}

test_directories_and_fifos() {
	local h
	for h in 1 2; do bare $h sh -c "mkdir -p $D/dir; [ -p $D/fifo ] || mkfifo $D/fifo"; done
	cat >"$W/odd.py" <<-'S'
		import fcntl, os, sys
		def attempt(fd, how):
		    try:
		        fcntl.lockf(fd, how | fcntl.LOCK_NB, 5, 5)
		        return "OK"
		    except OSError as e:
		        return os.strerror(e.errno)
		d = os.open(sys.argv[1] + "/dir", os.O_RDONLY)
		p = os.open(sys.argv[1] + "/fifo", os.O_RDWR)
		print(attempt(d, fcntl.LOCK_EX), attempt(d, fcntl.LOCK_SH), attempt(p, fcntl.LOCK_EX), sep=", ", flush=True)
		if len(sys.argv) > 2:
		    open(sys.argv[2], "w").close()
		    sys.stdin.read()
	S
	local go
	mkfifo "$W/go"; exec {go}<>"$W/go"
	spawn_told "$W/go" 1 python3 "$W/odd.py" "$D" "$W/shared/locked" >"$W/out1"
	must '[ -e "$W/shared/locked" ]'
	assertEquals "Bad file descriptor, OK, OK" "$(cat "$W/out1")"
	assertEquals "Bad file descriptor, OK, Resource temporarily unavailable" "$(H 2 python3 "$W/odd.py" "$D")"
	exec {go}>&-
	rm -f "$W/shared/locked" "$W/go"
}

test_other_commands_of_fcntl_pass_with_their_argument() {
	cast a@1 b@1
	says OK a oset x w set 0 10
	says OK a commands x
	says EAGAIN b pset x w set 0 1
	# More of them, and what a program gets for them: the same with and without the shim.
	cat >"$W/commands.py" <<-'S'
		import fcntl, os, signal, struct, sys
		def call(fd, cmd, arg=0):
		    try:
		        return fcntl.fcntl(fd, cmd, arg)
		    except OSError as e:
		        return e.errno
		signal.signal(signal.SIGIO, signal.SIG_IGN)
		os.makedirs(sys.argv[1] + "/n", exist_ok=True)
		d = os.open(sys.argv[1] + "/n", os.O_RDONLY)
		if os.path.exists(sys.argv[1] + "/l"):
		    os.unlink(sys.argv[1] + "/l")
		fd = os.open(sys.argv[1] + "/l", os.O_RDONLY | os.O_CREAT)
		print(call(d, fcntl.F_NOTIFY, fcntl.DN_ACCESS), call(d, fcntl.F_NOTIFY, 0), call(fd, fcntl.F_NOTIFY, 0))
		for lease in (fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK, 77):
		    print(call(fd, fcntl.F_SETLEASE, lease), call(fd, fcntl.F_GETLEASE))
		for flags in (os.O_APPEND, os.O_NONBLOCK, 0):
		    print(call(fd, fcntl.F_SETFL, flags), call(fd, fcntl.F_GETFL))
		print([call(fd, n) for n in range(16, 64) if n not in range(36, 39)])
		print([call(fd, 1024 + n) for n in range(20) if n not in (6, )])
		print(call(fd, fcntl.F_DUPFD, 1 << 40 & 0x7fffffff | 3) > 2, call(fd, fcntl.F_DUPFD, -1), call(99, fcntl.F_GETFL))
		print(call(fd, 15, struct.pack("ii", 1, os.getpid())) == struct.pack("ii", 1, os.getpid()), call(fd, 9) == os.getpid())
	S
	H 1 python3 "$W/commands.py" "$D" >"$W/with"; bare 4 python3 "$W/commands.py" "$D" >"$W/without"
	assertTrue "nothing to compare" '[ -s $W/without ]'
	assertEquals "$(cat "$W/without")" "$(cat "$W/with")"
}

test_a_thousand_ranges_of_two_hosts_between_one_another() {
	cat >"$W/comb.py" <<-'S'
		import fcntl, os, sys
		f = open(sys.argv[1], "r+b", 0)
		odd = int(sys.argv[2])
		for i in range(500):
		    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2 * i + odd)
		refused = 0
		print("locked", flush=True)
		sys.stdin.readline()
		for i in range(500):
		    try:
		        fcntl.lockf(f, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 2 * i + 1 - odd)
		    except BlockingIOError:
		        refused += 1
		print(refused, flush=True)
		sys.stdin.readline()
		for i in range(0, 500, 2):
		    fcntl.lockf(f, fcntl.LOCK_UN, 1, 2 * i + odd)
		fcntl.lockf(f, fcntl.LOCK_UN, 0, 0)
	S
	local n i in1="" in2="" p1="" p2=""
	for n in 1 2; do
		bare $n touch "$F"
		mkfifo "$W/comb$n"; exec {i}<>"$W/comb$n"; eval "in$n=$i"
		spawn_told "$W/comb$n" $n python3 "$W/comb.py" "$F" $((n - 1)) >"$W/combout$n"; eval "p$n=$PID"
	done
	for n in 1 2; do must '[ "$(sed -n 1p "$W/combout$n")" = locked ]'; done
	[ -n "$WORLD" ] || assertEquals "segments in Redis" 1000 "$(segments)"
	for n in 1 2; do i=in$n; echo >&"${!i}"; done
	for n in 1 2; do must '[ -n "$(sed -n 2p "$W/combout$n")" ]'; assertEquals 500 "$(sed -n 2p "$W/combout$n")"; done
	for n in 1 2; do i=in$n; echo >&"${!i}"; i=p$n; wait "${!i}"; assertEquals 0 $?; done
	assertNoKeys
	exec {in1}>&- {in2}>&-
	rm -f "$W"/comb[12]
}

test_ranges_are_held_for_longer_than_a_lease() {
	local -x NF_TTL=1s
	cast a@1 b@2
	says OK a pset x w set 0 10; says OK a pset x r set 20 10; says OK a oset x w set 40 10
	says OK a pset x w set 60 10; says OK a pset x u set 60 10
	# Nor does one come back that was given up.
	stays 'answers EAGAIN b pset x w set 0 1 && answers EAGAIN b pset x w set 29 1 && answers EAGAIN b pset x w set 49 1 &&
		answers OK b pset x w set 60 10 && answers OK b pset x u set 60 10' 1700
	quiet_end
}

# Both hosts add to shared counters, each guarded by one byte of one file, reading, yielding and writing.
cat >"$W/count.py" <<'S'
import fcntl, os, sys, time
lock, counters, times, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
c = os.open(counters, os.O_RDWR)
f = os.open(lock, os.O_RDWR | os.O_CREAT)
for i in range(times):
    n = (i * 7 + seed) % 3
    fcntl.lockf(f, fcntl.LOCK_EX, 1, n)
    v = int(os.pread(c, 8, 8 * n))
    time.sleep(0.001)
    os.pwrite(c, b"%08d" % (v + 1), 8 * n)
    fcntl.lockf(f, fcntl.LOCK_UN, 1, n)
S
both_count() { # VAR=VALUE...
	local h p1="" p2=""
	printf '%08d' 0 0 0 >"$W/shared/counters"
	for h in 1 2; do spawn $h "$@" python3 "$W/count.py" "$F" "$W/shared/counters" 150 $h; eval "p$h=$PID"; done
	wait "$p1"; assertEquals 0 $?
	wait "$p2"; assertEquals 0 $?
	counted=$(fold -w 8 "$W/shared/counters" | awk '{ n += $1 } END { print n }')
}
# asan: no: lockf() and its unlock, as elsewhere
test_no_update_of_three_counters_behind_three_bytes_is_lost() {
	local counted
	both_count
	assertEquals 300 "$counted"
	assertNoKeys
}
# asan: no: no code of ours runs
test_the_same_counters_do_lose_updates_when_the_shim_is_disabled() {
	local counted
	with_shim || return 0
	both_count NETFLOCK_DISABLE=1
	assertTrue "they prove nothing: $counted" "[ $counted -lt 300 ]"
}

. /usr/share/shunit2/shunit2
