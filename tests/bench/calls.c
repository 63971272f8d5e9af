/*
 * calls OUTSIDE-1 OUTSIDE-2 INSIDE: what the wrappers cost where there is nothing to do. Runs under the shim; the
 * reference is the C library's own function, in the same process. The two take turns in blocks.
 * Prints a line for each: name, with, without, difference, in ns a call; the difference is the median of the blocks'.
 */
#include "bench.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BLOCKS 1501
#define NOT_OPEN 700 /* a descriptor's number that nobody uses */

static int (*libc_flock)(int, int);
static int (*libc_close)(int);
static int (*libc_fcntl)(int, int, ...);

static int raw_open(const char *path)
{
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        die(path);
    return fd;
}

/* Each of these does `n` calls and tells how long a single one took, in picoseconds. */
static int64_t flock_known(int (*fn)(int, int), const char *const *path, int n)
{
    static int fd = -1;
    if (fd < 0)
        fd = raw_open(path[0]);
    int64_t t = now_ns();
    for (int i = 0; i < n; i += 2)
        if (fn(fd, LOCK_EX) < 0 || fn(fd, LOCK_UN) < 0)
            die("flock");
    return (now_ns() - t) * 1000 / n;
}

/* Two files by turns, under one number: what is remembered of the last one does not help. */
static int64_t flock_fresh(int (*fn)(int, int), const char *const *path, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        int fd = raw_open(path[i & 1]);
        int64_t t = now_ns();
        if (fn(fd, LOCK_EX) < 0)
            die("flock");
        sum += now_ns() - t;
        (void)syscall(SYS_close, fd);
    }
    return sum * 1000 / n;
}

static int64_t close_loop(int (*fn)(int), int n)
{
    int64_t t = now_ns();
    for (int i = 0; i < n; i++)
        (void)fn(NOT_OPEN);
    return (now_ns() - t) * 1000 / n;
}

static int64_t getfd_loop(int (*fn)(int, int, ...), int n)
{
    int64_t t = now_ns();
    for (int i = 0; i < n; i++)
        (void)fn(STDIN_FILENO, F_GETFD);
    return (now_ns() - t) * 1000 / n;
}

static void report(const char *name, int64_t *with, int64_t *without)
{
    static int64_t diff[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        diff[i] = with[i] - without[i];
    printf("%s %.1f %.1f %.1f\n", name, (double)quantile(with, BLOCKS, 0.5) / 1000.0, (double)quantile(without, BLOCKS, 0.5) / 1000.0,
           (double)quantile(diff, BLOCKS, 0.5) / 1000.0);
}

static void run_flock(const char *name, int64_t (*loop)(int (*)(int, int), const char *const *, int), const char *const *path, int n)
{
    static int64_t with[BLOCKS];
    static int64_t without[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        bool first = i & 1;
        if (first)
            with[i] = loop(flock, path, n);
        without[i] = loop(libc_flock, path, n);
        if (!first)
            with[i] = loop(flock, path, n);
    }
    report(name, with, without);
}

static void run_close(const char *name)
{
    static int64_t with[BLOCKS];
    static int64_t without[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        bool first = i & 1;
        if (first)
            with[i] = close_loop(close, 500);
        without[i] = close_loop(libc_close, 500);
        if (!first)
            with[i] = close_loop(close, 500);
    }
    report(name, with, without);
}

static void run_fcntl(const char *name)
{
    static int64_t with[BLOCKS];
    static int64_t without[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        bool first = i & 1;
        if (first)
            with[i] = getfd_loop(fcntl, 500);
        without[i] = getfd_loop(libc_fcntl, 500);
        if (!first)
            with[i] = getfd_loop(fcntl, 500);
    }
    report(name, with, without);
}

int main(int argc, char **argv)
{
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    if (argc != 4 || !libc)
        return 2;
    const char *const outside[] = {argv[1], argv[2]};
    *(void **)&libc_flock = dlsym(libc, "flock");
    *(void **)&libc_close = dlsym(libc, "close");
    *(void **)&libc_fcntl = dlsym(libc, "fcntl64");
    if (!libc_flock || !libc_close || !libc_fcntl)
        return 2;
    run_flock("flock", flock_known, outside, 100);
    run_flock("flock-fresh", flock_fresh, outside, 20);
    run_close("close");
    run_fcntl("getfd");
    int fd = raw_open(argv[3]);
    if (flock(fd, LOCK_EX) < 0)
        die("flock");
    run_close("close-held");
    run_fcntl("getfd-held");
    run_flock("flock-held", flock_known, outside, 100);
    return flock(fd, LOCK_UN) < 0;
}
