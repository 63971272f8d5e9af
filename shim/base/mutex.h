/*
 * The mutexes of the library and the keeper: pthread's own. In a build with -DNF_ASSERT_LOCKS, which the thread sanitizer's
 * is, each knows which thread has it, and a function that is to be called with a mutex held says so: nf_mutex_owed(). Who
 * does not have it then is ended with one line on descriptor 2. In every other build that is nothing at all.
 *
 * In the library they are taken with all signals blocked (nf_quiet): a wrapper that is called by a signal handler must not
 * meet one that its own thread has. That is checked likewise, from nf_mutex_strict() on.
 */
#ifndef NF_BASE_MUTEX_H
#define NF_BASE_MUTEX_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

struct nf_mutex {
    pthread_mutex_t m;
#ifdef NF_ASSERT_LOCKS
    atomic_int owner; /* the thread by the kernel's number, 0: nobody */
#endif
};

/* clang-format off */
#define NF_MUTEX_INITIALIZER {.m = PTHREAD_MUTEX_INITIALIZER}
/* clang-format on */

#ifdef NF_ASSERT_LOCKS
#define nf_mutex_owed(mutex) nf_mutex_check((mutex), __func__, #mutex)
void nf_mutex_check(const struct nf_mutex *m, const char *who, const char *what);
void nf_mutex_taken(struct nf_mutex *m);
void nf_mutex_given(struct nf_mutex *m);
/* From now on no mutex may be taken while a signal may come. */
void nf_mutex_strict(void);
#else
#define nf_mutex_owed(mutex) ((void)0)
#define nf_mutex_taken(mutex) ((void)0)
#define nf_mutex_given(mutex) ((void)0)
#define nf_mutex_strict() ((void)0)
#endif

/* Nobody has it: also in a forked child, whatever a thread of the parent had. */
static inline void nf_mutex_init(struct nf_mutex *m)
{
    (void)pthread_mutex_init(&m->m, NULL);
#ifdef NF_ASSERT_LOCKS
    atomic_store_explicit(&m->owner, 0, memory_order_relaxed);
#endif
}

static inline void nf_mutex_destroy(struct nf_mutex *m)
{
    (void)pthread_mutex_destroy(&m->m);
}

static inline void nf_mutex_lock(struct nf_mutex *m)
{
    (void)pthread_mutex_lock(&m->m);
    nf_mutex_taken(m);
}

/* 0, or -EBUSY. */
static inline int nf_mutex_trylock(struct nf_mutex *m)
{
    if (pthread_mutex_trylock(&m->m) != 0)
        return -EBUSY;
    nf_mutex_taken(m);
    return 0;
}

static inline void nf_mutex_unlock(struct nf_mutex *m)
{
    nf_mutex_given(m);
    (void)pthread_mutex_unlock(&m->m);
}

/* With the mutex held, which is given up meanwhile. `until` by the condition's clock, NULL: for ever. 0, or -ETIMEDOUT. */
static inline int nf_mutex_wait(struct nf_mutex *m, pthread_cond_t *cond, const struct timespec *until)
{
    nf_mutex_given(m);
    int r = until ? pthread_cond_timedwait(cond, &m->m, until) : pthread_cond_wait(cond, &m->m);
    nf_mutex_taken(m);
    return -r;
}

#endif
