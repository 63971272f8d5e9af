#!/bin/bash
# Programs that use record locks, unmodified, on two hosts. Where both need the same data, each host has the folder
# through a file system of its own (bindfs), which is what a network file system without locks is like.
#
# The mounts are in a namespace of the suite's own, with which they go.
#
# asan: no: the time is other people's programs'; the other suites make the calls that those make
[ -n "${NFTEST_NS:-}" ] || NFTEST_NS=1 exec unshare -m --propagation private bash "$0" "$@"
. "$(dirname "$0")/../lib-records.sh"

# share: from here on hosts 1 and 2 have the same files in $D, and no lock of one's kernel is seen by the other's.
share() {
	local h
	need bindfs || return 1
	unshare_hosts
	mkdir -p "$W/share"
	[ "$WORLD" != kernel ] || { rm -rf "$HOSTS/all"; ln -sfn "$W/share" "$HOSTS/all"; return 0; }
	for h in 1 2; do
		mkdir -p "$W/mnt$h"; rm -rf "${HOSTS:?}/$h"; ln -sfn "$W/mnt$h" "$HOSTS/$h"
		bindfs -f -o attr_timeout=0,entry_timeout=0,negative_timeout=0,direct_io "$W/share" "$W/mnt$h" >>"$W/bindfs.log" 2>&1 &
	done
	for h in 1 2; do wait_until 'mountpoint -q "$W/mnt$h"' || { fail "no bindfs: $(cat "$W/bindfs.log")"; return 1; }; done
}
unshare_hosts() {
	local h
	for h in 1 2 all; do
		[ ! -L "$HOSTS/$h" ] || rm -f "$HOSTS/$h"
		if mountpoint -q "$W/mnt$h" 2>/dev/null; then umount -l "$W/mnt$h"; fi
	done
	rm -rf "$W/share"
}
eval "suite_$(declare -f tearDown)"
tearDown() { unshare_hosts 2>/dev/null; rm -f "$W"/shared/*; suite_tearDown; }

# until_told: a shell's words that say "ready", and end when the test says "go".
until_told="touch $W/shared/ready; until [ -e $W/shared/go ]; do sleep 0.02; done"
ready() { must '[ -e "$W/shared/ready" ]'; rm -f "$W/shared/ready"; }
go() { touch "$W/shared/go"; }

# scripts: how many Redis has run since its counters were reset.
scripts() { R info commandstats | tr -d '\r' | awk -F '[:=,]' '/^cmdstat_eval(sha)?:/ { n += $3 } END { print n + 0 }'; }
# What killed processes have left goes by itself.
assertAllExpire() {
	assertEquals "keys without an expiry" "" "$(R eval 'local r = {}
		for _, k in ipairs(redis.call("KEYS", "*")) do if redis.call("PTTL", k) < 0 then r[#r + 1] = k end end
		return r' 0)"
}

test_the_hosts_of_this_suite_share_files_and_no_locks() {
	share || return 0
	bare 1 sh -c "echo one >$D/t"; assertEquals one "$(bare 2 cat "$D/t")"
	[ "$WORLD" != kernel ] || return 0
	spawn_bare 1 flock "$D/t" sh -c "$until_told"; ready
	bare 2 flock -n "$D/t" true; assertEquals "the other host is not kept out" 0 $?
	bare 1 flock -n "$D/t" true; assertEquals "the same one is" 1 $?
	go
}

# --- SQLite -----------------------------------------------------------------------------------------------------

test_sqlite_one_writer_at_a_time() {
	local p
	need sqlite3 && share || return 0
	H 1 sqlite3 "$D/t.db" 'create table t(n)'; assertEquals 0 $?
	# Its commit has to wait too: whoever tries "begin immediate" reads for a moment.
	spawn 1 sqlite3 -cmd '.timeout 20000' "$D/t.db" 'begin immediate' 'insert into t values(1)' ".shell $until_told" 'commit'; p=$PID
	ready
	H 2 sqlite3 "$D/t.db" 'begin immediate' >"$W/out" 2>&1; status_is 5 $? "begin immediate" "$W/out"
	assertContains "$(cat "$W/out")" "database is locked"
	H 2 sqlite3 "$D/t.db" 'select count(*) from t' >"$W/out" 2>&1; status_is 0 $? "a reader meanwhile" "$W/out"
	assertEquals "sees nothing yet" 0 "$(cat "$W/out")"
	spawn 2 sqlite3 -cmd '.timeout 20000' "$D/t.db" 'begin immediate' 'insert into t values(2)' 'commit' "select count(*) from t" >"$W/out" 2>&1
	# It tries again and again, and nobody else asks just now.
	R config resetstat >/dev/null
	[ -n "$WORLD" ] || must '[ "$(scripts)" -ge 3 ]'
	assertTrue "it waits: $(cat "$W/out")" "kill -0 $PID"
	go
	wait $p; assertEquals 0 $?
	wait "$PID"; status_is 0 $? "the one that waited" "$W/out"
	assertEquals 2 "$(cat "$W/out")"
	assertNoKeys
}

test_sqlite_readers_together_and_no_writer_among_them() {
	local p q
	need sqlite3 && share || return 0
	H 1 sqlite3 "$D/t.db" 'create table t(n); insert into t values(7)'
	spawn 1 sqlite3 "$D/t.db" 'begin' 'select * from t' ".shell $until_told" 'commit' >"$W/out1"; p=$PID
	ready
	H 2 sqlite3 "$D/t.db" 'begin exclusive' >"$W/out" 2>&1; status_is 5 $? "a writer on host 2" "$W/out"
	spawn 2 sqlite3 "$D/t.db" 'begin' 'select * from t' ".shell $until_told" 'commit' >"$W/out2"; q=$PID
	ready
	H 1 sqlite3 "$D/t.db" 'begin exclusive' >"$W/out" 2>&1; status_is 5 $? "a writer on host 1" "$W/out"
	go; wait $p; assertEquals 0 $?; wait $q; assertEquals 0 $?
	assertEquals "7 7" "$(cat "$W/out1") $(cat "$W/out2")"
	H 2 sqlite3 "$D/t.db" 'begin exclusive' >"$W/out" 2>&1; status_is 0 $? "a writer afterwards" "$W/out"
	assertNoKeys
}

test_sqlite_three_hundred_inserts_of_two_hosts_into_one_database() {
	local h p1="" p2=""
	need sqlite3 && share || return 0
	cat >"$W/insert.py" <<-'S'
		import random, sqlite3, sys, time
		db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
		db.execute("pragma synchronous=off")
		db.execute("pragma busy_timeout=0")
		for i in range(150):
		    while True:
		        try:
		            db.execute("begin immediate")
		            n = db.execute("select coalesce(max(n), 0) from t").fetchone()[0]
		            db.execute("insert into t values(?, ?)", (n + 1, sys.argv[2]))
		            db.execute("commit")
		            break
		        except sqlite3.OperationalError as e:
		            if "locked" not in str(e):
		                raise
		            if db.in_transaction:
		                db.execute("rollback")
		            time.sleep(0.004 * random.random())
		db.close()
	S
	H 1 sqlite3 "$D/t.db" 'create table t(n, host)'
	for h in 1 2; do spawn $h timeout 240 python3 "$W/insert.py" "$D/t.db" $h 2>"$W/err$h"; eval "p$h=$PID"; done
	wait "$p1"; status_is 0 $? "host 1" "$W/err1"
	wait "$p2"; status_is 0 $? "host 2" "$W/err2"
	assertEquals "rows, different ones, the last one, hosts" "300|300|300|2" \
		"$(H 1 sqlite3 "$D/t.db" 'select count(*), count(distinct n), max(n), count(distinct host) from t')"
	assertEquals ok "$(H 2 sqlite3 "$D/t.db" 'pragma integrity_check')"
	assertNoKeys
}

# --- ping_pong: samba's test of a cluster's record locks ------------------------------------------------------------

# pingpong LINE... -- ARG...: on both hosts with three locks, until both have said such lines; what they say in $W/out1 and
# $W/out2.
pingpong() {
	local h l p1="" p2="" lines=()
	while [ "$1" != -- ]; do lines+=("$1"); shift; done
	shift
	for h in 1 2; do spawn $h ping_pong "$@" "$D/pp" 3 >"$W/out$h" 2>&1; eval "p$h=$PID"; done
	for h in 1 2; do for l in "${lines[@]}"; do must "tr '\\r' '\\n' <'$W/out$h' | grep -q '$l'"; done; done
	kill "$p1" "$p2"; { wait "$p1"; wait "$p2"; } 2>/dev/null
	for h in 1 2; do assertNotContains "host $h" "$(cat "$W/out$h")" failed; done
}

test_ping_pong_of_two_hosts() {
	need ping_pong || return 0
	pingpong '[1-9][0-9]* locks/sec' --
	assertAllExpire
}

test_ping_pong_with_data_counts_two_processes() {
	local h n seen
	need ping_pong && share || return 0
	pingpong '^data increment = 2' '[1-9][0-9]* locks/sec' -- -rw
	# Between two turns of one host each byte has grown by one for each that takes part: 2, but 1 while a host is alone, at
	# first or at last. Where locks fail a host may have several turns in a row.
	for h in 1 2; do
		seen=$(tr '\r' '\n' <"$W/out$h" | sed -n 's/^data increment = //p')
		assertEquals "host $h: increments that are neither" "" "$(grep -vx '[12]' <<<"$seen" | sort -nu | paste -sd' ')"
		n=$(count <<<"$seen")
		assertTrue "host $h: $n changes" "[ $n -le 8 ]"
	done
}

# --- languages ----------------------------------------------------------------------------------------------------

cat >"$W/lockf.py" <<'S'
import errno, fcntl, os, sys, time
path, how, ready, go = sys.argv[1:]
f = open(path, "r+b", 0) if os.path.exists(path) else open(path, "w+b", 0)
def attempt(call, *args):
    try:
        call(*args)
        return "OK"
    except OSError as e:
        return errno.errorcode[e.errno]
def ways(nb):
    yield attempt(fcntl.lockf, f, fcntl.LOCK_EX | nb)
    yield attempt(fcntl.lockf, f, fcntl.LOCK_EX | nb, 10, 5)
    yield attempt(fcntl.lockf, f, fcntl.LOCK_SH | nb, 10, 5, os.SEEK_SET)
    os.lseek(f.fileno(), 5, os.SEEK_SET)
    yield attempt(os.lockf, f.fileno(), os.F_TLOCK, 10)
    yield attempt(os.lockf, f.fileno(), os.F_TEST, 10)
    yield attempt(fcntl.lockf, f, fcntl.LOCK_EX | nb, 1, 100)
if how == "hold":
    fcntl.lockf(f, fcntl.LOCK_EX, 10, 0)
    open(ready, "w").close()
    while not os.path.exists(go): time.sleep(0.02)
else:
    print(*ways(fcntl.LOCK_NB))
S
test_python() {
	spawn 1 python3 "$W/lockf.py" "$F" hold "$W/shared/ready" "$W/shared/go"; ready
	assertEquals "EAGAIN EAGAIN EAGAIN EAGAIN EACCES OK" "$(H 2 python3 "$W/lockf.py" "$F" try - -)"
	go; wait "$PID"
	assertEquals "OK OK OK OK OK OK" "$(H 2 python3 "$W/lockf.py" "$F" try - -)"
	assertNoKeys
}

test_perl() {
	need perl || return 0
	cat >"$W/lock.pl" <<-'S'
		use Fcntl qw(:DEFAULT :seek);
		my ($path, $start, $len, $ready, $go) = @ARGV;
		open(my $f, "+>>", $path) or die;
		my $l = pack("s s x4 q q l x4", F_WRLCK, SEEK_SET, $start, $len, 0);
		unless (fcntl($f, F_SETLK, $l)) { print $!{EAGAIN} ? "busy" : "$!"; exit 3 }
		print "in";
		if ($ready) { open(my $r, ">", $ready); select(undef, undef, undef, 0.02) until -e $go }
	S
	spawn 1 perl "$W/lock.pl" "$F" 5 5 "$W/shared/ready" "$W/shared/go" >"$W/out"; ready
	assertEquals busy "$(H 2 perl "$W/lock.pl" "$F" 9 1)"
	assertEquals in "$(H 2 perl "$W/lock.pl" "$F" 10 0)"
	go; wait "$PID"
	assertEquals in "$(H 2 perl "$W/lock.pl" "$F" 9 1)"
	assertNoKeys
}

test_java() {
	local p
	need javac java || return 0
	mkdir -p "$W/java"
	cat >"$W/java/Lock.java" <<-'S'
		import java.nio.channels.*;
		import java.nio.file.*;
		public class Lock {
		    public static void main(String[] a) throws Exception {
		        try (FileChannel c = FileChannel.open(Path.of(a[0]), StandardOpenOption.READ, StandardOpenOption.WRITE, StandardOpenOption.CREATE)) {
		            boolean shared = a[1].equals("r");
		            if (a.length > 5) {
		                c.lock(Long.parseLong(a[2]), Long.parseLong(a[3]), shared);
		                Files.createFile(Path.of(a[4]));
		                while (!Files.exists(Path.of(a[5]))) Thread.sleep(20);
		            } else {
		                System.out.println(c.tryLock(Long.parseLong(a[2]), Long.parseLong(a[3]), shared) == null ? "busy" : "in");
		            }
		        }
		    }
		}
	S
	[ -e "$W/java/Lock.class" ] || javac -d "$W/java" "$W/java/Lock.java"; assertEquals "javac" 0 $?
	spawn 1 java -Xshare:auto -XX:TieredStopAtLevel=1 -cp "$W/java" Lock "$F" w 1 1 "$W/shared/ready" "$W/shared/go"; p=$PID; ready
	java2() { H 2 java -Xshare:auto -XX:TieredStopAtLevel=1 -cp "$W/java" Lock "$F" "$@"; }
	assertEquals "lock(1, 1)" busy "$(java2 w 1 1)"
	assertEquals "lock(1, 1, shared)" busy "$(java2 r 0 2)"
	assertEquals "lock(2, 1)" in "$(java2 w 2 1)"
	go; wait $p; assertEquals 0 $?
	assertEquals "lock(1, 1)" in "$(java2 w 1 1)"
	assertNoKeys
}

# --- the same result as without the shim -----------------------------------------------------------------------------

# same_result CMD...: on a host with the shim, and on another without; what it says (filtered by `verdicts`) and its status.
same_result() {
	bare 8 sh -c 'cd "$D" && "$@"' sh "$@" >"$W/without" 2>&1; local want=$?
	H 9 sh -c 'cd "$D" && "$@"' sh "$@" >"$W/with" 2>&1; RC=$?
	assertEquals "status ($(tail -n 3 "$W/with"))" $want $RC
	assertTrue "nothing to compare" "[ -n '$(verdicts <"$W/without" | head -c 20)' ]"
	assertEquals "$(verdicts <"$W/without")" "$(verdicts <"$W/with")"
}

test_cpythons_own_tests_of_fcntl() {
	verdicts() { grep -E '^test.* \.\.\. |^Ran |^OK|^FAILED' | sed 's/ in [0-9.]*s$//'; }
	[ -e /usr/lib/python3.11/test/test_fcntl.py ] || { echo "SKIP: libpython3.11-testsuite is not installed"; startSkipping; return 0; }
	same_result timeout 100 python3 -m unittest -v test.test_fcntl
	assertEquals 0 $RC
}

test_cpythons_own_tests_of_mailboxes() {
	verdicts() { grep -E '^test.* \.\.\. |^Ran |^OK|^FAILED' | sed 's/ in [0-9.]*s$//'; }
	[ -e /usr/lib/python3.11/test/test_mailbox.py ] || { echo "SKIP: libpython3.11-testsuite is not installed"; startSkipping; return 0; }
	# Those that lock; each sleeps where a mailbox's time stamps need it.
	same_result timeout 100 python3 -m unittest -v -k lock -k Mbox -k MMDF test.test_mailbox
	assertEquals 0 $RC
	assertNoKeys
}

test_stress_ng_verifies_its_locks() {
	need stress-ng || return 0
	verdicts() { sed -n 's/.*stress-ng: \(fail\|error\).*/\1/p; s/.*\(successful run completed\|unsuccessful run\).*/\1/p' | sort -u; }
	same_result stress-ng --temp-path . --verify --flock 2 --flock-ops 300 --lockf 2 --lockf-ops 300 \
		--lockofd 2 --lockofd-ops 300 --locka 2 --locka-ops 300 --timeout 60
	assertEquals 0 $RC
	assertAllExpire
}

