#!/bin/bash
# Everything of a job is killed at one blow, without a PID namespace: by a service manager, a batch system, a CI runner. The
# keeper has left the job's control group (as root), its session and its process group, so the lock is free for other hosts
# at once, although the lease is longer than anybody waits here. Where it could not leave, or where there is none, the lock
# stays for the lease.
. "$(dirname "$0")/../lib.sh"

CG=/sys/fs/cgroup
V2=$CG/unified; [ ! -e $CG/cgroup.procs ] || V2=$CG
GROUP=$NFTEST
OURS=$V2/netflock
HAD_OURS=; [ ! -d "$OURS" ] || HAD_OURS=1

# group DIR...: makes the suite's group in these hierarchies; others are skipped, which is said.
group() {
	local d
	for d; do
		[ -d "$d/$GROUP" ] || mkdir "$d/$GROUP" 2>/dev/null || { echo "SKIP: no control group can be made in $d"; startSkipping; return 1; }
	done
}
suite_teardown() {
	rmdir "$CG"/*/"$GROUP" "$CG/$GROUP" 2>/dev/null
	[ -n "$HAD_OURS" ] || rmdir "$OURS" 2>/dev/null # not if a keeper of somebody else's is in there
}

# What is frozen cannot be killed, nor waited for, also when the suite itself is stopped.
eval "$(declare -f kill_strays | sed '1s/.*/kill_thawed ()/')"
kill_strays() {
	[ ! -e "$CG/freezer/$GROUP/freezer.state" ] || echo THAWED >"$CG/freezer/$GROUP/freezer.state"
	[ ! -e "$V2/$GROUP/cgroup.freeze" ] || echo 0 >"$V2/$GROUP/cgroup.freeze"
	kill_thawed
}

# job "DIR..." N [VAR=VALUE...] CMD...: on host N, in the suite's group of these hierarchies; $PID is the command's own.
job() {
	# shellcheck disable=SC2016 # the inner shell is to expand these
	bash -c 'for d in $1; do echo $$ >"$d/$2/cgroup.procs" || exit 1; done; shift 2; exec "$@"' job "$1" "$GROUP" "$TESTS/host" -s "${@:2}" &
	PID=$!
}
members() { cat "$1/$GROUP/cgroup.procs"; }
everybody_left() { [ -n "$(keepers)" ] && ! grep -qxF "$(keepers; guards)" "$1/$GROUP/cgroup.procs"; }
# left DIR: the keeper and its guard are there, and not in the group.
left() { must '[ -n "$(guards)" ] && everybody_left '"$1" '' "the keeper leaves $1:"; }

# --- who holds, and who kills -----------------------------------------------------------------------------------

# holder KIND "DIR..." [VAR=VALUE...]
PY='import fcntl, os, subprocess, sys, time
f = open(sys.argv[1], "a"); os.set_inheritable(f.fileno(), True); fcntl.flock(f, fcntl.LOCK_EX)'
holder() {
	case $1 in
	flock) job "$2" 1 "${@:3}" flock "$F" sleep 600 ;;
	shell) job "$2" 1 "${@:3}" bash -c "exec 9>$F; flock 9; sleep 600; :" ;;
	python) job "$2" 1 "${@:3}" python3 -c "$PY; time.sleep(600)" "$F" ;;
	closed) job "$2" 1 "${@:3}" python3 -c "$PY; subprocess.run(['sleep', '600'])" "$F" ;; # the child has not the descriptor
	child) job "$2" 1 "${@:3}" python3 -c "$PY; subprocess.run(['sleep', '600'], close_fds=False)" "$F" ;;
	esac
	wait_held "$F"
}

kill_all() { # DIR: what systemd ends with, and runtimes where there is no cgroup.kill
	local pids
	while pids=$(members "$1") && [ -n "$pids" ]; do
		# shellcheck disable=SC2086 # numbers
		kill -KILL $pids 2>/dev/null
	done
}
systemd_stop() { # DIR: KillMode=control-group
	# shellcheck disable=SC2046 # numbers
	kill -TERM $(members "$1") 2>/dev/null
	nap 0.1
	kill_all "$1"
}
cgroup_kill() { echo 1 >"$1/$GROUP/cgroup.kill"; }
freezer_kill() { # frozen first: nobody can do anything between the first signal and the last
	echo FROZEN >"$1/$GROUP/freezer.state"
	must 'grep -q FROZEN '"$1/$GROUP"'/freezer.state'
	# shellcheck disable=SC2046 # numbers
	kill -KILL $(members "$1")
	echo THAWED >"$1/$GROUP/freezer.state"
}

