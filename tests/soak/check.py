#!/usr/bin/python3
"""check.py HISTORY TTL_SECONDS [ALLOWANCE_SECONDS]: reads what probes/soaker.c wrote, and says what was wrong.

Two views of the same records. For overlaps a lock counts as held only while it certainly was: from the return of the
call to the moment before the next call on the same open file description, as long as a process is known to have a
descriptor. For stuck locks it counts as held while it possibly was. What cannot be told (two calls at once on one
description, a process killed inside a call) is left out of the first and put into the second.
"""
import bisect
import collections
import errno
import re
import sys

INF = float("inf")
SECOND = 1_000_000_000
AFTER_LOSS = " after a loss that was said"
FLIGHT = 1.5 * SECOND  # a descriptor that was sent counts as open somewhere for so long


class Op:
    """One lock call on a description; `end` is its return, or the death of the caller."""

    def __init__(self, t, pid, host, op, opid, blocking):
        self.t, self.pid, self.host, self.op, self.opid, self.blocking = t, pid, host, op, opid, blocking
        self.end, self.err, self.fence = INF, None, 0

    @property
    def granted(self):
        return self.err == 0 and self.op != "u"


class Desc:
    def __init__(self, name):
        self.name, self.file, self.host = name, None, None
        self.ops = []
        self.has = collections.defaultdict(list)  # pid: [[from, certain end, possible end]...]
        self.born = {}  # pid: since when its parent knows that it has it
        self.sent = []


class Section:
    def __init__(self, desc, op, start, end):
        self.desc, self.op, self.start, self.end = desc, op, start, end

    def __str__(self):
        o = self.op
        return f"{o.op} by pid {o.pid} on host {o.host} (fence {o.fence}, description {self.desc.name})"


class History:
    def __init__(self, path):
        self.descs = {}
        self.kills, self.last, self.stops = {}, {}, collections.defaultdict(list)
        self.lost = []
        self.logs = []
        self.counts = collections.Counter()
        with open(path, encoding="utf-8", errors="replace") as f:
            records = [line.split() for line in f]
        records = sorted((int(r[0]), r[1], int(r[2]), r[3], r[4:]) for r in records)
        for r in records:
            self.read(*r)
        self.end = records[-1][0] if records else 0
        self.finish()

    def desc(self, name):
        return self.descs.setdefault(name, Desc(name))

    def read(self, t, host, pid, kind, a):
        self.counts[kind] += 1
        if kind not in ("kill", "stop", "cont", "log"):
            self.last[pid] = t
        getattr(self, "on_" + kind)(t, host, pid, a)

    def on_call(self, t, host, pid, a):
        d = self.desc(a[0])
        d.file, d.host = a[1], host
        d.ops.append(Op(t, pid, host, a[2], a[3], a[4] == "blocking"))

    def on_ret(self, t, host, pid, a):
        for o in self.desc(a[0]).ops:
            if o.opid == a[1] and o.end == INF:
                o.end, o.err, o.fence = t, int(a[2]), int(a[3])

    def on_have(self, t, host, pid, a):
        self.desc(a[0]).has[pid].append([t, INF, INF])

    def on_bear(self, t, host, pid, a):
        self.desc(a[0]).born.setdefault(int(a[1]), t)

    def on_unbear(self, t, host, pid, a):
        d = self.desc(a[0])
        d.has[int(a[1])].append([d.born.get(int(a[1]), t), t, t])

    def on_drop(self, t, host, pid, a):
        spans = self.desc(a[0]).has[pid]
        if spans:
            spans[-1][1] = spans[-1][2] = t

    def on_gone(self, t, host, pid, a):
        spans = self.desc(a[0]).has[pid]
        if spans:
            spans[-1][2] = t

    def on_sent(self, t, host, pid, a):
        self.desc(a[0]).sent.append(t)

    def on_lost(self, t, host, pid, a):
        self.lost.append((t, pid))

    def on_kill(self, t, host, pid, a):
        self.kills.setdefault(pid, t)

    def on_stop(self, t, host, pid, a):
        self.stops[pid].append([t, INF])

    def on_cont(self, t, host, pid, a):
        if self.stops[pid]:
            self.stops[pid][-1][1] = t

    def on_log(self, t, host, pid, a):
        self.logs.append((t, " ".join(a)))

    def on_redis(self, t, host, pid, a):
        pass

    def death(self, pid):
        """When the process ended, for one that did not say so."""
        return self.kills.get(pid, INF)

    def finish(self):
        for d in self.descs.values():
            d.ops.sort(key=lambda o: o.t)
            for o in d.ops:
                if o.end == INF:
                    o.end = self.death(o.pid)
            for pid, t in d.born.items():
                if not d.has[pid]:
                    if pid in self.kills:  # before it could say anything
                        d.has[pid].append([t, INF, INF])
                elif t < d.has[pid][0][0]:
                    d.has[pid][0][0] = t
            for pid, spans in d.has.items():
                # One that was neither killed by us nor said goodbye: it counts up to its last word.
                end = self.kills.get(pid, self.last.get(pid, 0))
                for s in spans:
                    s[1], s[2] = min(s[1], end), min(s[2], end)

    # --- certainly held

    def sections(self, d):
        """The sections of a description, each as a list of spans in which a process surely had it."""
        for i, o in enumerate(d.ops):
            if not o.granted:
                continue
            if any(p is not o and p.t < o.end and self.over(p) > o.t for p in d.ops):
                continue
            end = min((p.t for p in d.ops[i + 1 :] if p.t >= o.end), default=INF)
            for t, pid in self.lost:
                if o.end <= t < end and any(a <= t <= b for a, b, _ in d.has.get(pid, ())):
                    end = t
            yield o, merge((max(o.end, a), min(end, b)) for spans in d.has.values() for a, b, _ in spans)

    @staticmethod
    def over(o):
        """Until when a call may have changed the lock: one whose caller was killed, a moment longer."""
        return o.end if o.err is not None else o.end + SECOND / 2

    # --- possibly held

    def possible(self, d):
        ends = [s[2] for spans in d.has.values() for s in spans] + [t + FLIGHT for t in d.sent]
        last = max(ends, default=0)
        for i, o in enumerate(d.ops):
            if o.granted or o.err is None:
                over = [p.end for p in d.ops[i + 1 :] if p.err is not None and p.t >= o.end]
                yield o.end, min([last] + over)
            elif any(p is not o and p.t < o.end and p.end > o.t for p in d.ops):
                yield o.end, last  # two calls at once: who knows which one was the later

    def stopped(self, pid, a, b):
        return sum(max(0, min(b, y) - max(a, x)) for x, y in self.stops.get(pid, ()))


