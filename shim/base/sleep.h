/*
 * A sleep that a signal treats as it would treat flock(2).
 */
#ifndef NF_BASE_SLEEP_H
#define NF_BASE_SLEEP_H

#include <signal.h>

/*
 * Sleeps for ms with the host's signal mask. 0, or -EINTR when a handler ran that was installed without SA_RESTART;
 * a handler with SA_RESTART does not cut the sleep short. (nanosleep, poll and condition variables return EINTR for
 * both, or for neither; see signal(7).) Called with all signals blocked, returns so.
 */
int nf_sleep(int ms, const sigset_t *mask);

#endif
