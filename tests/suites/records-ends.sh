#!/bin/bash
# When record locks end: those of a process with any close, with the process, not with exec, never in a child; those
# of an open file description with its last descriptor.
. "$(dirname "$0")/../lib-records.sh"

# drops COMMAND: process a locks through x, and then COMMAND closes another descriptor of the file, or x.
drops() {
	says OK a pset x w set 0 10; says OK a pset x r set 20 5
	taken b 0 1; taken b 20 1
	says OK a "$@"
	free b 0 10; free b 20 5
}

test_closing_any_descriptor_of_the_file_drops_a_process_locks() {
	cast a@1 b@2
	says OK a open y r keep "$F"
	drops close y
	says OK a dup x y dup; drops close y
	says OK a dup x y dup2; drops close y
	says OK a dup x y dupfd_cloexec; drops close y
	says OK a fopen y "$F"; drops fclose y
	says OK a open y w keep "$F"; says OK a open z rw keep "$D/other"
	drops dupover z y
	says OK a open y rw keep "$F"; drops closerange y y
	drops close x
	quiet_end
}

test_closefrom_drops_too() {
	cast a@1 b@2
	says OK a dup x y dup2
	drops closefrom y
	quiet_end
}

# asan: no: a close, as in the first test
test_a_second_name_of_the_file_is_the_same_file_for_a_close() {
	local h
	for h in 1 2; do bare $h sh -c "touch $F; ln -f $F $D/second"; done
	cast a@1 b@2
	says OK a open y r keep "$D/second"
	drops close y
	quiet_end
	for h in 1 2; do bare $h rm -f "$D/second"; done
}

test_what_does_not_drop_them() {
	cast a@1 b@2
	says OK a pset x w set 0 10
	says OK a open p path keep "$F"; says OK a close p
	taken b 9 1
	says OK a open y rw keep "$D/other"; says OK a pset y w set 0 10; says OK a close y
	taken b 9 1
	says OK a open r w keep "$F"
	says OK a trunc x 0; taken b 9 1
	says "OK 0" a sh "cat $F >/dev/null"; taken b 9 1 # a child's descriptor is the child's
	says OK a close r; free b 9 1
	quiet_end
}

# asan: no: records-model.sh does that there, at random
test_locks_of_a_description_outlive_other_descriptors() {
	cast a@1 b@2
	says OK a oset x w set 0 10; says OK a flock x ex
	says OK a open y rw keep "$F"; says OK a close y
	says OK a dup x z dup
	says OK a close x
	taken b 0 1; says EAGAIN b oset x r set 9 1; says EAGAIN b flock x sh
	says OK a close z
	gets_free b 0 10
	must 'answers OK b flock x sh'
	says OK b flock x un
	quiet_end
}

# asan: no: records-model.sh does that there, at random
test_a_child_has_none_of_its_parents_and_cannot_drop_them() {
	cast a@1 b@2
	says OK a pset x w set 0 10
	says OK a fork child # from here on the child is asked
	says EAGAIN a pset x w set 0 1
	says OK a pset x w set 20 5
	taken b 0 1; taken b 20 1
	says OK a pset x u set 0 0
	taken b 0 1; free b 20 1
	says OK a pset x r set 20 5
	says OK a close x
	taken b 0 1; free b 20 1
	says OK a open x rw keep "$F"
	says EAGAIN a pset x r set 9 1
	says OK a pset x w set 30 1
	says OK a parent # goes on
	gets_free b 30 1
	taken b 0 1
	says OK a pset x u set 0 0
	free b 0 0
	quiet_end
}

