/*
 * Signals and cancellation, held off while the shim's state is in motion.
 */
#ifndef NF_BASE_SIGS_H
#define NF_BASE_SIGS_H

#include <signal.h>

/* What nf_quiet() changed, for nf_loud(). */
struct nf_quiet {
    sigset_t mask;
    int cancel_state;
};

/* Blocks every signal and pthread_cancel() in this thread. Keeps errno. */
void nf_quiet(struct nf_quiet *q);
void nf_loud(const struct nf_quiet *q);

/* Sets the thread's signal mask; block(NULL) blocks all without asking for the old mask. */
void nf_sigs_block(sigset_t *old);
void nf_sigs_restore(const sigset_t *mask);

/*
 * All signals are blocked. Would one that is pending now, and that `mask` lets through, run a handler that was
 * installed without SA_RESTART? Then the kernel would have interrupted a system call with EINTR.
 */
int nf_sigs_interrupting(const sigset_t *mask);

#endif
