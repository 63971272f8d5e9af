/*
 * What is left in Redis of an end that could not be told to it: the renewal thread goes on trying.
 *
 * The list is guarded by the table's mutex.
 */
#ifndef NF_LEASE_ORPHAN_H
#define NF_LEASE_ORPHAN_H

#include "base/config.h"

#include <stdint.h>

/* When one is due; INT64_MAX if there is none. Table locked. */
int64_t nf_orphans_next(void);

/* Tries those that are due once more. Called by the renewal thread alone; the table not locked. */
void nf_orphans_try(const struct nf_config *c);

/* In a forked child: they are the parent's work. Table locked. */
void nf_orphans_forget(void);

/*
 * thread.c: sees to it that the renewal thread is awake at due_ms (CLOCK_BOOTTIME), and starts it if there is none. Table
 * locked. 0 or -errno.
 */
int nf_lease_run(int64_t due_ms);

/*
 * thread.c: the last tenure is gone. A thread that sleeps until its renewal (that may be many seconds) looks up, and ends when it
 * has lingered. One that looks up soon by itself is left alone: to wake it for each unlock would cost too much. Table locked.
 */
void nf_lease_idle(void);

/*
 * thread.c: while somebody stays, a thread that runs does not end. Starting one takes malloc(), which a signal handler
 * that calls close() may have interrupted; so it must still be there when a release fails and leaves an orphan. Table locked.
 */
void nf_lease_stay(bool stay);

#endif
