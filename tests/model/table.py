"""A simple model of record locks, and what Redis has of them."""
import os
import subprocess
import time

import redis

MAX = (1 << 63) - 1
END = 1 << 63


def union(ranges):
    """Overlapping (start, end, mode) of one key, merged; the stronger mode wins."""
    edges = sorted({e for s, t, _ in ranges for e in (s, t)})
    out = []
    for a, b in zip(edges, edges[1:]):
        modes = [m for s, t, m in ranges if s <= a and t >= b]
        if not modes:
            continue
        m = "w" if "w" in modes else "r"
        if out and out[-1][1] == a and out[-1][2] == m:
            out[-1] = (out[-1][0], b, m)
        else:
            out.append((a, b, m))
    return out


class Description:
    def __init__(self, number, host, file, mode):
        self.id, self.host, self.file, self.mode = number, host, file, mode
        self.pos = 0
        self.refs = 0
        self.mixed = False

    def allows(self, mode):
        if self.mode == "path":
            return False
        return not (mode == "w" and self.mode == "r") and not (mode == "r" and self.mode == "w")


class Descriptor:
    def __init__(self, desc, cloexec):
        self.desc, self.cloexec = desc, cloexec
        desc.refs += 1


class Model:
    def __init__(self, files):
        self.held = {f: {} for f in files}  # file: {owner: [(start, end, mode)]}
        self.size = {}
        self.descriptions = {}

    def open(self, number, a, file, mode, cloexec):
        desc = self.descriptions[number] = Description(number, a.host, file, mode)
        return Descriptor(desc, cloexec)

    def dup(self, d, a, cloexec):
        return Descriptor(d.desc, cloexec)

    def drop(self, d):
        d.desc.refs -= 1
        if d.desc.refs == 0:
            self.held[d.desc.file].pop(("o", d.desc.id), None)

    def close(self, a, letter):
        d = a.fds.pop(letter)
        if d.desc.mode != "path":
            self.held[d.desc.file].pop(a.owner, None)
        self.drop(d)

    def process_ends(self, a):
        for d in a.fds.values():
            self.drop(d)
        a.fds = {}
        for f in self.held:
            self.held[f].pop(a.owner, None)

    def resolve(self, d, whence, start, length):
        """The range as (start, end); None if the kernel refuses it."""
        at = {"set": 0, "cur": d.desc.pos, "end": self.size[d.desc.file]}.get(whence)
        if at is None or not -END <= start < END or start > MAX - at or at + start < 0:
            return None
        first = at + start
        if length > 0:
            return None if length - 1 > MAX - first else (first, first + length)
        if length < 0:
            return None if first + length < 0 else (first + length, first)
        return first, END

    def conflicts(self, file, owner, start, end, mode):
        return [(o, (s, e, m)) for o, ranges in self.held[file].items() if o != owner for s, e, m in ranges if s < end and start < e and "w" in (m, mode)]

    def set(self, file, owner, start, end, mode):
        new = []
        for s, e, m in self.held[file].get(owner, ()):
            if s < start:
                new.append((s, min(e, start), m))
            if e > end:
                new.append((max(s, end), e, m))
        if mode != "u":
            new.append((start, end, mode))
        self.held[file][owner] = union(new)
        if not new:
            del self.held[file][owner]

    def deadlock_is_plain(self, file, owner, start, end, mode, waits):
        """No deadlock in the whole graph, or one that the kernel finds too, which follows one holder of each range. Of descriptions
        that wait the kernel follows some (those that wait for a process), and the shim none."""
        if owner[0] == "o":
            return True
        waiting = {o: (f, o, s, e, m) for _, f, o, s, e, m in waits}
        todo, seen, several = [(file, owner, start, end, mode)], set(), False
        while todo:
            holders = {o for o, _ in self.conflicts(*todo.pop())}
            several = several or len(holders) > 1 or any(o[0] == "o" and o in waiting for o in holders)
            for o in holders - seen:
                seen.add(o)
                if o in waiting:
                    todo.append(waiting[o])
        return owner not in seen or not several

    def elements(self, file):
        """Ranges within which nothing changes."""
        edges = {0, END}
        for ranges in self.held[file].values():
            for s, e, _ in ranges:
                edges.update((s, e))
        edges = sorted(edges)
        return list(zip(edges, edges[1:]))

    def state(self, file, start, end, host, actors):
        state = "u"
        for o, ranges in self.held[file].items():
            where = actors[o[1]].host if o[0] == "p" else self.descriptions[o[1]].host
            if host in (None, where):
                for s, e, m in ranges:
                    if s < end and start < e:
                        state = "w" if "w" in (m, state) else "r"
        return state


class Redis:
    def __init__(self, folder):
        self.dir = folder
        self.proc = self.client = None

    def start(self):
        sock = self.dir + "/redis"
        args = ["--port", "0", "--unixsocket", sock, "--save", "", "--dir", self.dir, "--daemonize", "no"]
        with open(self.dir + "/redis.log", "w", encoding="utf-8") as log:
            self.proc = subprocess.Popen(["redis-server", *args], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        self.client = redis.Redis(unix_socket_path=sock, decode_responses=True)
        for _ in range(500):
            try:
                if self.client.ping():
                    return
            except redis.ConnectionError:
                time.sleep(0.02)
        raise RuntimeError("redis-server does not start")

    def stop(self):
        if self.proc:
            self.proc.kill()
            self.proc.wait()

    @staticmethod
    def key(file, what):
        return f"netflock:{{lock:{file}}}:{what}"

    def queued(self, file, pid):
        return any(m[33:].split(":")[6] == str(pid) for m in self.client.zrange(self.key(file, "rqueue"), 0, -1))

    def table(self, files):
        """(file, p, pid) or (file, o, host): ranges, of those whose leases have not run out."""
        p = self.client.pipeline(transaction=True)
        p.time()
        for f in files:
            p.zrange(self.key(f, "ranges"), 0, -1)
            p.hgetall(self.key(f, "owners"))
            p.zrange(self.key(f, "leases"), 0, -1, withscores=True)
        answers = p.execute()
        now = answers[0][0] * 1000 + answers[0][1] // 1000
        have = {}
        for i, f in enumerate(files):
            segments, owners, leases = answers[1 + 3 * i:4 + 3 * i]
            leases = dict(leases)
            for m in segments:
                for holder in m[32:].split(","):
                    mode, number = holder[0], holder[1:]
                    if number in owners and leases.get(number, 0) <= now:
                        continue
                    token = owners.get(number, "0 nobody::::::nobody").split(" ", 1)[1].split(":")
                    key = (f, "p", int(token[6])) if number[0] == "p" else (f, "o", token[5].removeprefix("host"))
                    have.setdefault(key, []).append((int(m[:16], 16), int(m[16:32], 16), "w" if mode == "x" else "r"))
        return {k: union(v) for k, v in have.items()}

    def leftovers(self, files, seconds):
        end = time.monotonic() + seconds
        while True:
            left = [k for k in self.client.keys("*") if not k.endswith(("fence", ":run"))]
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.05)

    @staticmethod
    def keepers_gone(folder):
        """Keepers leave by themselves; one that does not is ended."""
        for _ in range(200):
            left = []
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="replace") as f:
                        if int(pid) != os.getpid() and folder + "/locks" in f.read():
                            left.append(int(pid))
                except OSError:
                    pass
            if not left:
                return
            time.sleep(0.05)
        for pid in left:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
