/*
 * The two kinds of lock that an open file description can hold in the kernel: flock(2)'s, and, on our own stand-ins,
 * open file description locks (F_OFD_SETLK), which a sandbox that forbids flock(2) still allows.
 */
#ifndef NF_BASE_KLOCK_H
#define NF_BASE_KLOCK_H

#include <stdbool.h>

/* op as for flock(2): LOCK_SH, LOCK_EX, LOCK_UN, with LOCK_NB. Returns 0 or -errno, -EWOULDBLOCK among them. */
int nf_klock(int fd, int op, bool ofd);

#endif