free_now() { # MESSAGE
	must '[ "$(busy "$F")" = 0 ]' '' "$1: free for another host;"
	must '[ -z "$(keepers)$(guards)" ]' '' "$1: the keeper leaves;"
	assertNoKeys
}
# Nobody is left who could renew or release: what is there ends with its lease.
stays_for_the_lease() { # MESSAGE
	must '[ -z "$(strays)" ]' '' "$1: all are gone;"
	assertEquals "$1: another host waits" 1 "$(busy "$F")"
	assertBetween "$1: for the lease" 30000 90000 "$(R pttl "lock:$F")"
	R flushall >/dev/null
}
reap() { { wait "$PID"; } 2>/dev/null; }

# --- control groups ---------------------------------------------------------------------------------------------

# each_in KILL DIR
each_in() {
	local kind
	group "$2" || return
	for kind in flock shell child; do
		holder $kind "$2"; left "$2"
		"$1" "$2"; reap; free_now "$1 $kind"
	done
	holder python "$2" NETFLOCK_KEEPER=always; left "$2"
	"$1" "$2"; reap; free_now "$1 python with a keeper"
	for kind in python closed; do
		holder $kind "$2"
		"$1" "$2"; reap; stays_for_the_lease "$1 $kind, without a keeper"
	done
}
test_cgroup_kill() { each_in cgroup_kill "$V2"; }
test_all_of_a_v2_group_are_killed() { each_in kill_all "$V2"; }
test_a_unit_is_stopped_v2() { each_in systemd_stop "$V2"; }
test_a_unit_is_stopped_v1() { each_in systemd_stop $CG/systemd; }
test_all_of_a_unit_are_killed_v1() { each_in kill_all $CG/systemd; }
test_a_batch_job_is_killed_by_its_freezer() { each_in freezer_kill $CG/freezer; }

test_a_unit_that_ignores_sigterm() {
	group "$V2" || return
	job "$V2" 1 bash -c "trap '' TERM; exec 9>$F; flock 9; sleep 600; :"; wait_held "$F"; left "$V2"
	systemd_stop "$V2"; reap; free_now "killed in the end"
}

test_record_locks_of_a_killed_group_are_free() {
	group "$V2" || return
	job "$V2" 1 NETFLOCK_KEEPER=always python3 -c "import fcntl, sys, time
f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); open(sys.argv[2], 'w'); time.sleep(600)" "$F" "$W/shared/has"
	must '[ -e "$W/shared/has" ]'; left "$V2"
	cgroup_kill "$V2"; reap
	must 'H 2 python3 -c "import fcntl, sys; fcntl.lockf(open(sys.argv[1], \"a\"), fcntl.LOCK_EX | fcntl.LOCK_NB)" "$F" 2>/dev/null'
	assertNoKeys
}

test_a_frozen_job_keeps_its_lock() {
	group $CG/freezer "$V2" || return
	local NF_TTL=1s
	holder flock $CG/freezer; left $CG/freezer
	echo FROZEN >$CG/freezer/"$GROUP"/freezer.state
	keeps "$F" 3000 "frozen, v1"
	assertEquals 1 "$(busy "$F")"
	echo THAWED >$CG/freezer/"$GROUP"/freezer.state
	kill_all $CG/freezer; reap; free_now "thawed, v1"
	holder flock "$V2"; left "$V2"
	echo 1 >"$V2/$GROUP/cgroup.freeze"
	keeps "$F" 3000 "frozen, v2"
	assertEquals 1 "$(busy "$F")"
	echo 0 >"$V2/$GROUP/cgroup.freeze"
	kill_all "$V2"; reap; free_now "thawed, v2"
}

test_the_keeper_leaves_no_group_that_limits() {
	local all="$CG/pids $CG/freezer $CG/systemd $V2"
	# shellcheck disable=SC2086 # words
	group $all || return
	holder flock "$all"; left "$V2"
	local line seen
	for line in $(sed 's/^[0-9]*://' "/proc/$PID/cgroup"); do
		seen=$(sed 's/^[0-9]*://' "/proc/$(keepers)/cgroup" | grep "^${line%:*}:")
		case ${line%:*} in
		'') assertEquals ":/netflock" "$seen" ;;
		freezer | name=systemd) assertEquals "${line%:*}:/" "$seen" ;;
		*) assertEquals "as the program" "$line" "$seen" ;;
		esac
	done
	assertEquals "the guard is where the keeper is" "$(cat "/proc/$(keepers)/cgroup")" "$(cat "/proc/$(guards)/cgroup")"
}

test_one_that_comes_to_a_keeper_outside_is_safe_too() {
	# The keeper that the first one started has the second one's lock, too.
	group "$V2" || return
	job "$V2" 1 bash -c "exec 9>$F; flock -s 9; sleep 600; :"; wait_held "$F"; left "$V2"
	local first=$PID
	job "$V2" 1 bash -c "exec 9>$F; flock -s 9; touch $W/shared/second; sleep 600; :"
	must '[ -e "$W/shared/second" ]'
	must '[ "$(keepers | count)" = 1 ]'
	cgroup_kill "$V2"; reap; { wait $first; } 2>/dev/null
	free_now "both"
}