# asan: no: an exit and a fork, as elsewhere
test_a_parent_that_ends_takes_its_locks_along() {
	# daemon() after lockf(): the well-known mistake. The child lives, the lock does not.
	cat >"$W/daemon.py" <<-'S'
		import fcntl, os, sys, time
		f = open(sys.argv[1], "w")
		fcntl.lockf(f, fcntl.LOCK_EX)
		open(sys.argv[2] + "1", "w").close()
		while not os.path.exists(sys.argv[3] + "1"):
		    time.sleep(0.02)
		if os.fork():
		    os._exit(0)
		open(sys.argv[2], "w").close()
		while not os.path.exists(sys.argv[3]):
		    time.sleep(0.02)
	S
	cast b@2
	spawn 1 python3 "$W/daemon.py" "$F" "$W/shared/child" "$W/shared/over"; local p=$PID
	must '[ -e "$W/shared/child1" ]'
	taken b 0 1
	touch "$W/shared/over1"
	must '[ -e "$W/shared/child" ]'
	wait $p; assertEquals 0 $?
	gets_free b 0 0
	touch "$W/shared/over"
	quiet_end
	rm -f "$W"/shared/{child,over}{,1}
}

# asan: no: records-model.sh does that there, at random
test_a_childs_unlock_of_a_description_is_everybodys() {
	cast a@1 b@2
	says OK a oset x w set 0 10; says OK a oset x w set 20 10
	says OK a fork child
	says OK a oset x w set 5 1
	says OK a oset x u set 0 10
	free b 0 10; taken b 20 1
	says OK a close x; taken b 20 1
	says OK a open x rw keep "$F"
	says EAGAIN a oset x r set 20 1
	says OK a parent # goes on
	taken b 20 1
	says OK a oset x w set 0 10; taken b 0 1
	says OK a close x
	gets_free b 0 30
	quiet_end
}

test_locks_of_a_description_live_on_in_a_child() {
	cast a@1 b@2
	says OK a oset x w set 0 10
	says "OK 0" a sh "(until [ -e $W/shared/over ]; do sleep 0.02; done) & exit 0"
	says OK a close x
	taken b 0 1
	killed a
	taken b 0 1
	touch "$W/shared/over"
	gets_free b 0 10
	quiet_end b
	rm -f "$W/shared/over"
}

test_a_process_keeps_its_locks_over_exec() {
	local -x NF_TTL=1s
	cast a@1 b@2
	says OK a pset x w set 0 10; says OK a pset x r set 20 5; says OK a oset x w set 40 1
	says OK a exec
	stays 'answers EAGAIN b pset x r set 9 1 && answers EAGAIN b pset x w set 20 1 && answers EAGAIN b pset x r set 40 1' 1600
	says OK b pset x r set 20 5; says OK b pset x u set 0 0
	# The new program has them, and can do with them what it likes.
	says OK a pset x w set 5 10
	taken b 14 1
	says OK a pset x u set 0 5; gets_free b 0 5
	says OK a open y r keep "$F"; says OK a close y
	gets_free b 0 40
	taken b 40 1
	says OK a close x
	gets_free b 0 0
	quiet_end
}

# asan: no: records-model.sh does that there, at random
test_close_on_exec_drops_them() {
	cast a@1 b@2
	says OK a open y rw cloexec "$F"
	says OK a pset x w set 0 10; says OK a oset x w set 20 10; says OK a oset y w set 40 10
	says OK a exec
	gets_free b 0 10; gets_free b 40 10
	taken b 20 1
	quiet_end a
	gets_free b 20 10
	quiet_end b
}

# asan: no: an exec, as in the other tests
test_exec_into_another_program() { # Python: lockf(), inheritable, execv("sleep")
	local p
	cast b@2
	cat >"$W/exec.py" <<-'S'
		import fcntl, os, sys
		f = open(sys.argv[1], "w")
		fcntl.lockf(f, fcntl.LOCK_EX)
		os.set_inheritable(f.fileno(), len(sys.argv) > 2)
		os.execv("/usr/bin/sleep", ["sleep", "60"])
	S
	spawn 1 python3 "$W/exec.py" "$F" keep; p=$PID
	must '[ "$(cat /proc/$p/comm)" = sleep ]'
	taken b 0 1
	kill $p; { wait $p; } 2>/dev/null
	gets_free b 0 1
	spawn 1 python3 "$W/exec.py" "$F"; p=$PID
	must '[ "$(cat /proc/$p/comm)" = sleep ]'
	gets_free b 0 1
	kill $p; { wait $p; } 2>/dev/null
	quiet_end
}

