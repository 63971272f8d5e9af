#!/usr/bin/python3
"""Record locks on three hosts against the plain kernel: the same random calls are made by processes that share one inode,
without the shim, and by processes on three hosts with inodes of their own, with it. Every answer has to be the same, the
same calls have to block and to be let in, and the kernels' and Redis' tables have to agree with one simple model.

A call that may block is made only where its outcome is determined: when two waiters would compete for one range, or the
kernel would follow one of several holders in search of a deadlock, the call is made without waiting.

A redis-server of its own, mounts of their own (tests/host); needs root, and the probes built (make -C tests).
"""
import argparse
import collections
import itertools
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import table  # noqa: E402: a sibling, which shall leave nothing in the sources

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOSTS = (1, 1, 1, 2, 2, 3, 3)  # of the actors
KEPT = 3  # the host whose processes have a keeper always
REFERENCE = 9  # the "host" of the plain kernel
MAX = table.MAX
PATIENCE = 20  # for what must happen, on a busy machine, too
MOMENT = 10  # for what may be otherwise for a moment: see call()
LONG_LEASE = 60000  # whoever is killed is one with a keeper: nobody waits for the end of such a lease


class Mismatch(Exception):
    pass


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--seed", type=int, help="default: random")
    p.add_argument("--steps", type=int, default=3000)
    p.add_argument("--seconds", type=float, default=0, help="stop after so long, whatever --steps says")
    p.add_argument("--ttl", type=int, default=4000, help="ms")
    p.add_argument("--every", type=int, default=60, help="steps between two looks at all the kernels' tables")
    p.add_argument("--disable", action="store_true", help="NETFLOCK_DISABLE=1: there must be differences")
    p.add_argument("--build", default=os.environ.get("BUILD", os.path.join(os.path.dirname(TESTS), "build")))
    p.add_argument("--preload", default=os.environ.get("NF_PRELOAD"), help="default: libnetflock.so of the build")
    p.add_argument("--trace", action="store_true", help="print every step")
    p.add_argument("--monitor", metavar="FILE", help="write down what Redis is asked")
    o = p.parse_args()
    o.build = os.path.abspath(o.build)
    o.preload = o.preload or o.build + "/libnetflock.so"
    if o.seed is None:
        o.seed = random.SystemRandom().randrange(1 << 31)
    return o


class Peer:
    """One process of one world: the plain kernel's, or that with the shim."""

    def __init__(self, conn, pid):
        self.conn, self.pid, self.buf = conn, pid, b""

    def send(self, line):
        try:
            self.conn.sendall(line.encode() + b"\n")
        except BrokenPipeError:
            pass  # to be noticed by who reads the answer

    def read(self, seconds):
        """An answer; None if there is none in time; "EOF"."""
        end = time.monotonic() + seconds
        while b"\n" not in self.buf:
            left = end - time.monotonic()
            if not select.select([self.conn], [], [], max(0, left))[0]:
                return None
            try:
                more = self.conn.recv(4096)
            except ConnectionResetError:
                more = b""
            if not more:
                return "EOF"
            self.buf += more
        line, self.buf = self.buf.split(b"\n", 1)
        return line.decode()

    def sleeps_in(self):
        """The system call that it sleeps in, as words; none if it is at work."""
        try:
            with open(f"/proc/{self.pid}/syscall", encoding="ascii") as f:
                a = f.read().split()
            with open(f"/proc/{self.pid}/stat", encoding="ascii") as f:
                state = f.read().rsplit(")", 1)[1].split()[0]
        except OSError:
            return []
        return a if state == "S" else []

    def in_wait(self):
        """Is it asleep in a blocking fcntl()?"""
        a = self.sleeps_in()
        return bool(a) and a[0] == "72" and int(a[2], 16) in (7, 38)

    def asleep(self):
        """In fcntl() or in recv(): a signal that came just before would be lost, as it would be before the kernel's own call."""
        return self.in_wait() or self.sleeps_in()[:1] == ["45"]