test_a_guard_outside_takes_over() {
	group "$V2" || return
	holder flock "$V2"; left "$V2"
	local k; k=$(keepers)
	kill -KILL "$k"
	must '[ -n "$(keepers)" ] && [ "$(keepers)" != "$k" ]'
	left "$V2"
	cgroup_kill "$V2"; reap; free_now "after its keeper"
}

# --- where the keeper cannot leave ----------------------------------------------------------------------------------

test_a_service_with_a_user_of_its_own() {
	group "$V2" || return
	: >>"$HOSTS/1/x"; chmod 666 "$HOSTS/1/x"
	job "$V2" 1 setpriv --reuid=65534 --regid=65534 --clear-groups flock "$F" sleep 600; wait_held "$F"
	must '[ -n "$(guards)" ]'
	cgroup_kill "$V2"; reap; stays_for_the_lease "not root"
	job "$V2" 1 setpriv --reuid=65534 --regid=65534 --clear-groups flock "$F" sleep 600; wait_held "$F"
	must '[ -n "$(guards)" ]'
	# SIGTERM first: the keeper does not mind it, and sees the others end.
	# shellcheck disable=SC2046 # numbers
	kill -TERM $(members "$V2"); reap; free_now "not root, stopped"
}

test_a_tree_that_cannot_be_written() {
	group "$V2" $CG/systemd || return
	job "$V2 $CG/systemd" 1 sh -c "for d in $V2 $CG/systemd; do mount --bind \$d \$d && mount -o remount,bind,ro \$d || exit 1; done
		exec flock '$F' sleep 600"
	wait_held "$F"; must '[ -n "$(guards)" ]'
	assertContains "$(members "$V2")" "$(keepers)"
	assertContains "$(members $CG/systemd)" "$(keepers)"
	cgroup_kill "$V2"; reap; stays_for_the_lease "read only"
}

test_in_a_pid_namespace_without_a_cgroup_namespace_it_stays() {
	group "$V2" $CG/systemd || return
	job "$V2 $CG/systemd" 1 unshare -pf --kill-child --mount-proc flock "$F" sleep 600; wait_held "$F"
	must '[ -n "$(guards)" ]'
	local g; g=$(guards)
	# Its own look, and then another guard's.
	H 1 flock -n "$F" true
	assertContains "$(members "$V2")" "$(keepers)"
	assertContains "$(members $CG/systemd)" "$(keepers)"
	kill -KILL "$g"
	must '[ -n "$(guards)" ] && [ "$(guards)" != "$g" ]'
	assertContains "$(members "$V2")" "$(keepers)"
	kill_all "$V2"; reap; R flushall >/dev/null
}

# --- process groups and sessions ------------------------------------------------------------------------------------

# leader KIND [VAR=VALUE...]: the holder leads a session, and so a process group.
leader() {
	local cmd
	case $1 in
	flock) cmd=(flock "$F" sleep 600) ;;
	shell) cmd=(bash -c "exec 9>$F; flock 9; sleep 600; :") ;;
	python) cmd=(python3 -c "$PY; time.sleep(600)" "$F") ;;
	esac
	setsid "$TESTS/host" -s 1 "${@:2}" "${cmd[@]}" &
	PID=$!
	wait_held "$F"
}
group_kill() { kill -KILL -- -"$PID"; }
# shellcheck disable=SC2046 # numbers
session_kill() { kill -KILL $(ps -o pid= -s "$PID"); }

test_a_process_group_or_a_session_is_killed() {
	local how kind
	for how in group_kill session_kill; do
		for kind in flock shell; do
			leader $kind; must '[ -n "$(keepers)" ]'
			$how; reap; free_now "$how $kind"
		done
		leader python NETFLOCK_KEEPER=always; must '[ -n "$(keepers)" ]'
		$how; reap; free_now "$how python with a keeper"
		leader python
		$how; reap; stays_for_the_lease "$how python without a keeper"
	done
}

test_one_who_survives_in_a_session_of_his_own_keeps_it() {
	setsid "$TESTS/host" -s 1 flock "$F" setsid sleep 600 & PID=$!
	wait_held "$F"; must '[ -n "$(named sleep)" ]'
	group_kill; reap
	assertEquals "the kernel says so" 1 "$(bare 1 flock -n "$F" true; echo $?)"
	assertEquals "so does Redis" 1 "$(busy "$F")"
	# shellcheck disable=SC2046 # a number
	kill -KILL $(named sleep); free_now "he too"
}

test_timeout_that_kills() {
	H 1 timeout -s KILL 1 flock "$F" sleep 600; assertEquals 137 $?
	free_now "flock"
	H 1 timeout -s KILL 1 bash -c "exec 9>$F; flock 9; sleep 600; :"; assertEquals 137 $?
	free_now "shell"
	H 1 timeout -s KILL 1 python3 -c "$PY; time.sleep(600)" "$F"; assertEquals 137 $?
	stays_for_the_lease "python without a keeper"
}

. /usr/share/shunit2/shunit2
