#!/usr/bin/python3
"""The Lock of redis-py, measured as the other benchmarks measure netflock.

pylock.py URL pair ROUNDS             us: acquire+release p50, p99; two PINGs p50, p99
pylock.py URL handover ROUNDS         a line a round, us: release returned to grant returned; from its call; one PING
pylock.py URL turns COUNT SECONDS     a line for each process with its turns, and at last "lost N changed M"
"""
import mmap
import os
import struct
import sys
import time

import redis

NAME = "netflock-bench-py"
BLOCK = 10
now = time.monotonic_ns


def client(url):
    r = redis.Redis.from_url(url)
    r.ping()
    return r


def quantile(v, q):
    v = sorted(v)
    return v[int((len(v) - 1) * q + 0.5)] / 1000


class Shared:
    """64-bit numbers that all processes see."""

    def __init__(self, n):
        self.m = mmap.mmap(-1, 8 * n)

    def get(self, i):
        return struct.unpack_from("q", self.m, 8 * i)[0]

    def set(self, i, value):
        struct.pack_into("q", self.m, 8 * i, value)

    def until(self, i, value):
        while self.get(i) < value:
            time.sleep(0.0002)


def pair(url, rounds):
    r = client(url)
    lock = r.lock(NAME, timeout=30)
    locks, pings = [], []
    for _ in range(rounds // BLOCK):
        for _ in range(BLOCK):
            t = now()
            lock.acquire()
            lock.release()
            locks.append(now() - t)
        for _ in range(BLOCK):
            t = now()
            r.ping()
            r.ping()
            pings.append(now() - t)
    print(*("%.1f" % quantile(v, q) for v in (locks, pings) for q in (0.5, 0.99)))


def start(count, work):
    pids = []
    for me in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                work(me)
            except BaseException as e:  # the child must not go on as the parent
                print(e, file=sys.stderr)
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    return pids


def finish(pids):
    if any([os.waitpid(pid, 0)[1] for pid in pids]):
        sys.exit(1)


def handover(url, rounds):
    held, waiting, done = 0, 1, 2
    s = Shared(3 + 4 * (rounds + 1))

    def stamp(r, what, value):
        s.set(3 + 4 * r + what, value)

    def work(me):
        redis_ = client(url)
        lock = redis_.lock(NAME, timeout=30)
        for r in range(1, rounds + 1):
            if r % 2 == me:
                lock.acquire()
                s.set(held, r)
                s.until(waiting, r)
                time.sleep(0.003)
                t = now()
                redis_.ping()
                stamp(r, 3, now() - t)
                time.sleep(0.0003)
                stamp(r, 0, now())
                lock.release()
                stamp(r, 1, now())
                s.until(done, r)
            else:
                s.until(held, r)
                s.set(waiting, r)
                lock.acquire()
                stamp(r, 2, now())
                lock.release()
                s.set(done, r)

    finish(start(2, work))
    for r in range(1, rounds + 1):
        called, released, granted, ping = (s.get(3 + 4 * r + i) for i in range(4))
        print("%.1f %.1f %.1f" % ((granted - released) / 1000, (granted - called) / 1000, ping / 1000))


def turns(url, count, seconds):
    go, counter, last, changed, first = 0, 1, 2, 3, 4
    s = Shared(4 + 2 * count)

    def work(me):
        lock = client(url).lock(NAME, timeout=30)
        s.set(first + count + me, 1)
        s.until(go, 1)
        while s.get(go) == 1:
            with lock:
                s.set(counter, s.get(counter) + 1)
                s.set(first + me, s.get(first + me) + 1)
                if s.get(last) != me:
                    s.set(last, me)
                    s.set(changed, s.get(changed) + 1)

    pids = start(count, work)
    for me in range(count):
        s.until(first + count + me, 1)
    s.set(go, 1)
    time.sleep(seconds)
    s.set(go, 2)
    had = [s.get(first + me) for me in range(count)]  # what comes after is not counted
    finish(pids)
    for n in had:
        print(n)
    lost = sum(s.get(first + me) for me in range(count)) - s.get(counter)
    print("lost", lost, "changed", s.get(changed))


if __name__ == "__main__":
    _, url, what, *numbers = sys.argv
    if what == "pair":
        pair(url, int(numbers[0]))
    elif what == "handover":
        handover(url, int(numbers[0]))
    else:
        turns(url, int(numbers[0]), float(numbers[1]))
