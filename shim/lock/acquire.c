/*
 * Asking, waiting, giving up: see acquire.h.
 */
#include "lock/acquire.h"

#include "base/clock.h"
#include "base/fdutil.h"
#include "base/log.h"
#include "base/process.h"
#include "base/sigs.h"
#include "base/sleep.h"
#include "lease/keeper.h"
#include "lease/lease.h"

#include <bsd/stdlib.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_bool outage_said;

/* One line when Redis goes away, one when it is back: not one for each try. */
static void note_outage(const struct nf_config *c, const char *why)
{
    char name[400];
    if (atomic_exchange(&outage_said, true))
        return;
    nf_redis_name(&c->redis, name, sizeof name);
    nf_log(NF_LOG_WARN, "Redis at %s gives no usable answer: %s", name, why);
}

static void note_answer(const struct nf_config *c)
{
    char name[400];
    if (!atomic_load_explicit(&outage_said, memory_order_relaxed) || !atomic_exchange(&outage_said, false))
        return;
    nf_redis_name(&c->redis, name, sizeof name);
    nf_log(NF_LOG_WARN, "Redis at %s answers again", name);
}

/*
 * How long to sleep before asking again when nobody wakes us. The head of the queue watches the end of the holder's
 * lease; the others only keep their place. A holder that is none of ours releases without handing over.
 */
static int patience_ms(const struct nf_answer *a, int *foreign_ms)
{
    int jitter = (int)arc4random_uniform(20);
    if (strncmp(a->holder, "nf1:", 4) != 0) {
        *foreign_ms = *foreign_ms < 250 ? *foreign_ms * 2 : 250;
        return *foreign_ms / 2 + (int)arc4random_uniform((uint32_t)*foreign_ms);
    }
    if (a->before_me == 0 && a->left_ms >= 0 && a->left_ms < NF_WAITER_POLL_MS)
        return (int)a->left_ms + 2 + jitter;
    return NF_WAITER_POLL_MS + 10 * jitter;
}

/* Not there: pause, longer each time. -EINTR as nf_sleep(). */
static int back_off(int *ms, const sigset_t *mask)
{
    int pause = *ms / 2 + (int)arc4random_uniform((uint32_t)*ms);
    *ms = *ms * 2 < 2000 ? *ms * 2 : 2000;
    return nf_sleep(pause, mask);
}

/* Withdraws the token, if need be in the background. `quick`: Redis has just answered, so it will again. */
static void withdraw(const struct nf_config *c, const struct nf_request *q, bool quick)
{
    struct nf_answer a;
    if (quick && nf_op_release(&c->redis, &c->policy, q, nf_now_ms() + c->redis.timeout_ms, &a) >= 0)
        return;
    struct nf_names *names = nf_names_make(q->names->key, q->names->key_len);
    if (names)
        nf_lease_orphan(names, q->token, q->mode, nf_now_ms() + c->policy.ttl_ms);
}

enum { LOCAL_ONLY = 1 };

/* 0: granted (see *a). LOCAL_ONLY. -errno: nothing is held; what may be left is withdrawn. */
static int ask(const struct nf_config *c, struct nf_request *q, bool nonblock, const sigset_t *mask, struct nf_answer *a, bool *waited)
{
    int down_ms = 20;
    int foreign_ms = 20;
    bool asked = false;
    int r;
    for (;;) {
        nf_op_acquire(c, q, nf_now_ms() + c->redis.timeout_ms, a);
        r = 0;
        if (a->outcome == NF_GRANTED) {
            note_answer(c);
            break;
        }
        if (a->outcome == NF_REFUSED) {
            nf_log(NF_LOG_ERROR, "no lock on %s (ENOLCK): Redis says: %s", q->names->key, a->why);
            r = -ENOLCK;
            break;
        }
        if (a->outcome == NF_BUSY) {
            note_answer(c);
            asked = *waited = true;
            down_ms = 20;
            r = nonblock ? -EWOULDBLOCK : nf_sigs_interrupting(mask) ? -EINTR : 0;
            if (r == 0)
                r = nf_op_wait(&c->redis, q, patience_ms(a, &foreign_ms), mask, a);
            if (r == 0)
                continue;
            if (r == -EINTR || r == -EWOULDBLOCK)
                break;
            if (r == -EACCES) {
                nf_log(NF_LOG_ERROR, "no lock on %s (ENOLCK): Redis says to BLPOP: %s", q->names->key, a->why);
                r = -ENOLCK;
                break;
            }
            a->outcome = NF_DOWN;
        }
        asked = asked || a->reached;
        note_outage(c, a->why);
        r = c->policy.on_outage == NF_OUTAGE_LOCAL               ? LOCAL_ONLY
            : nonblock || c->policy.on_outage == NF_OUTAGE_ERROR ? -ENOLCK
                                                                 : back_off(&down_ms, mask);
        if (r != 0)
            break;
    }
    if (r != 0 && asked && r != -EWOULDBLOCK)
        withdraw(c, q, a->outcome != NF_DOWN);
    return r;
}

