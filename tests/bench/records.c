/*
 * records pair FILE ADDR ROUNDS: lockf() of a byte and its unlock, which nobody else wants, beside two PINGs on a connection of our
 * own. Prints four times in us: lock+unlock p50, p99; two PINGs p50, p99.
 * records many FEW MANY RANGES ROUNDS: lock and unlock a byte between the ranges that are held: in FEW one, in MANY so many.
 * Prints four times in us: lock in MANY p50, lock in FEW p50, unlock in MANY p50, unlock in FEW p50.
 * Both run under the shim; what is compared takes turns in small blocks, so that all see the same machine.
 */
#include "bench.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 10

static int open_file(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        die(path);
    return fd;
}

static void set(int fd, short type, off_t at)
{
    struct flock fl = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    if (fcntl(fd, F_SETLK, &fl) < 0)
        die("fcntl");
}

static int pair(const char *path, const char *addr, size_t rounds)
{
    size_t n = rounds / BLOCK * BLOCK;
    int64_t *locks = calloc(n, sizeof *locks);
    int64_t *pings = calloc(n, sizeof *pings);
    int fd = open_file(path);
    int redis = redis_dial(addr);
    if (!locks || !pings)
        die("calloc");
    for (size_t at = 0; at < n; at += BLOCK) {
        for (size_t i = at; i < at + BLOCK; i++) {
            int64_t t = now_ns();
            if (lockf(fd, F_LOCK, 1) < 0 || lockf(fd, F_ULOCK, 1) < 0)
                die("lockf");
            locks[i] = now_ns() - t;
        }
        for (size_t i = at; i < at + BLOCK; i++) {
            int64_t t = now_ns();
            redis_ping(redis);
            redis_ping(redis);
            pings[i] = now_ns() - t;
        }
    }
    printf("%.1f %.1f", USEC(quantile(locks, n, 0.5)), USEC(quantile(locks, n, 0.99)));
    printf(" %.1f %.1f\n", USEC(quantile(pings, n, 0.5)), USEC(quantile(pings, n, 0.99)));
    return 0;
}

/* The ranges that are held are the even bytes, so that none is merged with another; what is measured falls between them. */
static int many(const char *const *path, int ranges, size_t rounds)
{
    size_t n = rounds / BLOCK * BLOCK;
    const int held[] = {ranges, 1};
    int64_t *lock[2];
    int64_t *unlock[2];
    int fd[2];
    for (int f = 0; f < 2; f++) {
        lock[f] = calloc(n, sizeof *lock[f]);
        unlock[f] = calloc(n, sizeof *unlock[f]);
        if (!lock[f] || !unlock[f])
            die("calloc");
        fd[f] = open_file(path[f]);
        for (int i = 0; i < held[f]; i++)
            set(fd[f], F_WRLCK, 2L * i);
    }
    for (size_t at = 0; at < n; at += BLOCK) {
        for (int f = 0; f < 2; f++) {
            for (size_t i = at; i < at + BLOCK; i++) {
                off_t byte = 2 * ((off_t)i * 7919 % ranges) + 1;
                int64_t t = now_ns();
                set(fd[f], F_WRLCK, byte);
                int64_t between = now_ns();
                set(fd[f], F_UNLCK, byte);
                lock[f][i] = between - t;
                unlock[f][i] = now_ns() - between;
            }
        }
    }
    printf("%.1f %.1f", USEC(quantile(lock[0], n, 0.5)), USEC(quantile(lock[1], n, 0.5)));
    printf(" %.1f %.1f\n", USEC(quantile(unlock[0], n, 0.5)), USEC(quantile(unlock[1], n, 0.5)));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "pair") == 0)
        return pair(argv[2], argv[3], (size_t)atol(argv[4]));
    if (argc == 6 && strcmp(argv[1], "many") == 0)
        return many((const char *const[]){argv[3], argv[2]}, atoi(argv[4]), (size_t)atol(argv[5]));
    return 2;
}
