#!/usr/bin/python3
"""Soak test: many processes on three hosts lock, share, fork, exec, are killed and stopped at random; then their history
is checked (check.py), and nothing may be left.

A redis-server of its own, mounts of their own (tests/host); needs root, and the probes built (make -C tests).
"""
import argparse
import ctypes
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import check  # noqa: E402: a sibling, which shall leave nothing in the sources

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOSTS = 3
PR_SET_CHILD_SUBREAPER = 36


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def duration(text):
    m = re.fullmatch(r"(\d+)(ms|s)", text)
    if not m:
        raise argparse.ArgumentTypeError("such as 1s or 300ms")
    return int(m[1]) / (1000 if m[2] == "ms" else 1)


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--seconds", type=float, default=30)
    p.add_argument("--seed", type=int, help="of all choices (the kernel's scheduler makes its own); default: random")
    p.add_argument("--ttl", type=duration, default=1.0, help="1s, 300ms")
    p.add_argument("--workers", type=int, default=9, help="besides one receiver of descriptors a host")
    p.add_argument("--build", default=os.environ.get("BUILD", os.path.join(os.path.dirname(TESTS), "build")))
    p.add_argument("--preload", default=os.environ.get("NF_PRELOAD"), help="default: libnetflock.so of the build")
    p.add_argument("--disable", action="store_true", help="NETFLOCK_DISABLE=1: the checker must find overlaps")
    p.add_argument("--load", type=int, default=0, help="so many processes that only burn time")
    p.add_argument("--redis-restart", action="store_true", help="kill Redis and start it with its data, now and then")
    p.add_argument("--no-kill", action="store_true")
    p.add_argument("--no-stop", action="store_true")
    p.add_argument("--allow-losses", action="store_true", help="a loss that the shim reports is no failure: for leases that a busy machine may miss")
    p.add_argument("--allowance", type=float, default=1.5, help="seconds that a busy machine may add to TTL + 2 s")
    p.add_argument("--monitor", action="store_true", help="write down what Redis is asked, too (see --keep)")
    p.add_argument("--keep", help="copy the history and the logs to this folder")
    o = p.parse_args()
    o.build = os.path.abspath(o.build)
    if o.seed is None:
        o.seed = random.SystemRandom().randrange(1 << 31)
    return o


