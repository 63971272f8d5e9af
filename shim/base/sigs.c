/*
 * See sigs.h. pthread_sigmask() keeps glibc's two internal signals out of every set; one of them is
 * pthread_cancel()'s, which the cancel state holds off instead.
 */
#include "base/sigs.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>

void nf_sigs_block(sigset_t *old)
{
    sigset_t all;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, old);
}

void nf_sigs_restore(const sigset_t *mask)
{
    (void)pthread_sigmask(SIG_SETMASK, mask, NULL);
}

void nf_quiet(struct nf_quiet *q)
{
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &q->cancel_state);
    nf_sigs_block(&q->mask);
}

void nf_loud(const struct nf_quiet *q)
{
    nf_sigs_restore(&q->mask);
    (void)pthread_setcancelstate(q->cancel_state, NULL);
}

int nf_sigs_interrupting(const sigset_t *mask)
{
    sigset_t pending;
    if (sigpending(&pending) != 0)
        return 0;
    for (int sig = 1; sig < _NSIG; sig++) {
        struct sigaction sa;
        if (sigismember(&pending, sig) != 1 || sigismember(mask, sig) == 1)
            continue;
        if (sigaction(sig, NULL, &sa) == 0 && sa.sa_handler != SIG_DFL && sa.sa_handler != SIG_IGN && !(sa.sa_flags & SA_RESTART))
            return 1;
    }
    return 0;
}
