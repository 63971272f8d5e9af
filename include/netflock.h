/*
 * netflock.h: for programs that want to know about the locks that libnetflock.so holds for them.
 *
 * Nobody needs this to use netflock. Link with -lnetflock, or find the functions with dlsym(RTLD_DEFAULT, ...); when
 * they are not there, nothing is protected between hosts.
 */
#ifndef NETFLOCK_H
#define NETFLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The library's version, as "0.1.0". Safe in a signal handler. */
const char *netflock_version(void);

/*
 * The fencing token of the lock that fd's open file description holds between hosts: a number that grows with every
 * new holder of the file. Returns 0, or -1 with errno ENOLCK (no such lock) or EBADF. Not safe in a signal handler.
 */
int netflock_fence(int fd, uint64_t *token);

/*
 * How long, in milliseconds, the lock that fd's open file description holds is certain to be ours without a further
 * renewal; 0 when it has been lost. Returns 0, or -1 with errno ENOLCK or EBADF. Where a keeper process renews the
 * lock, what it was when it was handed over counts. Not safe in a signal handler.
 */
int netflock_lease(int fd, int64_t *remaining_ms);

#ifdef __cplusplus
}
#endif

#endif
