/*
 * See record_ask.h, and docs/design.md for the states and crash points.
 */
#include "lock/record_ask.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fdset.h"
#include "base/log.h"
#include "base/process.h"
#include "base/sigs.h"
#include "lease/keeper.h"
#include "lease/lease.h"
#include "lock/outage.h"
#include "lock/record_kernel.h"
#include "lock/shadow.h"

#include <errno.h>
#include <string.h>

bool nf_record_file_open(struct nf_record_call *k)
{
    k->file = nf_record_file_get(k->f.dev, k->f.ino);
    if (k->file)
        nf_mutex_lock(&k->file->mu);
    return k->file;
}

void nf_record_file_close(struct nf_record_call *k)
{
    if (!k->file)
        return;
    nf_mutex_unlock(&k->file->mu);
    nf_record_file_put(k->file);
}

struct nf_range_request nf_record_request(const struct nf_record_call *k, struct nf_record *r)
{
    nf_mutex_owed(&r->file->mu);
    return (struct nf_range_request){.names = r->t->names,
                                     .token = r->t->token,
                                     .identity_len = k->alone ? 0 : r->t->identity_len,
                                     .seq = ++r->seq,
                                     .mode = k->mode,
                                     .start = k->start,
                                     .end = k->end,
                                     .holds = r->held.n > 0 && nf_tenure_listed(r->t),
                                     .ticket = "",
                                     .adopt = ""};
}

void nf_record_ask(const struct nf_record_call *k, const struct nf_range_request *q, struct nf_range_answer *a)
{
    nf_range_set(k->c, q, nf_now_ms() + k->c->redis.timeout_ms, a);
}

struct nf_record *nf_record_owner(struct nf_record_call *k)
{
    nf_mutex_owed(&k->file->mu);
    struct nf_record *r = nf_record_find(k->file, k->kind, k->fd);
    if (r)
        (void)nf_record_check_lost(r);
    else
        r = nf_record_new(k->file, k->kind, k->fd, k->f.key, k->f.key_len);
    if (r && !r->held.n)
        r->heir = nf_rk_is_heir(k);
    if (r)
        r->alone = r->alone || k->alone;
    return r;
}

int nf_record_test(struct nf_record_call *k, struct nf_range_answer **out)
{
    struct nf_record *r = nf_record_owner(k);
    struct nf_range_answer *a = *out = nf_malloc(sizeof *a);
    int e = -ENOLCK;
    if (r && a) {
        struct nf_range_request q = nf_record_request(k, r);
        nf_range_test(k->c, &q, nf_now_ms() + k->c->redis.timeout_ms, a);
        if (a->result == NF_RANGE_BUSY || a->result == NF_RANGE_DONE)
            nf_outage_over(k->c);
        else
            nf_outage_began(k->c, a->a.why);
        bool local = a->result == NF_RANGE_DOWN && k->c->policy.on_outage == NF_OUTAGE_LOCAL;
        e = a->result == NF_RANGE_BUSY ? -EAGAIN : a->result == NF_RANGE_DONE || local ? 0 : -ENOLCK;
    }
    if (r)
        nf_record_tidy(r);
    return e;
}

/* Tells Redis what has become weaker. It must not fail: what is not told now is told later, by nf_record_sync(). */
static void tell_weaker(const struct nf_record_call *k, struct nf_record *r, struct nf_range_answer *a)
{
    if (k->mode == 'u' && r->held.n == 0) {
        nf_record_drop(r, false);
        return;
    }
    nf_record_sync(r);
    struct nf_range_request q = nf_record_request(k, r);
    nf_record_ask(k, &q, a);
    if (a->result == NF_RANGE_FORGOTTEN)
        nf_record_forgotten(r);
    else if (a->result != NF_RANGE_DONE)
        r->dirty = true;
}

int nf_record_unlock(struct nf_record_call *k)
{
    struct nf_quiet quiet;
    int e = -ENOLCK;
    nf_quiet(&quiet);
    k->alone = nf_shadow_wanted(k->c);
    struct nf_range_answer *a = nf_malloc(sizeof *a);
    if (a && nf_record_file_open(k)) {
        struct nf_record *r = nf_record_find(k->file, k->kind, k->fd);
        bool room = !r || nf_ranges_reserve(&r->held) == 0;
        e = room ? nf_rk_set(k, k->start, k->end, 'u', false) : -ENOLCK;
        if (e == 0 && !r && k->c->policy.keeper != NF_KEEPER_NEVER) {
            /* Perhaps a lock of the program that this process was before, or of a description that others share. */
            (void)nf_keeper_sync(k->f.dev, k->f.ino, k->f.key, k->f.key_len);
        }
        if (e == 0 && r) {
            bool held = r->held.n > 0;
            nf_ranges_set(&r->held, k->start, k->end, 0);
            if (held)
                tell_weaker(k, r, a);
            nf_record_tidy(r);
        }
        nf_record_file_close(k);
    }
    nf_free(a);
    nf_loud(&quiet);
    return e;
}

