/*
 * Redis is away, or has come back: what is said, and how long one waits before asking again.
 */
#ifndef NF_LOCK_OUTAGE_H
#define NF_LOCK_OUTAGE_H

#include "base/config.h"

#include <signal.h>

/* One line when Redis goes away, one when it is back: not one for each try. */
void nf_outage_began(const struct nf_config *c, const char *why);
void nf_outage_over(const struct nf_config *c);

/* Pauses for about *ms, and doubles it (2 s at most). -EINTR as nf_sleep(). */
int nf_back_off(int *ms, const sigset_t *mask);

#endif
