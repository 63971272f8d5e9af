/*
 * What a program may know about a lock of its own: netflock_fence() and netflock_lease().
 */
#ifndef NF_LOCK_INQUIRE_H
#define NF_LOCK_INQUIRE_H

#include <stdbool.h>
#include <stdint.h>

struct nf_inquiry {
    uint64_t fence;
    int64_t left_ms; /* the lease is certain to be ours for so long; 0 when it is lost */
};

/*
 * The lock behind fd: the flock of its open file description; if it has none, that description's record locks; if it has
 * none, the process's record locks of the file. `lease`: left_ms is wanted, for which Redis is asked where somebody else
 * renews the lock. It is also asked about an flock that was taken by another process and came with the descriptor.
 * 0, or -errno: -EBADF, -ENOLCK no lock between hosts, -EIO another process took it and Redis gives no answer.
 */
int nf_inquire(int fd, bool lease, struct nf_inquiry *out);

#endif
