/*
 * The two kinds of lock that an open file description can hold in the kernel: flock(2)'s, and, on our own stand-ins,
 * open file description locks (F_OFD_SETLK), which a sandbox that forbids flock(2) still allows.
 */
#ifndef NF_BASE_KLOCK_H
#define NF_BASE_KLOCK_H

#include "base/ranges.h"

#include <stdbool.h>

/* op as for flock(2): LOCK_SH, LOCK_EX, LOCK_UN, with LOCK_NB. Returns 0 or -errno, -EWOULDBLOCK among them. */
int nf_klock(int fd, int op, bool ofd);

/*
 * Which bytes of fd's file are under a record lock of some process ('p') or open file description ('o') of this machine?
 * Asked with F_GETLK or F_OFD_GETLK (cmd), as an owner that is not the one in question; of several locks on one byte the
 * kernel tells of one. In doubt a byte counts: then others keep this machine's shared lock on it anyway. Adds them to *out as
 * exclusive. 0, -ENOMEM, -errno.
 */
int nf_klock_ranges(int fd, int cmd, char kind, struct nf_ranges *out);

#endif
