/*
 * Asking, waiting, giving up: see acquire.h.
 */
#include "lock/acquire.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fdset.h"
#include "base/fdutil.h"
#include "base/log.h"
#include "base/process.h"
#include "base/sigs.h"
#include "base/sleep.h"
#include "lease/keeper.h"
#include "lease/lease.h"
#include "lock/outage.h"

#include <bsd/stdlib.h>
#include <bsd/string.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * A waiter keeps its place by asking again within this time. It is shorter at first, and for one that has been told to look:
 * where locks change hands fast, such a one need not be told again that a grant is to be watched (grant.lua).
 */
#define FIRST_SLEEP_MS 1200
#define SLEEP_MS 3200

/* So long, at most, LOCK_NB waits for a waiter to fetch his grant (grant.lua), and so often: some in a row may be dead. */
#define UNFETCHED_MAX_MS 200
#define LOOKS_MAX 3

/* The lease of a grant is renewed so soon after it. */
#define FIRST_RENEWAL_MS 50

/*
 * How long to sleep before asking again when nobody wakes us: less than q.sleep_ms. The head of the queue watches the end
 * of the holder's lease; the others only keep their place. A holder that is none of ours releases without handing over.
 */
static int patience_ms(const struct nf_answer *a, int sleep_ms, int *foreign_ms)
{
    int jitter = (int)arc4random_uniform(20);
    int poll_ms = sleep_ms - 200;
    if (strncmp(a->holder, "nf1:", 4) != 0) {
        *foreign_ms = *foreign_ms < 250 ? *foreign_ms * 2 : 250;
        return *foreign_ms / 2 + (int)arc4random_uniform((uint32_t)*foreign_ms);
    }
    /* Not only the head watches: it may be dead. So may be many, where there is a grant that nobody fetches. */
    if (a->before_me >= 0 && (a->before_me < 3 || a->left_ms <= 200) && a->left_ms >= 0 && a->left_ms < poll_ms)
        return (int)a->left_ms + 2 + jitter + 25 * (int)(a->before_me < 4 ? a->before_me : 4);
    return poll_ms + 10 * jitter;
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

/* What asking can come to, besides 0 (granted) and a negative errno. */
enum { LOCAL_ONLY = 1, UNLOCKED, AGAIN };

struct asking {
    const struct nf_config *c;
    const struct nf_file *f;
    struct nf_request q;
    int fd;
    bool nonblock;
    const sigset_t *mask;
    struct nf_answer a;
    const char *replaces; /* the token of a keeper's that is converted; "" none */
    bool reached;         /* a request may have left something in Redis */
    int down_ms, foreign_ms;
    int looks;                       /* of a LOCK_NB at a grant that nobody has fetched */
    int64_t renewed_ms, deadline_ms; /* of the lease that was granted (struct nf_tenure) */
    char token[NF_TOKEN_MAX];
    char stale[NF_TOKEN_MAX];
};

/*
 * Do we still have the kernel's lock? Another thread or process with the same description may have unlocked or
 * converted it while we were talking to Redis. In doubt, yes.
 */
static bool have_kernel_lock(const struct asking *k)
{
    int mode = nf_fd_lock_mode(k->f->shadow >= 0 ? k->f->shadow : k->fd, k->f->lock_ino, k->f->shadow >= 0);
    return mode < 0 || mode == k->q.mode;
}

/*
 * The file is taken by a token of our own identity. It was in Redis before we looked at the kernel's lock just now and
 * found it ours: so whoever made the token has no lock any more, and it may be removed. Its keeper, if it has one,
 * is told, or it would take this for a loss.
 */
static int adopt(struct asking *k)
{
    (void)strlcpy(k->stale, k->a.holder, sizeof k->stale);
    k->q.adopt = k->stale;
    if (k->c->policy.keeper != NF_KEEPER_NEVER)
        (void)nf_keeper_ended(k->f->lock_dev, k->f->lock_ino, k->f->key, k->f->key_len, k->stale);
    return AGAIN;
}

static int refused(const struct asking *k)
{
    nf_refused(k->f->key, k->a.why);
    return -ENOLCK;
}

/* No usable answer. */
static int down(struct asking *k)
{
    nf_outage_began(k->c, k->a.why);
    if (k->c->policy.on_outage == NF_OUTAGE_LOCAL)
        return LOCAL_ONLY;
    if (k->nonblock || k->c->policy.on_outage == NF_OUTAGE_ERROR)
        return -ENOLCK;
    int r = nf_back_off(&k->down_ms, k->mask);
    return r < 0 ? r : AGAIN;
}

/*
 * The message that woke us says that Redis has given us the file at grant_at_ms of its clock, for grant_ms. That counts from
 * a moment which lies, after the last ask was sent, at least as much later as Redis measured between its answer and the
 * grant. Unless Redis' clock was set in between: it cannot have measured more time than has passed here. If that, or how
 * little is left, leaves a doubt, we ask.
 */
static bool accept(struct asking *k)
{
    const struct nf_answer *a = &k->a;
    int64_t now = nf_now_ms();
    int64_t later = a->grant_at_ms - a->redis_ms;
    if (a->grant_ms == 0 || later < 0 || later > now - a->sent_ms + 1)
        return false;
    int64_t deadline = nf_lease_deadline(a->sent_ms + (later > 0 ? later - 1 : 0), a->grant_ms);
    if (deadline - now < a->grant_ms / 2)
        return false;
    /* A short lease, as long as nobody knows that we live. To be renewed soon: a lock that lasts no longer needs no more. */
    int first = a->grant_ms / 8 < FIRST_RENEWAL_MS ? a->grant_ms / 8 : FIRST_RENEWAL_MS;
    k->deadline_ms = deadline;
    k->renewed_ms = now + first - k->c->policy.ttl_ms / 3;
    return true;
}

/*
 * For LOCK_NB: the file has been granted to a waiter who has not come yet. In a moment it is known whether he is dead; then the
 * next look takes the grant back. No signal ends a LOCK_NB.
 */
static int look_again(struct asking *k)
{
    sigset_t all;
    if (k->a.unfetched_ms <= 0 || k->a.unfetched_ms > UNFETCHED_MAX_MS || ++k->looks > LOOKS_MAX)
        return -EWOULDBLOCK;
    sigfillset(&all);
    (void)nf_sleep((int)k->a.unfetched_ms + 1, &all);
    return AGAIN;
}

static int busy(struct asking *k)
{
    nf_outage_over(k->c);
    k->down_ms = 20;
    k->reached = true;
    if (!have_kernel_lock(k))
        return UNLOCKED;
    if (k->replaces[0]) {
        /* What is converted has ended now, and another host may have the file: its keeper is not to call that a loss. */
        (void)nf_keeper_ended(k->f->lock_dev, k->f->lock_ino, k->f->key, k->f->key_len, k->replaces);
        k->replaces = "";
    }
    if (k->q.identity_len > 0 && strncmp(k->a.holder, k->token, (size_t)k->q.identity_len) == 0)
        return adopt(k);
    k->q.adopt = "";
    if (k->nonblock)
        return look_again(k);
    if (nf_sigs_interrupting(k->mask))
        return -EINTR;
    int r = nf_op_wait(&k->c->redis, &k->q, patience_ms(&k->a, k->q.sleep_ms, &k->foreign_ms), k->mask, &k->a);
    k->q.sleep_ms = r == 0 && k->a.told ? FIRST_SLEEP_MS : SLEEP_MS;
    if (r == -EACCES)
        return refused(k);
    if (r < 0 && r != -EINTR) {
        k->a.outcome = NF_DOWN;
        return down(k);
    }
    if (r < 0)
        return r;
    bool granted = accept(k);
    return !have_kernel_lock(k) ? UNLOCKED : granted ? 0 : AGAIN;
}

/* Asks until it is granted (0), or comes to another end; then what may be left in Redis is withdrawn. */
static int ask(struct asking *k)
{
    bool waited = false;
    int r = AGAIN;
    while (r == AGAIN) {
        nf_op_acquire(k->c, &k->q, nf_now_ms() + k->c->redis.timeout_ms, &k->a);
        k->reached = k->reached || k->a.reached;
        switch (k->a.outcome) {
        case NF_GRANTED:
            nf_outage_over(k->c);
            nf_granted(k->f->key);
            k->reached = true;
            k->renewed_ms = k->a.sent_ms;
            k->deadline_ms = nf_lease_deadline(k->a.sent_ms, k->c->policy.ttl_ms);
            r = waited && !have_kernel_lock(k) ? UNLOCKED : 0;
            break;
        case NF_BUSY:
            waited = true;
            r = busy(k);
            break;
        case NF_GRACE:
            nf_outage_over(k->c);
            nf_grace_say(k->c, k->a.left_ms);
            r = k->nonblock ? -ENOLCK : nf_grace_pause(k->c, k->a.left_ms, k->mask) < 0 ? -EINTR : have_kernel_lock(k) ? AGAIN : UNLOCKED;
            break;
        case NF_DOWN:
            r = down(k);
            break;
        case NF_REFUSED:
            r = refused(k);
            break;
        }
    }
    /* A refused LOCK_NB was never queued. */
    if (r != 0 && k->reached && r != -EWOULDBLOCK)
        withdraw(k->c, &k->q, k->a.outcome != NF_DOWN);
    return r;
}

static int enter_table(const struct asking *k, struct nf_names *names, bool shared)
{
    const struct nf_config *c = k->c;
    const struct nf_file *f = k->f;
    const struct nf_request *q = &k->q;
    int fd = k->fd;
    struct nf_tenure *t = nf_tenure_new(names, q->token, q->identity_len, q->mode, f->dev, f->ino, fd);
    if (!t)
        return -ENOLCK;
    t->renewed_ms = t->tried_ms = k->renewed_ms;
    t->deadline_ms = k->deadline_ms;
    memcpy(t->fence, k->a.fence, sizeof t->fence);
    t->lock_dev = f->lock_dev;
    t->lock_ino = f->lock_ino;
    t->shadow = f->shadow;
    int r = nf_lease_add(t);
    if (r < 0)
        t->shadow = -1; /* it stays the caller's, and nobody else has seen t */
    if (r < 0) {
        nf_log(NF_LOG_ERROR, "no lock on %s (ENOLCK): no thread to renew it (error %d)", q->names->key, -r);
        r = -ENOLCK;
    } else if (c->policy.keeper == NF_KEEPER_ALWAYS || (c->policy.keeper == NF_KEEPER_AUTO && (shared || nf_shared(fd)))) {
        /* Another process has the description, or got it while we waited: it may outlive us by any death of ours. */
        (void)nf_keeper_give(&t, 1);
    }
    nf_table_lock();
    nf_tenure_unref(t);
    nf_table_unlock();
    return r;
}

int nf_acquire(int fd, const struct nf_file *f, char mode, bool nonblock, enum nf_before before, const char *replaces, const sigset_t *mask,
               unsigned forks)
{
    struct asking k = {.c = nf_config(), .f = f, .fd = fd, .nonblock = nonblock, .mask = mask, .down_ms = 20, .foreign_ms = 20};
    int identity = nf_token_make(k.token, k.c->policy.host_extra, f->lock_dev, f->lock_ino);
    struct nf_names *names = identity < 0 ? NULL : nf_names_make(f->key, f->key_len);
    if (!names) {
        nf_log(NF_LOG_ERROR, "no lock on %s (ENOLCK): %s", f->key, identity < 0 ? "the boot id cannot be read" : "out of memory");
        return -ENOLCK;
    }
    k.q = (struct nf_request){.names = names,
                              .token = k.token,
                              .identity_len = identity,
                              .adopt = replaces,
                              .had = before == NF_BEFORE_HAD,
                              .mode = mode,
                              .wait = !nonblock,
                              .sleep_ms = FIRST_SLEEP_MS};
    k.replaces = before == NF_BEFORE_KEPT ? replaces : "";
    int r = ask(&k);
    if (r != 0) {
        nf_free(names);
        return r < 0 ? r : 0; /* UNLOCKED: as if we had got the lock, and then the other one had unlocked it */
    }
    r = enter_table(&k, names, before != NF_BEFORE_NONE || forks != nf_fork_count()); /* takes over names */
    if (r < 0 && (names = nf_names_make(f->key, f->key_len)))
        nf_lease_orphan(names, k.token, mode, nf_now_ms() + k.c->policy.ttl_ms);
    return r;
}