class World:
    def __init__(self, t, name, shim):
        self.t, self.name, self.shim = t, name, shim
        self.address = f"{t.dir}/{name}"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.address)
        self.listener.listen(20)
        self.procs = []

    def start(self, name, host, env):
        cmd = [TESTS + "/host", *(["-s"] if self.shim and host != REFERENCE else []), str(host), *env]
        self.procs.append(subprocess.Popen([*cmd, self.t.o.build + "/tests/records", self.address, name], env=self.t.env, stdin=subprocess.DEVNULL))
        return self.hello(name)

    def hello(self, name):
        if not select.select([self.listener], [], [], PATIENCE)[0]:
            raise Mismatch(f"{self.name}: {name} does not start")
        peer = Peer(self.listener.accept()[0], 0)
        words = (peer.read(PATIENCE) or "").split()
        if words[:2] != ["HELLO", name]:
            raise Mismatch(f"{self.name}: {name} says {words}")
        peer.pid = int(words[2])
        return peer

    def close(self):
        self.listener.close()
        for p in self.procs:
            p.kill()
            p.wait()


class Actor:
    def __init__(self, slot):
        self.slot, self.host = slot, HOSTS[slot]
        self.alive = False
        self.incarnation = 0
        self.fds = {}  # letter: table.Descriptor
        self.pending = None  # (line, file, owner, start, end, mode)
        self.plain = self.shim = None
        self.mixed = False  # Redis may know it by two names

    @property
    def owner(self):
        return ("p", self.slot, self.incarnation)

    @property
    def name(self):
        return f"a{self.slot}.{self.incarnation}"


