/*
 * Hand-overs to a new keeper that has not answered yet.
 */
#ifndef NF_LEASE_PENDING_H
#define NF_LEASE_PENDING_H

#include "lease/tenure.h"

#define NF_PENDING_LOOK_MS 10

/*
 * The n tenures have been sent through ctl to a keeper that has been started: they count as kept from now on. Takes over
 * ctl. False if there is no memory for that: then the answer must be waited for. Table not locked.
 */
bool nf_pending_add(int ctl, struct nf_tenure **list, size_t n);

/* Collects what has been answered; with `wait` all, at most NF_HO_ANSWER_MS after it was sent. Table not locked. */
void nf_pending_settle(bool wait);

/* When to look; INT64_MAX if nothing is outstanding. Table locked. */
int64_t nf_pending_next(void);

/* In a forked child: the answers are the parent's. Table locked. */
void nf_pending_fork_child(void);

#endif