def merge(spans):
    out = []
    for a, b in sorted(s for s in spans if s[0] < s[1]):
        if out and a <= out[-1][1]:
            out[-1][1] = max(out[-1][1], b)
        else:
            out.append([a, b])
    return out


def sec(ns):
    return f"{ns / SECOND:.6f}"


def find_overlaps(sections):
    """Pairs of sections of one file, at least one exclusive, that were open at the same time."""
    found = []
    active = []
    for s in sorted(sections, key=lambda x: x.start):
        active = [a for a in active if a.end > s.start]
        for a in active:
            if a.desc is not s.desc and "x" in (a.op.op, s.op.op):
                found.append((a, s))
        active.append(s)
    return found


def find_fences(ops):
    """Fences of [(description, op)] of one file that do not grow in the order of the grants.

    Of two locks that exclude each other the one whose call returned first was granted first. Of two shared ones only if
    the second call began after the first had returned.
    """
    found = []
    top = {"x": (0, None), "s": (0, None)}
    shared = []  # returns, and the highest fence up to each
    for d, o in sorted(ops, key=lambda x: x[1].end):
        for mode in "xs" if o.op == "x" else "x":
            fence, by = top[mode]
            if by and (o.fence < fence or (o.fence == fence and by[0] is not d)):
                found.append((by, (d, o)))
        if o.op == "s":
            i = bisect.bisect_left(shared, o.t, key=lambda x: x[0])
            if i and shared[i - 1][1] > o.fence:
                found.append((shared[i - 1][2], (d, o)))
            if not shared or o.fence > shared[-1][1]:
                shared.append((o.end, o.fence, (d, o)))
        if o.fence > top[o.op][0]:
            top[o.op] = (o.fence, (d, o))
    return found


def find_stuck(h, file, descs, bound):
    """Waits during which nobody was inside for longer than the bound; and the longest such time of all."""
    found = []
    held = merge(s for d in descs for s in h.possible(d))
    gaps = list(zip([0] + [b for _, b in held], [a for a, _ in held] + [INF]))
    starts = [a for a, _ in gaps]
    longest = 0
    for d in descs:
        for o in d.ops:
            end = min(o.end, h.end)
            if not o.blocking or o.op == "u":
                continue
            for a, b in gaps[max(0, bisect.bisect_right(starts, o.t) - 1) :]:
                if a >= end:
                    break
                x, y = max(a, o.t), min(b, end)
                free = y - x - h.stopped(o.pid, x, y) if y > x else 0
                longest = max(longest, free)
                if free > bound:
                    found.append((d, o, x, y))
    return found, longest


def again(section):
    """Asked for what it had: the fence is the old one."""
    before = [o for o in section.desc.ops if o.t < section.op.t and o.granted]
    return any(o.fence == section.op.fence for o in before)


class Report:
    def __init__(self):
        self.lines, self.bad = [], collections.Counter()

    def add(self, what, text):
        self.bad[what] += 1
        if self.bad[what] <= 12:
            self.lines.append(f"{what}: {text}")


def report_overlaps(h, r, file, sections):
    for a, b in find_overlaps(sections):
        where = "on one host" if a.op.host == b.op.host else "between hosts"
        told = [t for t, text in h.logs if "lost the lock" in text and f"/{file} " in text and abs(t - b.start) < 2 * SECOND]
        r.add(
            f"overlap {where}" + (AFTER_LOSS if told else ""),
            f"{file}: {a} inside {sec(a.start)} to {sec(a.end)}; {b} from {sec(b.start)} to {sec(b.end)}",
        )