# --- commands -------------------------------------------------------------------------------------------------------

test_lckdo_and_with_lock_ex_on_ranges() {
	local c p
	need lckdo with-lock-ex || return 0
	for c in 'lckdo -W 20' 'with-lock-ex -w'; do
		# shellcheck disable=SC2086 # words
		spawn 1 $c "$F" sh -c "$until_told"; p=$PID; ready
		# shellcheck disable=SC2086
		spawn 2 $c "$F" touch "$W/shared/in"
		cast b@3; says EAGAIN b pset x r set 0 1
		assertFalse "$c" '[ -e "$W/shared/in" ]'
		go; wait $p; assertEquals "$c" 0 $?
		must '[ -e "$W/shared/in" ]'
		wait "$PID"; assertEquals "$c" 0 $?
		actors_end b; actors_close
		rm -f "$W"/shared/*
	done
	assertNoKeys
}

test_procmail_waits_for_the_mailbox() {
	local p
	need procmail || return 0
	bare 2 sh -c "touch $D/mbox; chmod 666 $D/mbox"
	cast a@1
	says OK a open m rw keep "$D/mbox"; says OK a pset m w set 0 0
	printf 'DEFAULT=%s\nMAILDIR=%s\nLOGFILE=%s\n' "$D/mbox" "$D" "$W/procmail.log" >"$W/procmailrc"
	cat >"$W/mail" <<-'S'
		From nobody@example.org Thu Jan  1 00:00:00 2026
		Subject: one

		text
	S
	# Debian's is set-group-id, which no preload reaches; without -p it clears its environment.
	cp /usr/bin/procmail "$W/procmail"; chmod 755 "$W/procmail"
	spawn_told "$W/mail" 2 "$W/procmail" -p -m "$W/procmailrc"; p=$PID
	# In the kernel, or in the queue.
	must 'grep -q "^72 " "/proc/$p/syscall" || [ "$(R zcard "netflock:{lock:$D/mbox}:rqueue")" = 1 ]'
	assertEquals "it has delivered already" "" "$(bare 2 cat "$D/mbox" | head -n 1)"
	says OK a pset m u set 0 0
	wait $p; assertEquals 0 $?
	assertContains "$(bare 2 cat "$D/mbox")" "Subject: one"
	quiet_end
}

test_dpkg_locks_its_database() {
	local h p
	need dpkg dpkg-deb || return 0
	mkdir -p "$W/pkg/DEBIAN"
	printf 'Package: netflock-trial\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: trial\n' >"$W/pkg/DEBIAN/control"
	printf '#!/bin/sh\n%s\n' "$until_told" >"$W/pkg/DEBIAN/preinst"; chmod 755 "$W/pkg/DEBIAN/preinst"
	dpkg-deb --root-owner-group -b "$W/pkg" "$W/trial.deb" >/dev/null; assertEquals 0 $?
	for h in 1 2; do bare $h sh -c "mkdir -p $D/dpkg/info $D/dpkg/updates $D/dpkg/triggers; : >>$D/dpkg/status; : >>$D/dpkg/available"; done
	install_on() { H "$1" timeout 60 dpkg --admindir="$D/dpkg" --instdir="$W/inst$1" --force-script-chrootless --log="$W/dpkg.log" -i "$W/trial.deb"; }
	mkdir -p "$W/inst1" "$W/inst2"
	install_on 1 >"$W/out1" 2>&1 & p=$!
	ready
	# Should host 2 get in, it would wait, too, and time out.
	install_on 2 >"$W/out2" 2>&1; status_is 2 $? "dpkg on host 2" "$W/out2"
	assertContains "$(cat "$W/out2")" "lock"
	go; wait $p; status_is 0 $? "dpkg on host 1" "$W/out1"
	install_on 2 >"$W/out2" 2>&1; status_is 0 $? "dpkg on host 2, afterwards" "$W/out2"
	assertNoKeys
}

. /usr/share/shunit2/shunit2
