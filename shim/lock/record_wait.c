/*
 * Waiting for a byte range: see record_ask.h. Between the tries nothing is held, neither the range nor the file's mutex.
 */
#include "lock/record_ask.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process.h"
#include "base/sigs.h"
#include "base/sleep.h"
#include "lease/lease.h"
#include "lock/outage.h"
#include "lock/record_kernel.h"
#include "lock/shadow.h"

#include <bsd/stdlib.h>
#include <errno.h>

/* Redis takes a waiter that asks no more for one no longer than this, or its owner's lease. */
#define NF_WAIT_KNOWN_MS 7000

/* How long to sleep before asking again when nobody wakes us: the first in line watch the end of the holder's lease. */
static int patience_ms(const struct nf_answer *a)
{
    int jitter = (int)arc4random_uniform(20);
    if (a->before_me >= 0 && a->before_me < 3 && a->left_ms >= 0 && a->left_ms < NF_WAITER_POLL_MS)
        return (int)a->left_ms + 2 + jitter + 25 * (int)a->before_me;
    return NF_WAITER_POLL_MS + 10 * jitter;
}

/*
 * Notes with Redis that we wait no more; in the background where it does not answer. As long as the owner holds anything it
 * would pass for a waiter, and others would be told of deadlocks that are none.
 */
static void cancel(const struct nf_record_call *k, struct nf_record *r, const struct nf_ticket *ticket, struct nf_range_answer *a)
{
    struct nf_names *names;
    struct nf_range_request q = nf_record_request(k, r);
    q.step = NF_STEP_CANCEL;
    q.ticket = ticket->token;
    if (a->result != NF_RANGE_DOWN)
        nf_record_ask(k, &q, a);
    if (a->result == NF_RANGE_DONE)
        return;
    names = nf_names_make(q.names->key, q.names->key_len);
    if (names)
        nf_lease_orphan(names, ticket->token, r->kind, nf_now_ms() + k->c->policy.ttl_ms + NF_WAIT_KNOWN_MS);
}

/*
 * A process of this host is in the way, and the kernel is to be waited for. A circle that runs through other hosts it cannot
 * see: Redis is told of our wait first, unless we hold nothing that anybody could wait for. With the file's mutex.
 */
static int announce(struct nf_record_call *k, struct nf_record *r, const struct nf_ticket *ticket, struct nf_range_answer *a)
{
    a->result = NF_RANGE_DONE;
    if (k->kind != 'p' || nf_tenure_count() == 0)
        return NF_TRY_KERNEL_BUSY;
    struct nf_range_request q = nf_record_request(k, r);
    q.step = NF_STEP_KERNEL;
    q.ticket = ticket->token;
    nf_record_ask(k, &q, a);
    k->queued = true;
    return a->result == NF_RANGE_DEADLOCK ? -EDEADLK : NF_TRY_KERNEL_BUSY;
}

static int kernel_wait(struct nf_record_call *k)
{
    nf_sigs_restore(k->mask);
    int e = nf_rk_set(k, k->piece_start, k->piece_end, k->mode, true);
    nf_sigs_block(NULL);
    k->waited = e == 0;
    return e < 0 ? e : NF_TRY_AGAIN;
}

/* `t`: the owner's, as it was when Redis was asked. */
static int redis_wait(const struct nf_record_call *k, const struct nf_tenure *t, const struct nf_ticket *ticket, struct nf_answer *a,
                      int *down_ms)
{
    struct nf_request q = {.names = t->names, .token = ticket->nonce, .mode = t->mode, .wait = true};
    if (nf_sigs_interrupting(k->mask))
        return -EINTR;
    int e = nf_op_wait(&k->c->redis, &q, patience_ms(a), k->mask, a);
    if (e == 0)
        *down_ms = 20;
    if (e == 0 || e == -EINTR)
        return e == 0 ? NF_TRY_AGAIN : e;
    if (e == -EACCES) {
        nf_refused(k->f.key, a->why);
        return -ENOLCK;
    }
    return NF_TRY_REDIS_DOWN;
}

