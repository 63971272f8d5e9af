/*
 * Redis' side of the keeper: renewing and releasing. Main thread only.
 */
#include "keeper/keeper.h"

#include "base/clock.h"
#include "base/fdutil.h"
#include "base/log.h"
#include "base/sys.h"
#include "redis/pool.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void close_held(struct kept *k)
{
    if (k->hold >= 0)
        (void)nf_sys.close(k->hold);
    if (k->holder.ours >= 0)
        (void)nf_sys.close(k->holder.ours);
    k->hold = k->holder.ours = -1;
}

/* The last one for which we hold a lock has let go of the description: from now on the lock lives without us. */
static void let_go(struct kept *k)
{
    if (k->hold < 0 || holder_alive(&k->holder))
        return;
    guard_stop(); /* its copy would keep the lock */
    guard_outdated();
    close_held(k);
}

void kept_drop(struct kfile *f, struct kept *k)
{
    if (k->hold >= 0)
        guard_stop(); /* its copy of the description would keep the lock */
    guard_outdated();
    nf_mutex_lock(&f->mu);
    TAILQ_REMOVE(&f->tenures, k, link);
    nf_mutex_unlock(&f->mu);
    close_held(k);
    free(k);
}

/* Tries again for as long as the token may still be in Redis. */
static void release(struct kfile *f, struct kept *k)
{
    struct nf_answer a;
    int64_t now = nf_now_ms();
    struct nf_request q = {.names = f->names, .token = k->token, .mode = k->mode};
    if (k->lost || nf_op_release(&keeper.redis, &keeper.policy, &q, now + keeper.redis.timeout_ms, &a) >= 0 ||
        now > k->renewed_ms + keeper.policy.ttl_ms + 1000)
        kept_drop(f, k);
    else
        k->release_at_ms = now + 200;
}

void tend_ended(struct kfile *f)
{
    struct kept *next;
    int64_t now = nf_now_ms();
    for (struct kept *k = TAILQ_FIRST(&f->tenures); k; k = next) {
        next = TAILQ_NEXT(k, link);
        if (kfile_has_ended(f, k) && k->release_at_ms <= now)
            release(f, k);
    }
}

static void lost(struct kfile *f, struct kept *k, const char *holder)
{
    struct nf_token_info info;
    struct nf_token_info mine;
    bool known = nf_token_parse(k->token, &mine) == 0;
    /* The kernel remembers who took a lock. If that one is gone, another local process has the file, or waits for it: it
       adopted our token, and then the file went to another host. An end that we did not see, and no loss. */
    if (known && nf_inode_locked((ino_t)f->ino, f->ofd, (pid_t)mine.pid) == 0) {
        kept_drop(f, k);
        return;
    }
    k->lost = true;
    /* Our own host has it: a local process took over from one that ended unseen. Nothing is lost. */
    if (k->identity_len > 0 && strncmp(holder, k->token, (size_t)k->identity_len) == 0) {
        kept_drop(f, k);
        return;
    }
    char since[32];
    int64_t age = known ? nf_wall_ms() - mine.start_ms : 0;
    int sig = keeper.policy.on_lost_signal;
    nf_format_duration((long)(age < 0 ? 0 : age), since, sizeof since);
    int told = sig ? holders_signal(f->dev, f->ino, f->ofd ? "OFDLCK" : "FLOCK", sig) : 0;
    nf_log(
        NF_LOG_ERROR,
        "lost the lock on %s after %s, taken by pid %ld (%s) and held on by what inherited it; held now by %s; %d processes told; token %s",
        f->names->key, since, known ? mine.pid : 0, known ? mine.command : "?",
        nf_token_parse(holder, &info) == 0 ? info.host
        : *holder                          ? holder
                                           : "nobody",
        told, k->token);
}

/* A process that converts its lock, and so replaces the token, tells us when Redis has done so: it may be about to. */
#define DOUBT_MS 300

