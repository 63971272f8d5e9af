/*
 * Keeping tenures alive, and ending them.
 *
 * One background thread per process renews what the table holds and what no keeper renews; it starts with the first
 * tenure and ends shortly after the last. All functions here are called with signals blocked and cancellation off
 * (nf_quiet), the table not locked, unless said otherwise.
 */
#ifndef NF_LEASE_LEASE_H
#define NF_LEASE_LEASE_H

#include "lease/tenure.h"

/* Puts a granted tenure into the table and sees to its renewal. -EAGAIN when no thread can be had: not added. */
int nf_lease_add(struct nf_tenure *t);

/* Takes t out of the table and ends it in Redis, now or, if Redis does not answer, in the background. */
void nf_lease_end(struct nf_tenure *t);

/*
 * The kernel's lock of t's description has been given up. A shared tenure that a keeper has may stand for other readers
 * of this host as well: the keeper alone knows. An exclusive one is ours to release, whoever renews it.
 */
void nf_lease_unlocked(struct nf_tenure *t);

/* Ends what a token may hold or wait for; retried in the background until until_ms. Takes over names. */
void nf_lease_orphan(struct nf_names *names, const char *token, char mode, int64_t until_ms);

/*
 * Asks the kernel whether the lock behind t is still there, through any descriptor of this process, and ends t if
 * not. In doubt (no /proc) t stays. Returns true if t has ended.
 */
bool nf_lease_verify(struct nf_tenure *t);

/*
 * The tenure whose open file description fd refers to, referenced; NULL if this process has none.
 */
struct nf_tenure *nf_lease_of_fd(int fd, dev_t dev, ino_t ino);

/* Another descriptor of this process whose description holds t's kernel lock, for no other tenure; -ENOENT, -errno. */
int nf_lease_other_fd(const struct nf_tenure *t);

/* Around fork(). */
void nf_lease_fork_prepare(void);
void nf_lease_fork_parent(void);
void nf_lease_fork_child(void);

/* lost.c: says what happened to t, and applies NETFLOCK_ON_LOST. `holder`: who has it now, "" unknown. */
void nf_lost(const struct nf_tenure *t, const char *holder, const char *how);

#endif