/* A try has come to e: waits for what is in the way. Without the file's mutex. NF_TRY_AGAIN, -EDEADLK, or what is final. */
static int wait_once(struct nf_record_call *k, int e, const struct nf_tenure *t, const struct nf_ticket *ticket, struct nf_range_answer *a,
                     int *down_ms)
{
    if (e == NF_TRY_KERNEL_BUSY)
        e = kernel_wait(k);
    else if (e == NF_TRY_GRACE)
        e = nf_grace_pause(k->c, a->a.left_ms, k->mask) < 0 ? -EINTR : NF_TRY_AGAIN;
    else if (e == NF_TRY_REDIS_BUSY)
        e = redis_wait(k, t, ticket, &a->a, down_ms);
    if (e != NF_TRY_REDIS_DOWN)
        return e;
    nf_outage_began(k->c, a->a.why);
    return k->c->policy.on_outage == NF_OUTAGE_ERROR ? -ENOLCK : nf_back_off(down_ms, k->mask) < 0 ? -EINTR : NF_TRY_AGAIN;
}

static struct nf_tenure *reference(struct nf_tenure *t)
{
    nf_table_lock();
    nf_tenure_ref(t);
    nf_table_unlock();
    return t;
}

static void unreference(struct nf_tenure *t)
{
    nf_table_lock();
    nf_tenure_unref(t);
    nf_table_unlock();
}

/* F_SETLKW: tries, waits for what is in the way, tries again. The file's mutex is held between the waits. */
static int wait_for(struct nf_record_call *k, struct nf_record *r, struct nf_range_answer *a)
{
    struct nf_ticket ticket;
    int down_ms = 20;
    int deadlocks = 0;
    int e = nf_record_ticket(r, &ticket) < 0 ? -ENOLCK : NF_TRY_AGAIN;
    r->refs++;
    while (e == NF_TRY_AGAIN) {
        e = nf_record_try(k, r, &ticket, a);
        if (e <= 0 && e != -EDEADLK)
            break;
        if (e == NF_TRY_KERNEL_BUSY)
            e = announce(k, r, &ticket, a);
        struct nf_tenure *t = reference(r->t); /* another thread may give the owner a new one meanwhile */
        nf_mutex_unlock(&k->file->mu);
        e = wait_once(k, e, t, &ticket, a, &down_ms);
        unreference(t);
        /* A circle may only seem to be one while the news of an unlock is on its way: a real one does not go away. */
        if (e == -EDEADLK && a->result == NF_RANGE_DEADLOCK && ++deadlocks < 3)
            e = nf_sleep(15, k->mask) < 0 ? -EINTR : NF_TRY_AGAIN;
        nf_mutex_lock(&k->file->mu);
        (void)nf_record_check_lost(r);
    }
    if (k->queued) /* it failed, or another thread has got the range for all of us */
        cancel(k, r, &ticket, a);
    r->refs--;
    if (e != 0)
        nf_record_undo(r, NULL);
    return e;
}

int nf_record_lock(struct nf_record_call *k)
{
    struct nf_quiet quiet;
    int e = -ENOLCK;
    if (k->c->broken)
        return -ENOLCK; /* said when the configuration was read */
    nf_quiet(&quiet);
    k->alone = nf_shadow_wanted(k->c);
    k->mask = &quiet.mask;
    k->forks = nf_fork_count();
    struct nf_range_answer *a = nf_malloc(sizeof *a);
    if (a && nf_record_file_open(k)) {
        struct nf_record *r = nf_record_owner(k);
        if (r)
            e = k->wait ? wait_for(k, r, a) : nf_record_try(k, r, NULL, a);
        if (r)
            nf_record_tidy(r);
        nf_record_file_close(k);
    }
    nf_ranges_clear(&k->asked);
    nf_free(a);
    nf_loud(&quiet);
    return e == NF_TRY_KERNEL_BUSY || e == NF_TRY_REDIS_BUSY ? -EAGAIN : e == NF_TRY_REDIS_DOWN || e == NF_TRY_GRACE ? -ENOLCK : e;
}
