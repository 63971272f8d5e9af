/*
 * Getting a file from Redis, once the kernel's lock is ours.
 */
#ifndef NF_LOCK_ACQUIRE_H
#define NF_LOCK_ACQUIRE_H

#include "lock/match.h"

#include <signal.h>
#include <stdbool.h>

/* What the description had before the call. */
enum nf_before {
    NF_BEFORE_NONE, /* nothing, or a lock that we renewed ourselves */
    NF_BEFORE_KEPT, /* a lock that a keeper has: others share the description */
    NF_BEFORE_HAD,  /* the kernel's lock in this very mode: the call must not let it go, not even for a moment */
};

/*
 * Asks for f in mode 'x' or 's'; without `nonblock` waits for its turn, during which handlers run as `mask` lets
 * them. 0: held, in the table, and renewed (or, with NETFLOCK_ON_OUTAGE=local and Redis away, held on this host only).
 * -EWOULDBLOCK, -ENOLCK, -EINTR as nf_flock(); then nothing is left in Redis, or it is being undone.
 * `replaces`: the token of the lock that is being converted, "" if none. `forks` is nf_fork_count() from before the kernel's
 * lock was asked for. Called with all signals blocked; the caller gives the kernel's lock back on failure.
 */
int nf_acquire(int fd, const struct nf_file *f, char mode, bool nonblock, enum nf_before before, const char *replaces, const sigset_t *mask,
               unsigned forks);

#endif
