/*
 * Watching the kernel's lock: see keeper.h.
 *
 * The thread's blocking flock() tells only that the lock was free at some moment. Between that and the mutex a new
 * holder may have come, and may even have handed its tenure over. So the verdict is given under the mutex, by a second,
 * non-blocking flock() on the same description: while we hold it, nobody else does, and whoever hands over a tenure
 * does so while holding it; so all tenures that are in the list at that moment have ended.
 */
#include "keeper/keeper.h"

#include "base/fdutil.h"
#include "base/klock.h"
#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

static bool live_locked(struct kfile *f)
{
    struct kept *k;
    nf_mutex_owed(&f->mu);
    TAILQ_FOREACH (k, &f->tenures, link)
        if (!k->ended)
            return true;
    return false;
}

bool kfile_has_live(struct kfile *f)
{
    nf_mutex_lock(&f->mu);
    bool live = live_locked(f);
    nf_mutex_unlock(&f->mu);
    return live;
}

int kfile_fresh(struct kfile *f)
{
    nf_mutex_lock(&f->mu);
    int fresh = f->fresh;
    nf_mutex_unlock(&f->mu);
    return fresh;
}

bool kfile_watched(struct kfile *f)
{
    nf_mutex_lock(&f->mu);
    bool has = f->has_thread;
    nf_mutex_unlock(&f->mu);
    return has;
}

bool kfile_has_ended(struct kfile *f, const struct kept *k)
{
    nf_mutex_lock(&f->mu);
    bool ended = k->ended;
    nf_mutex_unlock(&f->mu);
    return ended;
}

static void end_all_locked(struct kfile *f)
{
    struct kept *k;
    nf_mutex_owed(&f->mu);
    TAILQ_FOREACH (k, &f->tenures, link)
        k->ended = true;
}

/* The verdict, by our own description. */
static bool look_locked(struct kfile *f)
{
    nf_mutex_owed(&f->mu);
    int r = nf_klock(f->fresh, LOCK_EX | LOCK_NB, f->ofd);
    if (r == -EBADF && !f->has_thread)
        f->fresh = -1; /* NFS wants a writable descriptor for an exclusive lock: next time by /proc/locks */
    if (r < 0)
        return false;
    end_all_locked(f);
    (void)nf_klock(f->fresh, LOCK_UN, f->ofd);
    return true;
}

/*
 * Without a description of our own /proc/locks has to do, read without the mutex. Then the file has no thread, and we are the
 * main thread, which alone adds tenures: none can come between the look and the verdict.
 */
static bool look_in_proc(struct kfile *f)
{
    if (nf_inode_locked((ino_t)f->ino, f->ofd, 0) != 0)
        return false;
    nf_mutex_lock(&f->mu);
    end_all_locked(f);
    nf_mutex_unlock(&f->mu);
    return true;
}

bool kfile_look(struct kfile *f)
{
    bool free_now = false;
    nf_mutex_lock(&f->mu);
    bool fresh = f->fresh >= 0;
    if (fresh)
        free_now = look_locked(f);
    nf_mutex_unlock(&f->mu);
    return fresh ? free_now : look_in_proc(f);
}

static void *watch(void *arg)
{
    struct kfile *f = arg;
    for (;;) {
        nf_mutex_lock(&f->mu);
        while (!live_locked(f))
            (void)nf_mutex_wait(&f->mu, &f->work, NULL);
        nf_mutex_unlock(&f->mu);
        int r = nf_klock(f->fresh, LOCK_EX, f->ofd);
        if (r < 0 && r != -EINTR) {
            /* The file system has stopped to answer: the main thread falls back to /proc/locks. */
            nf_mutex_lock(&f->mu);
            f->fresh = -1;
            f->has_thread = false;
            nf_mutex_unlock(&f->mu);
            (void)nf_sys.write(keeper.wake[1], "", 1);
            return NULL;
        }
        if (r == 0 && kfile_look(f))
            (void)nf_sys.write(keeper.wake[1], "", 1);
        else if (r == 0)
            (void)nf_klock(f->fresh, LOCK_UN, f->ofd); /* cannot happen: our own description held it */
    }
}

/* Beyond so many, or when no thread can be had, a file is looked at now and then instead (tend.c). */
#define THREADS_MAX 256

#define STACK_BYTES (32 * 1024)

static int threads; /* that have been started; one whose file system has failed it counts on */

void kfile_watch_start(struct kfile *f)
{
    pthread_attr_t attr;
    if (kfile_fresh(f) < 0 || threads >= THREADS_MAX)
        return;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    /* It may end at once, and would say so before we say that it is there. */
    nf_mutex_lock(&f->mu);
    f->has_thread = pthread_create(&f->thread, &attr, watch, f) == 0;
    threads += f->has_thread;
    nf_mutex_unlock(&f->mu);
    pthread_attr_destroy(&attr);
}

/* The thread may have had the mutex. What that guards is a flag that only ever gets set. */
void kfile_watch_forget(struct kfile *f)
{
    threads -= f->has_thread;
    f->has_thread = false;
    nf_mutex_init(&f->mu);
    pthread_cond_init(&f->work, NULL);
}

static unsigned long long fence_of(const struct kept *k)
{
    return strtoull(k->fence, NULL, 10);
}

/*
 * The kernel let the new one in. So an earlier exclusive tenure, or any earlier one beside a new exclusive, has ended
 * without our having seen it. Two shared tenures of one host are one to the others: one token is enough. The newest is
 * kept (the fence tells, not the order of arrival), while an older one may have been adopted away unseen. What is ended is
 * released by its token, which does no harm where Redis does not know it any more. The same token may come twice, from
 * two threads of one process, or from a process and its vfork child.
 */
void kfile_add(struct kfile *f, struct kept *k)
{
    struct kept *old;
    bool known = false;
    nf_mutex_lock(&f->mu);
    TAILQ_FOREACH (old, &f->tenures, link) {
        if (strcmp(old->token, k->token) == 0)
            known = true;
        else if (fence_of(old) <= fence_of(k))
            old->ended = true;
        else if (!old->ended)
            k->ended = true;
    }
    if (!known)
        TAILQ_INSERT_TAIL(&f->tenures, k, link);
    pthread_cond_signal(&f->work);
    nf_mutex_unlock(&f->mu);
    if (known)
        free(k);
}

bool kfile_ended(struct kfile *f, const char *token)
{
    struct kept *k;
    bool found = false;
    nf_mutex_lock(&f->mu);
    TAILQ_FOREACH (k, &f->tenures, link)
        if (strcmp(k->token, token) == 0)
            found = k->ended = true;
    nf_mutex_unlock(&f->mu);
    return found;
}
