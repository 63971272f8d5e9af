/*
 * What the benchmarks share: a clock, percentiles, and the plainest possible client of Redis, which is the reference.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdint.h>
#include <stddef.h>

#define USEC(ns) ((double)(ns) / 1000.0)

int64_t now_ns(void); /* CLOCK_MONOTONIC: the same in all processes of the machine */

/* The q-quantile (0..1) of v[0..n), which is sorted on the way. 0 if there is none. */
int64_t quantile(int64_t *v, size_t n, double q);

/* A blocking connection to ADDR, a socket's path or a port of the loopback; ends the program if there is none. */
int redis_dial(const char *addr);
void redis_ping(int fd);

/* Sends one line, reads a bulk answer of at most size - 1 bytes. */
void redis_line(int fd, const char *line, char *buf, size_t size);

/* Maps `size` bytes of the file, which is made if need be; shared by all that map it. */
void *map_shared(const char *path, size_t size);

/* perror() and exit(2). */
void die(const char *what) __attribute__((noreturn));

#endif