static int64_t due_ms(const struct kept *k)
{
    if (k->gone_ms > 0)
        return k->gone_ms + DOUBT_MS;
    int ttl = keeper.policy.ttl_ms;
    int64_t due = k->renewed_ms + ttl / 3;
    int64_t retry = nf_lease_retry(k->tried_ms, k->deadline_ms, ttl);
    return k->tried_ms > k->renewed_ms && k->tried_ms + retry > due ? k->tried_ms + retry : due;
}

static void renew(struct kfile *f, struct kept *k)
{
    char why[200] = "";
    struct nf_renewal r;
    int64_t sent;
    int err;
    do {
        sent = nf_now_ms();
        r = (struct nf_renewal){.names = f->names,
                                .token = k->token,
                                .fence = k->fence,
                                .identity_len = k->identity_len,
                                .mode = k->mode,
                                .late = k->deadline_ms <= sent};
        int64_t give_up = nf_lease_patience(sent, k->deadline_ms, keeper.redis.timeout_ms, keeper.policy.ttl_ms);
        err = nf_op_renew(&keeper.redis, &keeper.policy, &r, 1, give_up, why, sizeof why);
    } while (err < 0 && nf_lease_slept(sent, k->deadline_ms, nf_now_ms(), keeper.policy.ttl_ms));
    k->tried_ms = sent;
    if (err < 0 && !keeper.outage_said)
        nf_log(NF_LOG_WARN, "a renewal failed: %s; trying again until the leases end", why[0] ? why : "no usable answer");
    keeper.outage_said = err < 0;
    if (r.result == NF_RECLAIMED)
        nf_log(NF_LOG_WARN, "Redis had lost %s; taken back, nobody was in between", f->names->key);
    if (r.result == NF_RENEWED || r.result == NF_RECLAIMED) {
        k->renewed_ms = sent;
        k->deadline_ms = nf_lease_deadline(sent, keeper.policy.ttl_ms);
        k->gone_ms = 0;
    } else if (r.result == NF_GONE && kfile_has_ended(f, k)) {
        return; /* released by somebody who knew the token, and the lock is gone */
    } else if (r.result == NF_GONE && k->identity_len > 0 && strncmp(r.holder, k->token, (size_t)k->identity_len) == 0) {
        kept_drop(f, k); /* another process of this host took over unseen: nobody else was let in */
    } else if (r.result == NF_GONE && k->gone_ms == 0) {
        k->gone_ms = sent;
    } else if (r.result == NF_GONE) {
        /* Perhaps its end has not reached us yet: the sharer that unlocked it released it in Redis as well. */
        if (!kfile_look(f))
            lost(f, k, r.holder);
    } else if (nf_now_ms() >= k->deadline_ms) {
        lost(f, k, "");
    }
}

/* How often a file without a thread of its own is looked at. */
#define LOOK_MS 100

int64_t tend(void)
{
    int64_t next = INT64_MAX;
    struct kfile *f;
    TAILQ_FOREACH (f, &keeper.files, link) {
        struct kept *k;
        struct kept *after;
        int64_t look = krec_tend(f);
        next = look < next ? look : next;
        bool watched = kfile_watched(f);
        if (!watched)
            (void)kfile_look(f);
        tend_ended(f);
        for (k = TAILQ_FIRST(&f->tenures); k; k = after) {
            after = TAILQ_NEXT(k, link);
            let_go(k);
            if (!k->lost && !kfile_has_ended(f, k) && (due_ms(k) <= nf_now_ms() || k->deadline_ms <= nf_now_ms()))
                renew(f, k);
        }
        tend_ended(f);
        TAILQ_FOREACH (k, &f->tenures, link) {
            int64_t due = due_ms(k) < k->deadline_ms ? due_ms(k) : k->deadline_ms;
            int64_t at = kfile_has_ended(f, k) ? k->release_at_ms : k->lost ? INT64_MAX : due;
            if ((!watched || k->hold >= 0) && at > nf_now_ms() + LOOK_MS)
                at = nf_now_ms() + LOOK_MS;
            next = at < next ? at : next;
        }
    }
    return next;
}