class Soak:
    def __init__(self, o):
        self.o = o
        self.rng = random.Random(o.seed)
        self.dir = tempfile.mkdtemp(prefix="nfsoak.")
        os.chmod(self.dir, 0o755)
        for d in ("locks", "hosts", "shared", "redis"):
            os.mkdir(os.path.join(self.dir, d))
        self.history = os.open(os.path.join(self.dir, "shared/history"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self.registry = open(os.path.join(self.dir, "shared/pids"), "w+")
        self.log = open(os.path.join(self.dir, "shared/log"), "w+")
        self.killable = set()
        self.slots = {}  # pid: which worker it is
        self.stopped = {}  # pid: when to continue it
        self.redis = None
        self.burners = []
        self.anchors = []

    # --- the server

    def redis_cli(self, *args):
        cmd = ["redis-cli", "-s", os.path.join(self.dir, "redis/sock"), *args]
        return subprocess.run(cmd, capture_output=True, text=True, check=False, timeout=20).stdout.strip()

    def redis_start(self):
        d = os.path.join(self.dir, "redis")
        args = ["--port", "0", "--unixsocket", d + "/sock", "--save", "", "--dir", d, "--daemonize", "no"]
        if self.o.redis_restart:
            args += ["--appendonly", "yes", "--appendfsync", "always"]
        with open(d + "/log", "a", encoding="utf-8") as log:
            self.redis = subprocess.Popen(["redis-server", *args], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        for _ in range(500):
            if self.redis_cli("ping") == "PONG":
                return
            time.sleep(0.02)
        raise RuntimeError("redis-server does not start")

    def monitor(self):
        with open(self.dir + "/shared/monitor", "w", encoding="utf-8") as out:
            cmd = ["redis-cli", "-s", self.dir + "/redis/sock", "monitor"]
            self.burners.append(subprocess.Popen(cmd, stdout=out, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL))
        self.note(0, f"redis clock {time.time_ns() - now_ns()} ns ahead")

    def redis_bounce(self):
        self.note(0, "redis stop")
        self.redis.kill()
        self.redis.wait()
        time.sleep(self.rng.uniform(0, self.o.ttl / 5))
        self.redis_start()
        self.note(0, "redis start")

    # --- workers

    def note(self, pid, text):
        os.write(self.history, f"{now_ns()} 0 {pid} {text}\n".encode())

    def open_hosts(self):
        """A process that keeps the mounts of each host; the workers join them, so that all of a host see the same."""
        env = self.environment()
        for n in range(1, HOSTS + 1):
            argv = [TESTS + "/host", str(n), "sh", "-c", "echo; exec sleep infinity"]
            p = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
            p.stdout.readline()
            self.anchors.append(p)

    def environment(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("NETFLOCK_", "NF_")) and k != "LD_PRELOAD"}
        return env | {
            "D": self.dir + "/locks",
            "HOSTS": self.dir + "/hosts",
            "SOAK_DIR": self.dir + "/shared",
            "SOAK_END": str(self.end_ns),
        }

    def start(self, slot):
        """A worker for slot 0, 1, ...; the first of each host is the receiver."""
        host = slot % HOSTS + 1
        kind = "receive" if slot < HOSTS else "work"
        keeper = "always" if self.rng.random() < 0.3 else "auto"
        argv = ["/usr/bin/nsenter", "-t", str(self.anchors[host - 1].pid), "-m", "-u", "env", f"HOSTN={host}"]
        argv += [f"LD_PRELOAD={self.o.preload or self.o.build + '/libnetflock.so'}", f"NETFLOCK_PREFIX={self.dir}/locks"]
        argv += [f"NETFLOCK_URL=unix://{self.dir}/redis/sock", f"NETFLOCK_TTL={int(self.o.ttl * 1000)}ms"]
        argv += [f"NETFLOCK_KEEPER={keeper}", "NETFLOCK_ON_LOST=usr1", f"NETFLOCK_LOG={self.dir}/shared/log"]
        argv += ["NETFLOCK_DISABLE=1"] * self.o.disable
        argv += [self.o.build + "/tests/soaker", kind, str(self.rng.randrange(1 << 31))]
        err = (os.POSIX_SPAWN_OPEN, 2, self.dir + "/shared/stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)
        self.slots[os.posix_spawn(argv[0], argv, self.environment(), file_actions=[null, err])] = slot

    def reap(self):
        """Ends of children, and of orphans that came to us; a worker that ended is replaced."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            slot = self.slots.pop(pid, None)
            if slot is not None and now_ns() < self.end_ns:
                self.start(slot)

    def descendants(self):
        """Live processes below us, keepers and all, without Redis and the burners."""
        found, todo = [], [os.getpid()]
        own = {self.redis.pid, *(p.pid for p in self.burners + self.anchors)}
        while todo:
            try:
                pid = todo.pop()
                for tid in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{tid}/children", encoding="ascii") as f:
                        todo += [int(c) for c in f.read().split() if int(c) not in own]
            except OSError:
                continue
            if pid != os.getpid() and self.state(pid) not in "ZX":
                found.append(pid)
        return found

    @staticmethod
    def state(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="latin-1") as f:
                return f.read().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return "X"

    @staticmethod
    def comm(pid):
        try:
            with open(f"/proc/{pid}/comm", encoding="latin-1") as f:
                return f.read().strip()
        except OSError:
            return ""

    # --- trouble

    def victim(self):
        self.killable.update(int(x) for x in self.registry.read().split())
        live = [p for p in self.descendants() if p in self.killable and self.comm(p) != "netflock-keeper"]
        self.killable.intersection_update(live)
        return self.rng.choice(live) if live else None

    def kill(self, pid):
        self.note(pid, "kill")
        os.kill(pid, signal.SIGKILL)
        self.stopped.pop(pid, None)

    def stop(self, pid):
        if pid in self.stopped:
            return
        self.note(pid, "stop")
        os.kill(pid, signal.SIGSTOP)
        self.stopped[pid] = now_ns() + int(self.rng.uniform(0.02, 0.25) * self.o.ttl * 1e9)

    def go_on(self, all_of_them=False):
        for pid, when in list(self.stopped.items()):
            if all_of_them or when <= now_ns():
                del self.stopped[pid]
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    pass
                self.note(pid, "cont")

    def trouble(self):
        pid = self.victim()
        try:
            if pid and self.rng.random() < 0.5 and not self.o.no_kill:
                self.kill(pid)
            elif pid and not self.o.no_stop:
                self.stop(pid)
        except ProcessLookupError:
            pass

    def tail_log(self):
        for line in self.log:
            self.note(0, "log " + line.rstrip("\n"))

    # --- the run

    def run(self):
        self.redis_start()
        self.burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(self.o.load)]
        self.end_ns = now_ns() + int(self.o.seconds * 1e9)
        if self.o.monitor:
            self.monitor()
        self.open_hosts()
        for slot in range(HOSTS + self.o.workers):
            self.start(slot)
        next_trouble = now_ns() + 200_000_000
        next_bounce = now_ns() + 2_000_000_000
        while now_ns() < self.end_ns:
            time.sleep(0.01)
            self.reap()
            self.go_on()
            self.tail_log()
            if now_ns() >= next_trouble:
                self.trouble()
                next_trouble = now_ns() + int(self.rng.expovariate(1 / 0.12) * 1e9)
            if self.o.redis_restart and now_ns() >= next_bounce:
                self.redis_bounce()
                next_bounce = now_ns() + int(self.rng.uniform(2, 5) * 1e9)
        self.go_on(all_of_them=True)

    def settle(self):
        """Waits until all have ended by themselves; returns what is left, in words."""
        limit = time.monotonic() + 2 * self.o.ttl + 30
        while time.monotonic() < limit:
            self.reap()
            self.tail_log()
            left = self.descendants()
            if not left:
                break
            time.sleep(0.05)
        return [f"{'keeper' if self.comm(p) == 'netflock-keeper' else 'process'} left: {self.describe(p)}" for p in left]

    def describe(self, pid):
        def text(name):
            try:
                with open(f"/proc/{pid}/{name}", encoding="latin-1") as f:
                    return f.read().replace("\0", " ").strip()
            except OSError:
                return "?"

        self.note(pid, "kill")  # the caller ends it
        fds = []
        for fd in os.listdir(f"/proc/{pid}/fd") if os.path.isdir(f"/proc/{pid}/fd") else ():
            lock = [x for x in text("fdinfo/" + fd).split("\n") if x.startswith("lock:")]
            if lock:
                fds.append(f"{fd}={os.readlink(f'/proc/{pid}/fd/{fd}')} {lock[0]}")
        return f"{pid} [{text('cmdline')[:120]}] {text('wchan')} {'; '.join(fds)}"

    def leftover_keys(self):
        script = """local r = {}
            for _, k in ipairs(redis.call("KEYS", "*")) do
                if not k:match(":r?fence$") and not k:match(":run$") then r[#r + 1] = k .. " " .. redis.call("PTTL", k) .. "ms" end
            end
            return r"""
        limit = time.monotonic() + self.o.ttl + 30
        while True:
            keys = self.redis_cli("--raw", "eval", script, "0").split("\n")
            keys = [k for k in keys if k]
            if not keys or time.monotonic() > limit:
                return [f"key left: {k}" for k in keys]
            time.sleep(0.1)

    def clean(self):
        for _ in range(100):
            left = self.descendants() if self.redis else []
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.reap()
            if not left:
                break
            time.sleep(0.02)
        for p in [*self.burners, *self.anchors, self.redis]:
            if p:
                p.kill()
                p.wait()
        if self.o.keep:
            shutil.copytree(self.dir + "/shared", self.o.keep, dirs_exist_ok=True)
        shutil.rmtree(self.dir, ignore_errors=True)

    def verdict(self, left):
        path = self.dir + "/shared/history"
        bad, _ = check.check(path, self.o.ttl, self.o.allowance, tolerate=self.o.redis_restart)
        for line in left:
            print(line)
        bad["left behind"] = len(left)
        # Noise of the report, not of the locks: a line about a lock that had ended.
        for k in [k for k in bad if k == "loss reported of a lock that had ended" and not self.o.disable]:
            print(f"noted: {bad.pop(k)} x {k}")
        if self.o.allow_losses:
            for kind in [k for k in bad if k == "loss" or k.endswith(check.AFTER_LOSS)]:
                print(f"allowed: {bad.pop(kind)} x {kind}")
        return {k: v for k, v in bad.items() if v}


def main():
    o = options()
    print(f"soak: {o.seconds:g} s, seed {o.seed}, TTL {o.ttl:g} s, {HOSTS} hosts, {o.workers} workers", flush=True)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    s = Soak(o)
    try:
        s.run()
        left = s.settle()
        left += s.leftover_keys()
        bad = s.verdict(left)
    finally:
        s.clean()
    print("soak: " + (", ".join(f"{k}: {v}" for k, v in sorted(bad.items())) or "nothing wrong"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