static int enter_table(int fd, const struct nf_file *f, struct nf_names *names, const struct nf_request *q, const struct nf_answer *a,
                       unsigned forks)
{
    const struct nf_config *c = nf_config();
    struct nf_tenure *t = nf_tenure_new(names, q->token, q->identity_len, q->mode, f->dev, f->ino, fd);
    if (!t)
        return -ENOLCK;
    t->renewed_ms = t->tried_ms = a->sent_ms;
    t->deadline_ms = nf_lease_deadline(a->sent_ms, c->policy.ttl_ms);
    memcpy(t->fence, a->fence, sizeof t->fence);
    t->lock_dev = f->lock_dev;
    t->lock_ino = f->lock_ino;
    int r = nf_lease_add(t);
    t->shadow = r < 0 ? -1 : f->shadow; /* ours from now on */
    if (r < 0) {
        nf_log(NF_LOG_ERROR, "no lock on %s (ENOLCK): no thread to renew it (error %d)", q->names->key, -r);
        r = -ENOLCK;
    } else if (c->policy.keeper == NF_KEEPER_ALWAYS || (forks != nf_fork_count() && c->policy.keeper == NF_KEEPER_AUTO)) {
        /* Forked in the meantime: a child has the descriptor with the kernel's lock, and its hand-over missed us. */
        (void)nf_keeper_give(&t, 1);
    }
    nf_table_lock();
    nf_tenure_unref(t);
    nf_table_unlock();
    return r;
}

int nf_acquire(int fd, const struct nf_file *f, char mode, bool nonblock, const sigset_t *mask, unsigned forks)
{
    const struct nf_config *c = nf_config();
    char token[NF_TOKEN_MAX];
    struct nf_answer a;
    int identity = nf_token_make(token, c->policy.host_extra, f->lock_dev, f->lock_ino);
    struct nf_names *names = identity < 0 ? NULL : nf_names_make(f->key, f->key_len);
    if (!names) {
        nf_log(NF_LOG_ERROR, "no lock on %s (ENOLCK): %s", f->key, identity < 0 ? "the boot id cannot be read" : "out of memory");
        return -ENOLCK;
    }
    struct nf_request q = {.names = names, .token = token, .identity_len = identity, .mode = mode, .wait = !nonblock};
    bool waited = false;
    int r = ask(c, &q, nonblock, mask, &a, &waited);
    if (r == 0) {
        /* While we waited, another thread or process may have unlocked this very description: then the kernel gave the
           lock, and took it back. */
        if (waited && nf_fd_lock_mode(f->shadow >= 0 ? f->shadow : fd, f->lock_ino, f->shadow >= 0) == 0) {
            withdraw(c, &q, true);
            free(names);
            return 0;
        }
        r = enter_table(fd, f, names, &q, &a, forks); /* takes over names */
        if (r < 0) {
            names = nf_names_make(f->key, f->key_len);
            if (names)
                nf_lease_orphan(names, token, mode, nf_now_ms() + c->policy.ttl_ms);
        }
        return r;
    }
    free(names);
    return r == LOCAL_ONLY ? 0 : r;
}