class Trial:
    def __init__(self, o):
        self.o = o
        self.rng = random.Random(o.seed)
        self.dir = tempfile.mkdtemp(prefix="nfmodel.")
        os.chmod(self.dir, 0o755)
        for d in ("locks", "hosts"):
            os.mkdir(f"{self.dir}/{d}")
        self.env = dict(os.environ, D=self.dir + "/locks", HOSTS=self.dir + "/hosts", NF_PRELOAD=o.preload, NF_URL=f"unix://{self.dir}/redis",
                        NF_TTL=f"{o.ttl}ms", NF_PREFIX=self.dir + "/locks",
                        NETFLOCK_LOG=self.dir + "/log")
        self.files = [self.dir + "/locks/x", self.dir + "/locks/y"]
        self.redis = table.Redis(self.dir)
        self.model = table.Model(self.files)
        self.plain = World(self, "plain", False)
        self.shimmed = World(self, "shim", True)
        self.bare = World(self, "bare", False)
        self.actors = [Actor(i) for i in range(len(HOSTS))]
        self.history = collections.deque(maxlen=24)
        self.counts = collections.Counter()
        self.descs = itertools.count(1)
        self.host_of = {}  # pid: host, of all there ever were
        self.step = 0
        self.slow = 0  # Redis had something else at the first look
        self.moments = 0
        self.ghosts_until = 0

    # --- processes

    def start_probers(self):
        for host in (1, 2, 3, 4, REFERENCE):
            os.makedirs(f"{self.dir}/hosts/{host}", exist_ok=True)
            for f in self.files:
                with open(f"{self.dir}/hosts/{host}/{os.path.basename(f)}", "wb") as out:
                    out.truncate(100)
        for f in self.files:
            self.model.size[f] = 100
        self.probers = {host: self.bare.start(f"p{host}", host, []) for host in (1, 2, 3, REFERENCE)}
        self.probers[4] = self.shimmed.start("p4", 4, self.shim_env(4))
        for peer in self.probers.values():
            for letter, f in zip("xy", self.files):
                self.one(peer, f"open {letter} rw keep {f}")

    def log(self):
        """What the shim and its keepers have said."""
        try:
            with open(self.dir + "/log", encoding="utf-8", errors="replace") as f:
                return f.read().splitlines()
        except FileNotFoundError:
            return []

    def shim_env(self, host):
        env = ["NETFLOCK_DISABLE=1"] if self.o.disable else []
        return env + (["NETFLOCK_KEEPER=always"] if host == KEPT else [])

    def spawn(self, a):
        a.incarnation += 1
        a.fds, a.alive, a.mixed = {}, True, False
        a.plain = self.plain.start(a.name, REFERENCE, [])
        a.shim = self.shimmed.start(a.name, a.host, self.shim_env(a.host))
        self.host_of[a.shim.pid] = str(a.host)
        self.note(a, "spawn", "")

    def one(self, peer, line):
        peer.send(line)
        r = peer.read(PATIENCE)
        if r is None or r == "EOF":
            raise Mismatch(f"no answer to {line}: {r}")
        return r

    def over(self, a):
        """It has ended in both worlds; a zombie counts."""
        for peer in (a.plain, a.shim):
            while peer.read(PATIENCE) not in ("EOF", None):
                pass
            peer.conn.close()
        a.alive, a.pending = False, None
        self.model.process_ends(a)

    # --- one step

    def note(self, a, line, result):
        self.counts[line.split()[0]] += 1
        self.history.append(f"{self.step:5} host {a.host} {a.name:6} {line:44} {result}")
        if self.o.trace:
            print(self.history[-1], flush=True)

    def differ(self, a, what, plain, shim):
        raise Mismatch(f"{a.name} on host {a.host}: {what}: the kernel says {plain}, the shim {shim}")

    def plain_settled(self, a, seconds=PATIENCE):
        """The kernel's answer, or None when it blocks."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            r = a.plain.read(0)
            if r is not None:
                return r
            if a.plain.in_wait():
                # It may have answered and come back: then there is an answer.
                return a.plain.read(0)
            time.sleep(0.0002)
        raise Mismatch(f"{a.name}: the plain kernel neither answers nor blocks")

    def shim_blocks(self, a, line):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            r = a.shim.read(0)
            if r is not None:
                self.differ(a, line, "nothing, it blocks", r)
            if a.shim.in_wait() or self.redis.queued(a.pending[1], a.shim.pid):
                return
            time.sleep(0.0005)
        raise Mismatch(f"{a.name}: {line}: the shim's process neither answers nor waits")

    def call(self, a, line, wait=None, agree=lambda plain, shim: plain == shim):
        """Makes one call in both worlds. `wait`: what it waits for if it blocks; `agree`: are the answers as they should be? The
        kernel's answer, or None."""
        a.plain.send(line)
        r = self.plain_settled(a) if wait else a.plain.read(PATIENCE)
        a.shim.send(line)
        if r is None:
            if not wait:
                raise Mismatch(f"{a.name}: {line}: the plain kernel does not answer")
            a.pending = (line, *wait)
            self.note(a, line, "blocks")
            self.shim_blocks(a, line)
            return None
        s = a.shim.read(PATIENCE)
        self.note(a, line, r)
        # A waiter of the same host that asks again has the range in its kernel for a moment; and a range that was granted to a
        # waiter that had been killed is free when that short lease has ended.
        now = time.monotonic()
        end = now + (MOMENT if now < self.ghosts_until or self.waiting_on(a.host) else 0)
        transient = line.split()[0].endswith("get") or r == "OK"
        if not agree(r, s) and transient and now < end:
            self.moments += 1
        while not agree(r, s) and (transient and (r != "OK" or s == "EAGAIN")) and time.monotonic() < end:
            time.sleep(0.002)
            s = self.one(a.shim, line)
        if not agree(r, s):
            self.differ(a, line, r, s)
        return r

    def waiting_on(self, host):
        return any(b.pending and b.host == host for b in self.actors)

    def settle(self):
        """Waiters that the last step let in, in both worlds."""
        again = True
        while again:
            again = False
            for a in self.actors:
                if not a.pending:
                    continue
                r = self.plain_settled(a)
                if r is None:
                    continue
                s = a.shim.read(PATIENCE)
                line, file, owner, start, end, mode = a.pending
                self.note(a, line, f"... {r}")
                if r != s:
                    self.differ(a, line + ", after a while", r, s)
                a.pending = None
                again = True
                if r == "OK":
                    self.model.set(file, owner, start, end, mode)
        for a in self.actors:
            if a.pending:
                s = a.shim.read(0)
                if s is not None:
                    self.differ(a, a.pending[0], "nothing, it still blocks", s)

    # --- looking at the tables

    def expected(self):
        """What Redis should have: process or host of a description: ranges."""
        want = {}
        for f in self.files:
            for owner, ranges in self.model.held[f].items():
                if owner[0] == "p":
                    key = (f, "p", self.actors[owner[1]].shim.pid)
                else:
                    key = (f, "o", str(self.model.descriptions[owner[1]].host))
                want.setdefault(key, []).extend(ranges)
        return {k: table.union(v) for k, v in want.items() if v}

    def only_hidden(self, have, want):
        """Too much is there, but only shared, on bytes that others of the host share anyway: those hide that it has gone."""
        def by_host(tables):
            out = {}
            for (f, kind, who), ranges in tables.items():
                out.setdefault((f, self.host_of.get(who) if kind == "p" else who), []).extend(ranges)
            return {k: table.union(v) for k, v in out.items()}

        for k in {*have, *want}:
            if table.union([*want.get(k, ()), *((s, e, "r") for s, e, _ in have.get(k, ()))]) != have.get(k):
                return False
        return by_host(have) == by_host(want)

    def check_redis(self, seconds):
        if self.o.disable:
            return
        want = self.expected()
        end = time.monotonic() + seconds
        first = True
        while True:
            have = self.redis.table(self.files)
            if have == want or self.only_hidden(have, want):
                return
            if first:
                self.slow += 1
                first = False
            if time.monotonic() > end:
                break
            time.sleep(0.005)
        text = "\n".join(f"  {k}: Redis {have.get(k)}, model {want.get(k)}" for k in sorted({*have, *want}, key=str) if have.get(k) != want.get(k))
        raise Mismatch(f"after {seconds:.1f} s Redis does not have what is held:\n{text}")

    def probe(self, peer, letter, start, end):
        kind = "u"
        for t in ("w", "r"):
            if self.one(peer, f"pget {letter} {t} set {start} {0 if end > MAX else end - start}") != "OK u":
                kind = "r" if t == "w" else "w"
        return kind

    def check_kernels(self):
        for letter, f in zip("xy", self.files):
            for start, end in self.model.elements(f):
                for host, peer in self.probers.items():
                    if self.o.disable and host == 4:
                        continue
                    whose = None if host in (4, REFERENCE) else host
                    want = self.model.state(f, start, end, whose, self.actors)
                    have = self.probe(peer, letter, start, end)
                    until = time.monotonic() + MOMENT
                    while want != have and self.waiting_on(host) and time.monotonic() < until:
                        have = self.probe(peer, letter, start, end)
                    if want != have:
                        where = {4: "the shim on a host that holds nothing", REFERENCE: "the plain kernel"}.get(host, f"host {host}'s kernel")
                        raise Mismatch(f"{where} has {have} at {start}...{end - 1} of {f}, the model {want}")

    # --- choosing

    def pick_range(self):
        g = self.rng
        r = g.random()
        if r < 0.06:
            return g.choice((MAX, MAX - 1, MAX - 10, MAX - 100)), g.choice((0, 1, 2, 11, 12, 101, 102, -1, -10, MAX))
        if r < 0.12:
            return g.choice((0, 0, 5, 50)), g.choice((0, 0, MAX, MAX - 5, MAX - 50))
        if r < 0.16:
            return g.choice((-1, -5, 3, -MAX - 1, -MAX)), g.choice((-1, -3, -4, 5, MAX, -MAX - 1))
        start = 5 * g.randrange(0, 16)
        length = g.choice((1, 5, 5, 10, 10, 15, 20, 40, -5, -10, -15))
        return start, length

    def try_lock(self, a):
        """One call that sets or asks."""
        g = self.rng
        letter = g.choice(list(a.fds))
        d = a.fds[letter]
        if g.random() < 0.27:
            return self.try_lockf(a, letter, d)
        kind = g.choice("pppo" if a.slot % 2 else "ppo")
        op = g.choices(("set", "setw", "get"), (60, 25, 15))[0]
        t = g.choices(("w", "r", "u", "5"), (38, 30, 31, 1) if op != "get" else (60, 38, 1, 1))[0]
        start, length = self.pick_range()
        whence = g.choices(("set", "cur", "end", "7"), (80, 10, 10, 1))[0]
        if whence == "end" and abs(start) < 1000:
            start -= 100
        pid = 1 if kind == "o" and g.random() < 0.02 else 0
        owner = a.owner if kind == "p" else ("o", d.desc.id)
        span = self.model.resolve(d, whence, start, length)
        valid = span and t != "5" and not pid and d.desc.allows(t if op != "get" else "u")
        wait = None
        if op == "setw" and t != "u" and valid:
            verdict = self.may_wait(d.desc.file, owner, *span, t)
            op = "setw" if verdict else "set"
            wait = (d.desc.file, owner, *span, t) if verdict else None
        line = f"{kind}{op} {letter} {t} {whence} {start} {length} {pid}"
        if op == "get":
            self.call(a, line, agree=lambda plain, shim: self.same_get(a, d.desc.file, owner, span, t, plain, shim))
            return True
        if self.call(a, line, wait) == "OK":
            self.model.set(d.desc.file, owner, *span, t)
        return True

    def try_lockf(self, a, letter, d):
        op = self.rng.choices(("lock", "tlock", "ulock", "test", "9"), (20, 35, 30, 14, 1))[0]
        length = self.pick_range()[1]
        span = self.model.resolve(d, "cur", 0, length)
        wait = None
        if op == "lock" and span and d.desc.allows("w"):
            verdict = self.may_wait(d.desc.file, a.owner, *span, "w")
            op = "lock" if verdict else "tlock"
            wait = (d.desc.file, a.owner, *span, "w") if verdict else None
        r = self.call(a, f"lockf {letter} {op} {length}", wait)
        if r == "OK" and op in ("lock", "tlock", "ulock"):
            self.model.set(d.desc.file, a.owner, *span, "u" if op == "ulock" else "w")
        return True

    def may_wait(self, file, owner, start, end, mode):
        """Is the outcome determined, should it block?"""
        if not self.model.conflicts(file, owner, start, end, mode):
            return True
        waits = [b.pending for b in self.actors if b.pending]
        if len(waits) >= 3:
            return False
        for _, f, o, s, e, m in waits:
            if f == file and o != owner and s < end and start < e and "w" in (m, mode):
                return False
        return self.model.deadlock_is_plain(file, owner, start, end, mode, waits)

    def same_get(self, a, file, owner, span, t, plain, shim):
        """Is that what the shim should say, where the plain kernel finds this?"""
        if plain == shim:
            return True
        if not plain.startswith("OK") or plain == "OK u" or not shim.startswith("OK") or shim == "OK u":
            return False
        found = self.model.conflicts(file, owner, *span, t)
        # Of several any may be told; and what one owner has under two names may be told in pieces.
        if len(found) != 1 or "errno" in shim:
            return True
        other = found[0][0]
        if other[0] == "p":
            b = self.actors[other[1]]
            mixed, pid = b.mixed, b.shim.pid if b.host == a.host else -b.shim.pid
        else:
            mixed, pid = self.model.descriptions[other[1]].mixed, -1
        if mixed or shim.split() == [*plain.split()[:-1], str(pid)]:
            return True
        return self.redis.table(self.files) != self.expected()  # one that is hidden in the kernel, see only_hidden()

    # --- other steps

    def free_letter(self, a):
        return next((c for c in "abcde" if c not in a.fds), None)

    def do_open(self, a):
        letter = self.free_letter(a)
        if not letter:
            return False
        mode = self.rng.choices(("rw", "r", "w", "path"), (70, 14, 12, 4))[0]
        how = self.rng.choice(("keep", "cloexec"))
        file = self.rng.choice(self.files)
        if self.call(a, f"open {letter} {mode} {how} {file}") == "OK":
            a.fds[letter] = self.model.open(next(self.descs), a, file, mode, how == "cloexec")
        return True

    def do_close(self, a):
        if not a.fds:
            return False
        letter = self.rng.choice(list(a.fds))
        self.call(a, f"close {letter}")
        self.model.close(a, letter)
        return True

    def do_dup(self, a):
        to = self.free_letter(a)
        if not to or not a.fds:
            return False
        letter, how = self.rng.choice(list(a.fds)), self.rng.choice(("dup", "dup2", "dupfd", "dupfd_cloexec"))
        if self.call(a, f"dup {letter} {to} {how}") == "OK":
            a.fds[to] = self.model.dup(a.fds[letter], a, how == "dupfd_cloexec")
        return True

    def do_seek(self, a):
        letters = [c for c in a.fds if a.fds[c].desc.mode != "path"]
        if not letters:
            return False
        letter, pos = self.rng.choice(letters), self.rng.choice((0, 5, 20, 30, 50, 50, 77, MAX - 20))
        if self.call(a, f"seek {letter} {pos}") == "OK":
            a.fds[letter].desc.pos = pos
        return True

    def do_trunc(self, a):
        letters = [c for c in a.fds if "w" in a.fds[c].desc.mode]
        if not letters:
            return False
        letter, size = self.rng.choice(letters), self.rng.choice((0, 40, 100, 100, 130))
        file = a.fds[letter].desc.file
        self.call(a, f"trunc {letter} {size}")
        for host in (1, 2, 3, REFERENCE):
            os.truncate(f"{self.dir}/hosts/{host}/{os.path.basename(file)}", size)
        self.model.size[file] = size
        return True

    def do_exec(self, a):
        self.call(a, "exec")
        for letter in [c for c in a.fds if a.fds[c].cloexec]:
            self.model.close(a, letter)
        a.mixed = True
        return True

    def do_fork(self, a):
        b = next((b for b in self.actors if not b.alive and b.host == a.host), None)
        if not b:
            return False
        b.incarnation += 1
        line = f"fork {b.name}"
        a.plain.send(line)
        b.plain = self.plain.hello(b.name)
        a.shim.send(line)
        b.shim = self.shimmed.hello(b.name)
        self.host_of[b.shim.pid] = str(b.host)
        r, s = a.plain.read(PATIENCE), a.shim.read(PATIENCE)
        self.note(a, line, r)
        if r != s:
            self.differ(a, line, r, s)
        b.alive, b.pending, b.mixed = True, None, False
        b.fds = {c: self.model.dup(d, b, d.cloexec) for c, d in a.fds.items()}
        for d in b.fds.values():
            d.desc.mixed = True
        return True

    def do_exit(self, a):
        line = self.rng.choice(("exit 0", "_exit 0"))
        a.plain.send(line)
        a.shim.send(line)
        self.note(a, line, "")
        self.over(a)
        return True

    def do_kill(self, a):
        had = [(f, r) for f in self.files for r in self.model.held[f].get(a.owner, ())]
        os.kill(a.plain.pid, signal.SIGKILL)
        os.kill(a.shim.pid, signal.SIGKILL)
        self.note(a, "kill", "while it waits" if a.pending else "")
        if a.pending:
            self.ghosts_until = time.monotonic() + 7 + 1.5 + 1
        self.over(a)
        others = [b for b in self.actors if b.alive and not b.pending and b.host == a.host]
        if not had or not others or any(b.pending for b in self.actors) or self.rng.random() < 0.4:
            return True
        # A local contender does not wait for the lease.
        b = self.rng.choice(others)
        file, (start, end, _) = self.rng.choice(had)
        for letter, d in b.fds.items():
            if d.desc.file == file and d.desc.mode == "rw":
                owner = self.rng.choice((b.owner, ("o", d.desc.id)))
                line = f"{owner[0]}set {letter} w set {start} {0 if end > MAX else end - start}"
                if self.call(b, line) == "OK":
                    self.model.set(file, owner, start, end, "w")
                break
        return True

    def do_signal(self, a):
        """Ends a wait."""
        how = self.rng.choice(("norestart", "norestart", "restart"))
        if how == "restart":
            return False
        os.kill(a.plain.pid, signal.SIGUSR1)
        r = a.plain.read(PATIENCE)
        end = time.monotonic() + PATIENCE
        while not a.shim.asleep() and time.monotonic() < end:
            time.sleep(0.001)
        os.kill(a.shim.pid, signal.SIGUSR1)
        s = a.shim.read(PATIENCE)
        self.note(a, "signal", r)
        if r != s:
            self.differ(a, a.pending[0] + ", interrupted", r, s)
        a.pending = None
        return True

    def choose(self):
        g = self.rng
        dead = [a for a in self.actors if not a.alive]
        waiting = [a for a in self.actors if a.pending]
        idle = [a for a in self.actors if a.alive and not a.pending]
        if dead and (len(idle) < 3 or g.random() < 0.1):
            a = g.choice(dead)
            parents = [b for b in idle if b.host == a.host]
            if not parents or g.random() < 0.5 or not self.do_fork(g.choice(parents)):
                self.spawn(a)
            return 0
        if waiting and g.random() < 0.04 + 0.04 * len(waiting):
            return self.do_signal(g.choice(waiting)) and 0
        if g.random() < 0.002:
            long = self.o.ttl >= LONG_LEASE
            who = [a for a in self.actors if a.alive and not (long and (a.pending or a.host != KEPT))]
            if who:
                self.do_kill(g.choice(who))
            return 0 if long else self.o.ttl / 1000 + PATIENCE
        a = g.choice(idle)
        what = g.choices((self.try_lock, self.do_open, self.do_close, self.do_dup, self.do_seek, self.do_trunc, self.do_exec, self.do_exit),
                         (720, 70, 50, 30, 40, 8, 8, 8))[0]
        if what == self.try_lock and not a.fds:
            what = self.do_open
        what(a)
        return 0

    def run(self):
        self.redis.start()
        if self.o.monitor:
            with open(self.o.monitor, "w", encoding="utf-8") as out:
                cmd = ["redis-cli", "-s", self.dir + "/redis", "monitor"]
                self.plain.procs.append(subprocess.Popen(cmd, stdout=out, stdin=subprocess.DEVNULL))
        self.start_probers()
        begun = time.monotonic()
        for a in self.actors:
            self.spawn(a)
        for self.step in range(1, self.o.steps + 1):
            allowed = self.choose()
            self.settle()
            # An end that a process does not see itself is noticed by a keeper, a moment later.
            self.check_redis(max(allowed, PATIENCE))
            if self.step % self.o.every == 0:
                self.check_kernels()
            if self.o.seconds and time.monotonic() > begun + self.o.seconds:
                break
        self.check_kernels()
        self.finish()

    def finish(self):
        """All go; then nothing is left."""
        for a in self.actors:
            while a.alive and a.pending:
                self.do_signal(a)
            if a.alive:
                self.do_exit(a)
                self.settle()
        self.check_redis(self.o.ttl / 1000 + PATIENCE)
        if not self.o.disable:
            left = self.redis.leftovers(self.files, self.o.ttl / 1000 + 10)
            if left:
                raise Mismatch(f"left in Redis: {left}")
        if self.log():
            raise Mismatch("the shim has complained")

    def clean(self):
        for a in self.actors:
            for peer in (a.plain, a.shim):
                if a.alive and peer:
                    try:
                        os.kill(peer.pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
        for w in (self.plain, self.shimmed, self.bare):
            w.close()
        self.redis.keepers_gone(self.dir)
        self.redis.stop()
        shutil.rmtree(self.dir, ignore_errors=True)


def once(o):
    """0: no difference, 1: there was one, 3: leases were missed, which says nothing."""
    t = Trial(o)
    try:
        t.run()
    except Mismatch as e:
        log = t.log()
        print("\n".join(list(t.history)[-20:]))
        for f in t.files:
            print(f"{os.path.basename(f)}: {({str(k): v for k, v in t.model.held[f].items() if v})}")
        print("\n".join(log[-5:]))
        print(f"after step {t.step} of seed {o.seed}: {e}")
        return 3 if any("a renewal failed" in line or "could not be renewed" in line for line in log) else 1
    finally:
        t.clean()
    total = sum(t.counts.values())
    counts = ", ".join(f"{k} {v}" for k, v in sorted(t.counts.items()))
    print(f"{t.step} steps, {total} calls, no difference; Redis was late {t.slow} times, a waiter in the way {t.moments}: {counts}")
    return 0


def main():
    o = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    print(f"seed {o.seed}", flush=True)
    while (r := once(o)) == 3 and o.ttl < 16000:
        o.ttl *= 2
        print(f"a busy machine: again, with a lease of {o.ttl} ms", flush=True)
    return r


sys.exit(main())
