/*
 * netflock.h: for programs that want to know about the locks that libnetflock.so holds for them.
 *
 * Nobody needs this to use netflock. Link with -lnetflock, or find the functions with dlsym(RTLD_DEFAULT, ...); when
 * they are not there, nothing is protected between hosts.
 *
 * "The lock behind fd" is the flock() lock of fd's open file description; if it has none, that description's record locks
 * (F_OFD_SETLK); if it has none, the process's record locks of the file (fcntl, lockf), through whatever descriptor they
 * were taken. An flock() lock that another process took, and that came with the descriptor (by exec, fork or a socket), is
 * found as well: by the kernel's word that this description has it, and Redis' word that this host has the file. Record
 * locks, and locks under NETFLOCK_LOCAL's stand-ins, that another process took are not.
 *
 * No function changes errno when it succeeds, and none is for a signal handler, but for netflock_version().
 */
#ifndef NETFLOCK_H
#define NETFLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The library's version, as "0.1.0". */
const char *netflock_version(void);

/*
 * The fencing token of the lock behind fd: a number that is greater than that of everybody who had an excluding lock on the
 * file before, and smaller than that of everybody who will have one. It stays what it was when the lock is lost: to compare
 * it where the work ends up is what it is for. Several processes that work under one lock see one number, but for a shared
 * lock that another process took: then it is where the file's counter has come meanwhile.
 * flock() and record locks count apart: a store should see tokens of one kind only. With record locks each further range
 * that is taken gives a new, greater token.
 *
 * Returns 0, or -1 with errno: ENOLCK no such lock; EBADF; EIO another process took it and Redis gives no answer.
 */
int netflock_fence(int fd, uint64_t *token);

/*
 * How long, in milliseconds, the lock behind fd is certain to be ours without a further renewal; 0 when it is lost. Where
 * another process renews it (a keeper, after a fork for instance), Redis is asked, which may take NETFLOCK_CONNECT_TIMEOUT;
 * if it gives no answer, what was known before counts: a lease that nobody can vouch for runs out.
 *
 * Returns 0, or -1 with errno as above.
 */
int netflock_lease(int fd, int64_t *remaining_ms);

#ifdef __cplusplus
}
#endif

#endif