# asan: no: records-model.sh does that there, at random
test_they_are_gone_after_exit() {
	local how
	for how in exit _exit; do
		cast a@1 b@2 c@1
		says OK a pset x w set 0 10; says OK a oset x r set 20 0
		taken b 0 1; taken b 20 1
		tell a $how 0; { wait "${ACT_PID[a]}"; } 2>/dev/null
		says OK c pset x w set 0 10 # a local contender does not wait for anything
		says OK c pset x u set 0 0
		gets_free b 0 0
		quiet_end b c
		actors_close
	done
}

# server_ms: what time it is for Redis, by which leases end.
server_ms() { R eval 'local t = redis.call("TIME"); return string.format("%d", t[1] * 1000 + math.floor(t[2] / 1000))' 0; }

test_a_killed_holders_locks_are_free_on_its_host_at_once_and_elsewhere_with_the_lease() {
	local end now
	cast a@1 b@2 c@1
	NF_TTL=1s cast z@1
	says OK z open y rw keep "$D/other"; says OK b open y rw keep "$D/other"
	says OK a pset x w set 0 10; says OK a pset x r set 20 10; says OK z pset y w set 0 10
	killed a z
	# Whoever contends on its host does not wait for a lease, which is a long one here.
	says OK c pset x w set 5 10
	says OK c pset x w set 20 1
	taken b 5 1; taken b 20 1
	with_shim || return 0
	taken b 0 5; taken b 21 9
	end=$(R zrange "netflock:{lock:$D/other}:leases" 0 0 withscores | sed -n 2p) # empty: it is over already
	must 'answers OK b pset y w set 0 10'
	now=$(server_ms)
	assertTrue "by the server's clock at $now, before the lease's end at ${end:=0}" "[ $now -ge $end ]"
	actors_end b c
	must '! leftover_keys | grep -qF other'
}

test_a_killed_holder_with_a_keeper_frees_them_at_once() {
	with_shim || return 0
	cast b@2
	actor a 1 NETFLOCK_KEEPER=always; ACT_HOST[a]=1
	says OK a open x rw keep "$F"
	says OK a pset x w set 0 10; says OK a oset x w set 20 10
	taken b 0 1; taken b 20 1
	killed a
	gets_free b 0 30
	quiet_end b
}

# asan: no: an exit, as elsewhere
test_a_zombie_holds_nothing() {
	cast b@2
	cat >"$W/zombie.py" <<-'S'
		import fcntl, os, sys, time
		pid = os.fork()
		if pid == 0:
		    f = open(sys.argv[1], "w")
		    fcntl.lockf(f, fcntl.LOCK_EX)
		    open(sys.argv[2] + "1", "w").close()
		    while not os.path.exists(sys.argv[3] + "1"):
		        time.sleep(0.02)
		    os._exit(0)
		os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
		open(sys.argv[2], "w").close()
		while not os.path.exists(sys.argv[3]):
		    time.sleep(0.02)
	S
	spawn 1 python3 "$W/zombie.py" "$F" "$W/shared/zombie" "$W/shared/over"
	must '[ -e "$W/shared/zombie1" ]'
	taken b 0 1
	touch "$W/shared/over1"
	must '[ -e "$W/shared/zombie" ]'
	gets_free b 0 0
	touch "$W/shared/over"
	quiet_end
	rm -f "$W"/shared/{zombie,over}{,1}
}

# The process is the owner: it does not matter which of its threads locked, nor whether that one has ended.
cat >"$W/threads.py" <<'S'
import fcntl, os, sys, threading, time
how, path, ready, go = sys.argv[1:]
f = open(path, "w")
t = threading.Thread(target=fcntl.lockf, args=(f, fcntl.LOCK_EX, 10, 0)); t.start(); t.join()
def work():
    while True:
        fcntl.lockf(f, fcntl.LOCK_EX, 1, 50); fcntl.lockf(f, fcntl.LOCK_UN, 1, 50)
for _ in range(3): threading.Thread(target=work, daemon=True).start()
def wait():
    while not os.path.exists(go): time.sleep(0.01)
open(ready, "w").close()
if how == "main":
    wait()
    sys.exit(0)
if how == "exit-from-a-thread":
    t = threading.Thread(target=lambda: (wait(), os._exit(0))); t.start(); t.join()
