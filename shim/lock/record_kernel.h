/*
 * The kernel's part of a call for a byte range.
 */
#ifndef NF_LOCK_RECORD_KERNEL_H
#define NF_LOCK_RECORD_KERNEL_H

#include "lock/record_ask.h"

/* fl with an absolute range. */
void nf_record_absolute(struct flock *fl, uint64_t start, uint64_t end);

/* The kernel has no record locks for this file (err), or is not to be asked: does Redis alone decide? */
bool nf_record_alone(struct nf_record_call *k, int err);

/* Sets the range ('x', 's', or 'u' for none) in the kernel; with `wait` blocks as F_SETLKW. 0 or -errno. */
int nf_rk_set(struct nf_record_call *k, uint64_t start, uint64_t end, char mode, bool wait);

/* -EBADF where the kernel is not asked, and would say so of a descriptor that is not open for this. */
int nf_rk_check_mode(const struct nf_record_call *k);

/* Notes in k->had what the owner has in the kernel before the call. */
void nf_rk_look_before(struct nf_record_call *k, struct nf_record *r);

/* Takes k's range. -EAGAIN: k->piece_start and piece_end tell which part somebody else has; nothing is changed. */
int nf_rk_take(struct nf_record_call *k);

/* The kernel gets back what it had before (k->had): never more than it has now. */
void nf_rk_restore(struct nf_record_call *k, uint64_t start, uint64_t end);

/* Does the kernel have locks of this process that were taken before its exec? */
bool nf_rk_is_heir(const struct nf_record_call *k);

#endif
