"""What the Python programs of some suites start with: `from steps import *`.

The test and its programs wait for each other with marks, folders in $STEPS: making one needs no descriptor, so it
cannot disturb the numbers that a test is about.
"""
import ctypes
import fcntl
import os
import socket
import subprocess
import sys
import time

F = os.environ["LOCKFILE"]
STEPS = os.environ["STEPS"]
EX, SH, UN, NB = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN, fcntl.LOCK_NB
libc = ctypes.CDLL(None, use_errno=True)  # finds a preloaded function first, as any program does

# A program that ends when the test says so, for those who start others.
STAY = ["/bin/sh", "-c", 'until [ -d "$STEPS/end" ]; do sleep 0.02; done']


def done(mark):
    os.mkdir(f"{STEPS}/{mark}")


def until(mark):
    while not os.path.isdir(f"{STEPS}/{mark}"):
        time.sleep(0.01)


def opened(path=F):
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def flock(fd, operation):
    """The name of the error, or 0."""
    try:
        fcntl.flock(fd, operation)
    except OSError as e:
        return e.strerror
    return 0


def child(f):
    """Runs f in a child, which then ends without any clean-up."""
    pid = os.fork()
    if pid == 0:
        try:
            f()
        finally:
            os._exit(0)
    return pid