if how == "signal":
    wait()
    os.kill(os.getpid(), 15)
S
test_exit_of_a_program_with_several_threads() {
	local how p ttl
	cast b@2
	for how in main exit-from-a-thread signal; do
		ttl=$AGES
		[ $how != signal ] || ttl=1s # nobody gives up what it had
		spawn 1 NETFLOCK_TTL=$ttl python3 "$W/threads.py" $how "$F" "$W/shared/ready" "$W/shared/go"; p=$PID
		must '[ -e "$W/shared/ready" ]'
		taken b 0 1; taken b 9 1; free b 10 1
		touch "$W/shared/go"
		wait_until '! kill -0 $p 2>/dev/null' || fail "$how: it does not end"
		{ wait $p; } 2>/dev/null
		gets_free b 0 0
		rm -f "$W/shared/ready" "$W/shared/go"
	done
	quiet_end
}

test_a_description_that_is_passed_on_takes_its_locks_along() {
	cast a@1 b@2 c@1
	says OK a oset x w set 0 10; says OK a pset x w set 20 10
	tell c recv y "$W/shared/pass"
	says OK a send x "$W/shared/pass"
	is_told OK c
	says OK c oset y w set 5 1
	says EAGAIN c pset y w set 20 1
	says OK a close x
	taken b 0 1; free b 20 1
	actors_end a
	taken b 0 1
	says OK c oset y u set 0 5; gets_free b 0 5; taken b 5 1
	says OK c close y
	gets_free b 0 10
	quiet_end b c
}

test_what_a_receiver_unlocks_is_free_for_other_hosts_when_the_call_returns() {
	local i
	cast a@1 b@2 c@1
	says OK a oset x w set 0 20
	tell c recv y "$W/shared/pass"
	says OK a send x "$W/shared/pass"
	is_told OK c
	for i in 0 1 2 3 4; do says OK c oset y u set $i 1; free b $i 1; done
	says OK a close x
	for i in 5 6 7 8 9; do says OK c oset y u set $i 1; free b $i 1; done
	taken b 10 10
	says OK c oset y u set 0 0; free b 0 20
	quiet_end
}

# asan: no: a close, as in the first test
test_renamed_or_removed_while_locked() {
	cast a@1 b@2
	says OK a pset x w set 0 10
	bare 1 mv "$F" "$D/elsewhere"
	taken b 0 1
	says OK a pset x u set 0 5
	[ "$WORLD" = apart ] || free b 0 5
	taken b 5 1
	bare 1 mv "$D/elsewhere" "$F"
	bare 1 rm -f "$F"
	says OK a close x
	gets_free b 0 10
	quiet_end
}

test_a_child_of_vfork_and_of_posix_spawn_drops_nothing() {
	local p
	cast b@2
	cat >"$W/children.py" <<-'S'
		import fcntl, os, subprocess, sys, time
		f = open(sys.argv[1], "w")
		g = open(sys.argv[1], "r")
		fcntl.lockf(f, fcntl.LOCK_EX, 10, 0)
		os.set_inheritable(g.fileno(), True)
		subprocess.run(["true"], close_fds=True)
		subprocess.run(["cat", sys.argv[1]], close_fds=False)
		os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
		os.waitpid(os.posix_spawn("/bin/cat", ["cat", sys.argv[1]], os.environ, file_actions=[(os.POSIX_SPAWN_CLOSE, g.fileno())]), 0)
		os.popen("cat " + sys.argv[1]).read()
		open(sys.argv[2], "w").close()
		while not os.path.exists(sys.argv[3]):
		    time.sleep(0.02)
		g.close()
		open(sys.argv[3] + "2", "w").close()
		time.sleep(60)
	S
	spawn 1 python3 "$W/children.py" "$F" "$W/shared/ready" "$W/shared/go"; p=$PID
	must '[ -e "$W/shared/ready" ]'
	taken b 0 1; taken b 9 1
	touch "$W/shared/go"; must '[ -e "$W/shared/go2" ]'
	gets_free b 0 10
	kill $p; { wait $p; } 2>/dev/null
	rm -f "$W"/shared/{ready,go,go2}
	quiet_end
}

. /usr/share/shunit2/shunit2
