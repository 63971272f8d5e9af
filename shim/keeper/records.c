/*
 * Owners of byte ranges (record locks) that a program could not see the end of: a process that became another program or
 * is about to exit, or an open file description that others share.
 *
 * Nothing in the kernel wakes us when such a lock goes, short of waiting for it with a lock of our own, which others would
 * feel. So a process is watched by its pidfd, and besides that the kernel is asked, LOOK_MS apart, which bytes of the file
 * are locked at all. Only when that has changed Redis is asked what the owner has there; what the kernel then has no lock
 * for is given up, under the seq that Redis told: a request of the owner's own that comes between makes that void.
 *
 * Main thread only.
 */
#include "keeper/keeper.h"

#include "base/clock.h"
#include "base/fdutil.h"
#include "base/klock.h"
#include "base/log.h"
#include "base/sys.h"
#include "redis/ranges.h"

#include <bsd/string.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOK_MS 40

static void krec_free(struct kfile *f, struct krec *k)
{
    TAILQ_REMOVE(&f->records, k, link);
    if (k->pidfd >= 0)
        (void)nf_sys.close(k->pidfd);
    nf_ranges_clear(&k->kernel);
    nf_ranges_clear(&k->has);
    free(k);
    guard_outdated();
}

bool krec_add(struct kfile *f, const struct nf_ho_tenure *m)
{
    struct krec *k;
    TAILQ_FOREACH (k, &f->records, link)
        if (strcmp(k->token, m->token) == 0)
            return true;
    k = calloc(1, sizeof *k);
    if (!k)
        return false;
    k->kind = m->mode;
    k->alone = m->alone;
    k->pid = m->parent;
    k->pidfd = m->mode == 'p' ? (int)syscall(SYS_pidfd_open, k->pid, 0) : -1;
    k->renewed_ms = m->renewed_ms;
    k->deadline_ms = m->deadline_ms;
    (void)strlcpy(k->token, m->token, sizeof k->token);
    TAILQ_INSERT_TAIL(&f->records, k, link);
    return true;
}

static bool process_over(const struct krec *k)
{
    struct pollfd p = {.fd = k->pidfd, .events = POLLIN};
    if (k->kind != 'p')
        return false;
    return k->pidfd >= 0 ? nf_sys.poll(&p, 1, 0) == 1 : nf_sys.kill(k->pid, 0) == -ESRCH;
}

/* Gives [start, end) up, unless the owner has asked for something since `seq` (-EAGAIN). 0, or -errno. */
static int give_up(struct kfile *f, struct krec *k, uint64_t seq, uint64_t start, uint64_t end, bool rest)
{
    static struct nf_range_answer a;
    const struct nf_config c = {.redis = keeper.redis, .policy = keeper.policy};
    const struct nf_range_request q = {.names = f->names,
                                       .token = k->token,
                                       .seq = seq,
                                       .mode = 'u',
                                       .start = start,
                                       .end = end,
                                       .holds = rest,
                                       .ticket = "",
                                       .adopt = ""};
    nf_range_set(&c, &q, nf_now_ms() + keeper.redis.timeout_ms, &a);
    return a.result == NF_RANGE_DONE ? 0 : a.result == NF_RANGE_STALE ? -EAGAIN : -EIO;
}

/* Which bytes have any lock of this kind; false when it cannot be told. */
static bool kernel_now(struct kfile *f, const struct krec *k, struct nf_ranges *out)
{
    int fresh = kfile_fresh(f);
    if (fresh >= 0)
        return nf_klock_ranges(fresh, F_OFD_GETLK, k->kind, out) == 0;
    /* /proc/locks tells of open file description locks at least whether there are any. */
    if (k->kind != 'o' || nf_ranges_reserve(out) < 0)
        return false;
    if (nf_inode_locked((ino_t)f->ino, true, 0) != 0)
        nf_ranges_set(out, 0, NF_RANGE_END, 'x');
    return true;
}

/* The process is over, or nothing is locked: all is given up. */
static void end_all(struct kfile *f, struct krec *k)
{
    k->ended = true;
    if (k->lost || give_up(f, k, UINT32_MAX, 0, NF_RANGE_END, false) == 0 || nf_now_ms() > k->renewed_ms + keeper.policy.ttl_ms + 1000)
        krec_free(f, k);
}

/* Something has changed in the kernel: what the owner has in Redis is compared with it. 0, or -errno: not done yet. */
static int compare(struct kfile *f, struct krec *k)
{
    struct nf_ranges has = {0};
    struct nf_ranges now = {0};
    uint64_t seq;
    uint64_t start = 0;
    uint64_t end;
    int r = nf_range_list(&keeper.redis, f->names, k->token, nf_now_ms() + keeper.redis.timeout_ms, &seq, &has);
    bool known = r == 0;
    /* Looked at again, after Redis was asked: what it told was locked in the kernel before. */
    if (r == 0 && !kernel_now(f, k, &now))
        r = -EAGAIN;
    if (r == 0 && now.n == 0) {
        r = give_up(f, k, seq, 0, NF_RANGE_END, false);
        k->ended = r == 0;
    }
    while (r == 0 && now.n && nf_ranges_missing(&has, &now, &start, &end)) {
        r = give_up(f, k, seq, start, end, true);
        if (r == 0 && nf_ranges_reserve(&has) == 0)
            nf_ranges_set(&has, start, end, 0);
        start = end;
    }
    if (known) {
        nf_ranges_clear(&k->has);
        k->has = has;
        k->seq = seq;
    } else {
        nf_ranges_clear(&has);
    }
    nf_ranges_clear(&now);
    return r == -ENOENT ? 0 : r;
}