def report_fences(r, file, ops):
    for (d, o), (e, p) in find_fences(ops):
        r.add(
            "fence went back",
            f"{file}: {o.fence} ({o.op}, host {o.host}, pid {o.pid}, {d.name}, returned {sec(o.end)}), then"
            f" {p.fence} ({p.op}, host {p.host}, pid {p.pid}, {e.name}, called {sec(p.t)}, returned {sec(p.end)})",
        )


def report_stuck(h, r, file, descs, bound):
    found, longest = find_stuck(h, file, descs, bound)
    for d, o, a, b in found:
        r.add(
            "stuck",
            f"{file}: nobody inside from {sec(a)} to {sec(b)}, {(b - a) / SECOND:.2f} s, while pid {o.pid} on host"
            f" {o.host} waited for {o.op} (called {sec(o.t)}, {d.name})",
        )
    return longest


def report_errors(h, r, tolerate):
    expected = {0, errno.EWOULDBLOCK, errno.EINTR}
    if tolerate:
        expected.add(errno.ENOLCK)
    for d in h.descs.values():
        for o in d.ops:
            if o.err is not None and o.err not in expected:
                r.add("error", f"{d.file}: {errno.errorcode.get(o.err, o.err)} from {o.op} by pid {o.pid} on host {o.host} at {sec(o.end)}")
    for t, text in h.logs:
        if ": error:" in text and "lost the lock" not in text:
            r.add("log", f"{sec(t)} {text}")


TOKEN = re.compile(r"lost the lock on \S*/(\S+?)[, ].*token nf1:(?:[^:]*:){4}host(\d+):(\d+):")


def report_losses(h, r, file, sections):
    """Losses that the shim reported: of a lock that was still held, or of one that had ended long before."""
    for t, text in h.logs:
        m = TOKEN.search(text)
        if not m or m[1] != file:
            continue
        # The log is read every few milliseconds: what was held shortly before counts.
        held = [s for s in sections if s.op.host == m[2] and s.op.pid == int(m[3]) and s.start < t and s.end > t - SECOND / 20]
        r.add("loss" if held else "loss reported of a lock that had ended", f"{sec(t)} {text}")


def check(path, ttl, allowance=1.5, tolerate=False, out=print):
    """Prints what was found; returns how much of it, by kind, and some numbers."""
    h = History(path)
    r = Report()
    by_file = collections.defaultdict(list)
    for d in h.descs.values():
        if d.file:
            by_file[d.file].append(d)
    hosts, longest, numbers = set(), 0, collections.Counter()
    for file, descs in sorted(by_file.items()):
        sections = []
        for d in descs:
            for o, spans in h.sections(d):
                sections += [Section(d, o, a, b) for a, b in spans]
        report_overlaps(h, r, file, sections)
        report_fences(r, file, {id(x.op): (x.desc, x.op) for x in sections if x.op.fence and not again(x)}.values())
        report_losses(h, r, file, sections)
        longest = max(longest, report_stuck(h, r, file, descs, (ttl + 2 + allowance) * SECOND))
        ops = [o for d in descs for o in d.ops]
        hosts |= {o.host for o in ops if o.granted}
        numbers["sections checked"] += len(sections)
        numbers["exclusive"] += sum(o.granted and o.op == "x" for o in ops)
        numbers["shared"] += sum(o.granted and o.op == "s" for o in ops)
        numbers["by programs"] += sum(o.granted and o.opid == "0" for o in ops)
        numbers["refused"] += sum(o.err == errno.EWOULDBLOCK for o in ops)
        numbers["interrupted"] += sum(o.err == errno.EINTR for o in ops)
        numbers["killed in a call"] += sum(o.err is None and o.pid in h.kills for o in ops)
        numbers["unlocked"] += sum(o.err == 0 and o.op == "u" for o in ops)
        waits = [o.end - o.t for o in ops if o.granted and o.blocking]
        numbers["longest wait ms"] = max([numbers["longest wait ms"]] + [int(w / 1e6) for w in waits])
    report_errors(h, r, tolerate)
    numbers["nobody inside, somebody waiting, at most ms"] = int(longest / 1e6)
    for kind, name in (("kill", "kills"), ("stop", "stops"), ("bear", "descriptions inherited"), ("sent", "passed")):
        numbers[name] = h.counts[kind]
    out(f"{len(hosts)} hosts; " + ", ".join(f"{k} {v}" for k, v in numbers.items()))
    for line in r.lines:
        out(line)
    return r.bad, numbers


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    bad, _ = check(sys.argv[1], float(sys.argv[2]), *map(float, sys.argv[3:4]))
    print(", ".join(f"{k}: {v}" for k, v in bad.items()) or "nothing wrong")
    sys.exit(1 if bad else 0)
