/*
 * See mutex.h: who has which mutex, in a build that asks.
 */
#include "base/mutex.h"

#ifdef NF_ASSERT_LOCKS

#include "base/sys.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_bool strict;

void nf_mutex_strict(void)
{
    atomic_store_explicit(&strict, true, memory_order_relaxed);
}

/* Not gettid() of the C library: a vfork child would be told its parent's number by some. */
static int self(void)
{
    return (int)syscall(SYS_gettid);
}

static _Noreturn void broken(const char *who, const char *rule, const char *what)
{
    char line[300];
    int n = snprintf(line, sizeof line, "netflock: %s(): %s%s\n", who, rule, what);
    (void)nf_sys.write(2, line, (size_t)(n < (int)sizeof line ? n : (int)sizeof line - 1));
    abort();
}

void nf_mutex_check(const struct nf_mutex *m, const char *who, const char *what)
{
    if (atomic_load_explicit(&m->owner, memory_order_relaxed) != self())
        broken(who, "the calling thread does not have ", what);
}

void nf_mutex_taken(struct nf_mutex *m)
{
    sigset_t now;
    if (atomic_load_explicit(&strict, memory_order_relaxed) && pthread_sigmask(SIG_SETMASK, NULL, &now) == 0)
        for (int sig = 1; sig < 32; sig++)
            if (sig != SIGKILL && sig != SIGSTOP && sigismember(&now, sig) != 1)
                broken(__func__, "a mutex is taken while signals may come", "");
    if (atomic_load_explicit(&m->owner, memory_order_relaxed) != 0)
        broken(__func__, "a mutex that another thread has is taken", "");
    atomic_store_explicit(&m->owner, self(), memory_order_relaxed);
}

void nf_mutex_given(struct nf_mutex *m)
{
    if (atomic_load_explicit(&m->owner, memory_order_relaxed) != self())
        broken(__func__, "a mutex is given back that the calling thread does not have", "");
    atomic_store_explicit(&m->owner, 0, memory_order_relaxed);
}

#endif
