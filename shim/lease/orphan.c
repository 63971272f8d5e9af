/*
 * Ends that Redis has not heard of yet: see orphan.h.
 */
#include "lease/orphan.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "lease/lease.h"

#include <bsd/stdlib.h>
#include <bsd/sys/queue.h>
#include <string.h>

struct orphan {
    TAILQ_ENTRY(orphan) link;
    struct nf_names *names;
    int64_t until_ms;
    int64_t next_ms;
    int tries;
    char mode;
    char token[NF_TOKEN_MAX];
};

static TAILQ_HEAD(, orphan) orphans = TAILQ_HEAD_INITIALIZER(orphans);

static void orphan_free(struct orphan *o)
{
    nf_free(o->names);
    nf_free(o);
}

int64_t nf_orphans_next(void)
{
    struct orphan *o;
    int64_t next = INT64_MAX;
    nf_table_owed();
    TAILQ_FOREACH (o, &orphans, link)
        next = o->next_ms < next ? o->next_ms : next;
    return next;
}

void nf_orphans_try(const struct nf_config *c)
{
    for (;;) {
        struct orphan *o;
        struct nf_answer a;
        int64_t now = nf_now_ms();
        nf_table_lock();
        TAILQ_FOREACH (o, &orphans, link)
            if (o->next_ms <= now)
                break;
        if (o)
            TAILQ_REMOVE(&orphans, o, link);
        nf_table_unlock();
        if (!o)
            return;
        struct nf_request q = {.names = o->names, .token = o->token, .mode = o->mode, .wait = true};
        int r = now >= o->until_ms ? 0 : nf_op_release(&c->redis, &c->policy, &q, now + c->redis.timeout_ms, &a);
        if (r >= 0) {
            orphan_free(o);
            continue;
        }
        int64_t delay = 50LL << (o->tries < 5 ? o->tries : 5);
        o->tries++;
        o->next_ms = nf_now_ms() + delay / 2 + arc4random_uniform((uint32_t)delay);
        nf_table_lock();
        TAILQ_INSERT_TAIL(&orphans, o, link);
        nf_table_unlock();
    }
}

void nf_orphans_forget(void)
{
    nf_table_owed();
    TAILQ_INIT(&orphans);
}

void nf_lease_orphan(struct nf_names *names, const char *token, char mode, int64_t until_ms)
{
    struct orphan *o = nf_calloc(1, sizeof *o);
    if (!o) {
        nf_free(names);
        return; /* the lease ends by itself */
    }
    o->names = names;
    o->mode = mode;
    o->until_ms = until_ms;
    o->next_ms = nf_now_ms();
    (void)strncpy(o->token, token, sizeof o->token - 1);
    nf_table_lock();
    TAILQ_INSERT_TAIL(&orphans, o, link);
    if (nf_lease_run(o->next_ms) < 0) {
        TAILQ_REMOVE(&orphans, o, link);
        orphan_free(o);
    }
    nf_table_unlock();
}