static void look(struct kfile *f, struct krec *k)
{
    struct nf_ranges now = {0};
    if (process_over(k)) {
        end_all(f, k);
        return;
    }
    if (k->alone || k->lost || !kernel_now(f, k, &now)) {
        nf_ranges_clear(&now);
        return;
    }
    if ((k->compared && nf_ranges_equal(&now, &k->kernel)) || compare(f, k) < 0) {
        nf_ranges_clear(&now);
        return;
    }
    nf_ranges_clear(&k->kernel);
    k->kernel = now;
    k->compared = true;
    if (k->ended)
        krec_free(f, k);
}

/* Redis does not know the owner. Has it given all up itself, and we have not heard of it, or is it lost? */
static void forgotten(struct kfile *f, struct krec *k)
{
    struct nf_token_info info;
    struct nf_ranges now = {0};
    bool locked = !process_over(k) && (k->alone || (kernel_now(f, k, &now) && now.n));
    nf_ranges_clear(&now);
    if (!locked) {
        krec_free(f, k);
        return;
    }
    k->lost = true;
    bool known = nf_token_parse(k->token, &info) == 0;
    int sig = keeper.policy.on_lost_signal;
    if (sig && k->kind == 'p')
        (void)(k->pidfd >= 0 ? (int)syscall(SYS_pidfd_send_signal, k->pidfd, sig, NULL, 0) : nf_sys.kill(k->pid, sig));
    else if (sig)
        (void)holders_signal(f->dev, f->ino, "OFDLCK", sig);
    nf_log(NF_LOG_ERROR, "lost the record locks on %s of pid %ld (%s): they are gone in Redis; token %s", f->names->key,
           known ? info.pid : 0, known ? info.command : "?", k->token);
}

static int64_t due_ms(const struct krec *k)
{
    int ttl = keeper.policy.ttl_ms;
    int64_t due = k->renewed_ms + ttl / 3;
    int64_t retry = ttl / 20 < 1000 ? ttl / 20 : 1000;
    return k->tried_ms > k->renewed_ms && k->tried_ms + retry > due ? k->tried_ms + retry : due;
}

static void renew(struct kfile *f, struct krec *k)
{
    char why[200] = "";
    struct nf_renewal r;
    int64_t sent;
    int err;
    do {
        sent = nf_now_ms();
        r = (struct nf_renewal){.names = f->names, .token = k->token, .mode = k->kind, .late = k->deadline_ms <= sent};
        int64_t until = nf_lease_patience(sent, k->deadline_ms, keeper.redis.timeout_ms, keeper.policy.ttl_ms);
        err = nf_op_renew(&keeper.redis, &keeper.policy, &r, 1, until, why, sizeof why);
    } while (err < 0 && nf_lease_slept(sent, k->deadline_ms, nf_now_ms(), keeper.policy.ttl_ms));
    k->tried_ms = sent;
    if (err < 0 && !keeper.outage_said)
        nf_log(NF_LOG_WARN, "a renewal failed: %s; trying again until the leases end", why[0] ? why : "no usable answer");
    keeper.outage_said = err < 0;
    /* What Redis has forgotten is taken back, in the grace after its restart (run.lua). */
    if (r.result == NF_MISSING)
        r.result = k->has.n && nf_range_sync(&keeper.redis, &keeper.policy, f->names, k->token, k->seq, &k->has, true,
                                             nf_now_ms() + keeper.redis.timeout_ms) == 0
                       ? NF_RENEWED
                       : NF_GONE;
    if (r.result == NF_RENEWED) {
        k->renewed_ms = sent;
        k->deadline_ms = nf_lease_deadline(sent, keeper.policy.ttl_ms);
    } else if (r.result == NF_GONE && nf_now_ms() < k->deadline_ms) {
        /* Only the owner takes it out before its lease ends, and tells us; if somebody else has our address, it cannot. */
        if (f->listen < 0)
            krec_free(f, k);
    } else if (r.result == NF_GONE || nf_now_ms() >= k->deadline_ms) {
        forgotten(f, k);
    }
}

int64_t krec_tend(struct kfile *f)
{
    struct krec *next;
    struct krec *k;
    int64_t now = nf_now_ms();
    for (k = TAILQ_FIRST(&f->records); k; k = next) {
        next = TAILQ_NEXT(k, link);
        look(f, k);
    }
    for (k = TAILQ_FIRST(&f->records); k; k = next) {
        next = TAILQ_NEXT(k, link);
        if (!k->lost && !k->ended && (due_ms(k) <= now || k->deadline_ms <= now))
            renew(f, k);
    }
    return TAILQ_EMPTY(&f->records) ? INT64_MAX : now + LOOK_MS;
}

bool krec_ended(struct kfile *f, const char *token)
{
    struct krec *k;
    TAILQ_FOREACH (k, &f->records, link)
        if (strcmp(k->token, token) == 0)
            break;
    if (k)
        krec_free(f, k);
    return k;
}

void krec_take_over(struct kfile *f)
{
    struct krec *k;
    int64_t now = nf_now_ms();
    TAILQ_FOREACH (k, &f->records, link) {
        k->renewed_ms = now - keeper.policy.ttl_ms / 3;
        k->deadline_ms = nf_lease_deadline(now, keeper.policy.ttl_ms);
    }
}