/* The kernel has let us have it; Redis is asked, the owners of our own host that are in the way being adopted. */
static int redis_take(struct nf_record_call *k, struct nf_record *r, const struct nf_ticket *ticket, struct nf_range_answer *a)
{
    char adopt[NF_ADOPT_MAX] = "";
    for (int i = 0; i < 200; i++) {
        struct nf_range_request q = nf_record_request(k, r);
        q.step = ticket ? NF_STEP_QUEUE : NF_STEP_ONCE;
        q.ticket = ticket ? ticket->token : "";
        q.adopt = adopt;
        nf_record_ask(k, &q, a);
        if (a->result == NF_RANGE_DONE || a->result == NF_RANGE_DEADLOCK)
            k->queued = false;
        else if (a->result == NF_RANGE_BUSY || (a->result == NF_RANGE_DOWN && a->a.reached))
            k->queued = ticket != NULL;
        if (a->result == NF_RANGE_FORGOTTEN) {
            nf_record_forgotten(r);
            return -ENOLCK;
        }
        if (a->result == NF_RANGE_STALE)
            continue; /* by a request of our own that had been given up */
        if (a->result != NF_RANGE_BUSY || !a->adopt[0])
            break;
        /* It stood in Redis before this look at the kernel, which still says that the range is ours: it is stale. */
        int e = nf_rk_take(k);
        if (e < 0)
            return e == -EAGAIN ? NF_TRY_KERNEL_BUSY : e;
        memcpy(adopt, a->adopt, sizeof adopt);
    }
    switch (a->result) {
    case NF_RANGE_DONE:
        return 0;
    case NF_RANGE_BUSY:
        return NF_TRY_REDIS_BUSY;
    case NF_RANGE_DEADLOCK:
        return -EDEADLK;
    case NF_RANGE_GRACE:
        nf_grace_say(k->c, a->a.left_ms);
        return NF_TRY_GRACE;
    case NF_RANGE_REFUSED:
        nf_refused(k->f.key, a->a.why);
        return -ENOLCK;
    default:
        return NF_TRY_REDIS_DOWN;
    }
}

/* Redis has granted: the range is ours. */
static int enter(struct nf_record_call *k, struct nf_record *r, const struct nf_range_answer *a)
{
    nf_ranges_set(&r->held, k->start, k->end, k->mode);
    if (k->mode == 's')
        (void)nf_rk_set(k, k->start, k->end, 's', false);
    int e = nf_record_leased(r, a->a.sent_ms, a->a.fence);
    if (e == 0) {
        enum nf_keeper_mode keeper = k->c->policy.keeper;
        bool shared = k->kind == 'o' && !k->alone && (nf_shared(k->fd) || k->forks != nf_fork_count());
        if ((keeper == NF_KEEPER_ALWAYS || (keeper == NF_KEEPER_AUTO && shared)) && !nf_tenure_kept(r->t))
            (void)nf_keeper_give(&r->t, 1);
        return 0;
    }
    nf_log(NF_LOG_ERROR, "no lock on %s (ENOLCK): no thread to renew it (error %d)", k->f.key, -e);
    nf_record_drop(r, true); /* there was nothing else: it is the owner's first lease */
    nf_rk_restore(k, k->start, k->end);
    return -ENOLCK;
}

/* Whatever may have arrived in Redis is undone in the background. A waiter asks again: that supersedes it. */
void nf_record_undo(struct nf_record *r, const struct nf_ticket *ticket)
{
    nf_mutex_owed(&r->file->mu);
    if (r->dirty && !r->held.n && !ticket)
        nf_record_drop(r, true);
}

static int try_with(struct nf_record_call *k, struct nf_record *r, const struct nf_ticket *ticket, struct nf_range_answer *a)
{
    bool weaker = k->mode == 's' && nf_ranges_cover(&r->held, k->start, k->end, 's');
    if (nf_ranges_reserve(&r->held) < 0)
        return -ENOLCK;
    int e = k->alone ? nf_rk_check_mode(k) : 0;
    if (e == 0)
        e = weaker ? nf_rk_set(k, k->start, k->end, 's', false) : nf_rk_take(k);
    r->alone = r->alone || k->alone;
    if (e < 0)
        return e == -EAGAIN ? NF_TRY_KERNEL_BUSY : e;
    bool same = nf_ranges_cover(&r->held, k->start, k->end, k->mode) && !(weaker && nf_ranges_any(&r->held, k->start, k->end, 'x'));
    nf_table_lock();
    bool listed = r->t->listed;
    bool good = listed && nf_left_ms(r->t->deadline_ms) > 0;
    nf_table_unlock();
    if (same && good) {
        nf_record_sync(r);
        return 0;
    }
    if (weaker && listed) {
        nf_ranges_set(&r->held, k->start, k->end, 's');
        tell_weaker(k, r, a);
        return nf_ranges_cover(&r->held, k->start, k->end, 's') ? 0 : -ENOLCK;
    }
    e = redis_take(k, r, ticket, a);
    if (e == 0) {
        nf_outage_over(k->c);
        nf_granted(k->f.key);
        return enter(k, r, a);
    }
    if (e == NF_TRY_REDIS_DOWN) {
        nf_outage_began(k->c, a->a.why);
        r->dirty = r->dirty || a->a.reached;
        if (k->c->policy.on_outage == NF_OUTAGE_LOCAL) {
            nf_ranges_set(&r->held, k->start, k->end, k->mode);
            return k->mode == 's' ? nf_rk_set(k, k->start, k->end, 's', false) : 0;
        }
    } else if (e == NF_TRY_REDIS_BUSY) {
        nf_outage_over(k->c);
    }
    nf_rk_restore(k, k->start, k->end);
    nf_record_undo(r, ticket);
    return e;
}

/* One try, under the file's mutex. */
int nf_record_try(struct nf_record_call *k, struct nf_record *r, const struct nf_ticket *ticket, struct nf_range_answer *a)
{
    nf_mutex_owed(&r->file->mu);
    nf_rk_look_before(k, r);
    return try_with(k, r, ticket, a);
}
