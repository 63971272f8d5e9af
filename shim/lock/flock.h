/*
 * flock(2) between hosts: the kernel first, then Redis.
 */
#ifndef NF_LOCK_FLOCK_H
#define NF_LOCK_FLOCK_H

/*
 * As flock(2), with a negative errno instead of -1 and errno. Beyond the kernel's errors: -EWOULDBLOCK when another
 * host holds the lock (LOCK_NB), -ENOLCK when nobody can tell, or Redis is away and the policy says so, -EINTR when a
 * handler without SA_RESTART ran while we waited for another host.
 */
int nf_flock(int fd, int op);

#endif
