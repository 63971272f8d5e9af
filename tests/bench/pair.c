/*
 * pair FILE ADDR ROUNDS: lock and unlock FILE, which nobody else wants, beside two PINGs on a connection of our own.
 * Runs under the shim. The two take turns in small blocks, so that both see the same machine.
 * Prints four times in us: lock+unlock p50, p99; two PINGs p50, p99.
 */
#include "bench.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>

#define BLOCK 10

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    size_t n = (size_t)atol(argv[3]) / BLOCK * BLOCK;
    int64_t *locks = calloc(n, sizeof *locks);
    int64_t *pings = calloc(n, sizeof *pings);
    int fd = open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int redis = redis_dial(argv[2]);
    if (!locks || !pings || fd < 0)
        die(argv[1]);
    for (size_t at = 0; at < n; at += BLOCK) {
        for (size_t i = at; i < at + BLOCK; i++) {
            int64_t t = now_ns();
            if (flock(fd, LOCK_EX) < 0 || flock(fd, LOCK_UN) < 0)
                die("flock");
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
