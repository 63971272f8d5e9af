/*
 * Redis is away, or has come back: what is said, and how long one waits before asking again.
 */
#ifndef NF_LOCK_OUTAGE_H
#define NF_LOCK_OUTAGE_H

#include "base/config.h"

#include <signal.h>
#include <stdint.h>

/* One line when Redis goes away, one when it is back: not one for each try. */
void nf_outage_began(const struct nf_config *c, const char *why);
void nf_outage_over(const struct nf_config *c);

/* Redis refuses a lock on the file `key`: one line, not repeated until this file's lock is granted, or another reason comes up. */
void nf_refused(const char *key, const char *why);
void nf_granted(const char *key);

/* In the grace after a restart of Redis (left_ms of it): one line, then a pause until it may be over. -EINTR as nf_sleep(). */
int nf_grace_pause(const struct nf_config *c, int64_t left_ms, const sigset_t *mask);
void nf_grace_say(const struct nf_config *c, int64_t left_ms);

/* Pauses for about *ms, and doubles it (2 s at most). -EINTR as nf_sleep(). */
int nf_back_off(int *ms, const sigset_t *mask);

#endif
