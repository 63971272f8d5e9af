/*
 * The renewal thread.
 *
 * A tick renews, in one pipelined exchange, every tenure whose last renewal is a third of the TTL ago, and with them
 * all that are nearly as old, so that the ticks of many tenures fall together. Before that it asks the kernel whether
 * each lock is still there: a close that no wrapper saw (a raw system call, a close inside the C library) ends here.
 *
 * The state below is guarded by the table's mutex, but for what the thread keeps for itself. The thread holds references to
 * what it works on, never the mutex. It must never: run a handler of the host (all signals are blocked), outlive its work by
 * more than LINGER_MS.
 */
#include "lease/lease.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/process.h"
#include "base/sigs.h"
#include "lease/orphan.h"
#include "lease/pending.h"
#include "lease/record.h"
#include "redis/pool.h"
#include "redis/ranges.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Long enough for a program that locks again at once; short, because a second thread forbids unshare(CLONE_NEWUSER). */
#define LINGER_MS 250
/* getaddrinfo() runs in a thread of its own; what runs here is shallow. */
#define STACK_BYTES (256 * 1024)

static bool running;
static int ending; /* threads that are releasing a tenure and may leave an orphan: see nf_lease_stay() */
static pthread_cond_t wake;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool outage_said;   /* the thread's own: a new one starts when the last one has left the table */
static int64_t wakes_ms;   /* when the sleeping thread will wake by itself */
static int64_t idle_since; /* when there was anything to do last */

static void init_cond(void)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&wake, &attr);
    pthread_condattr_destroy(&attr);
}

/* Sleeps with the table's mutex given up, at most until `at_ms` (CLOCK_BOOTTIME). */
static void sleep_until(int64_t at_ms, int ttl_ms)
{
    struct timespec until;
    /* The condition variable's clock stands still while the machine sleeps: look again now and then. */
    int cap = ttl_ms / 8 > 250 ? ttl_ms / 8 : 250;
    int left = nf_left_ms(at_ms);
    left = left > cap ? cap : left < 1 ? 1 : left;
    wakes_ms = nf_now_ms() + left;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + (int64_t)left * 1000000;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    (void)nf_mutex_wait(nf_table_mutex(), &wake, &until);
}

/* When t is due: a third of the TTL after the last success, or a moment after the last failure. */
static int64_t due_ms(const struct nf_tenure *t, int ttl_ms)
{
    int64_t due = t->renewed_ms + ttl_ms / 3;
    int64_t retry = nf_lease_retry(t->tried_ms, t->deadline_ms, ttl_ms);
    return t->tried_ms > t->renewed_ms && t->tried_ms + retry > due ? t->tried_ms + retry : due;
}

static bool ours_to_renew(const struct nf_tenure *t)
{
    return (!t->kept || t->unsure) && !t->lost;
}

/* The next time anything is to be done; INT64_MAX if nothing is. Table locked. */
static int64_t next_event(int ttl_ms)
{
    int64_t next = INT64_MAX;
    nf_table_owed();
    for (struct nf_tenure *t = nf_tenure_any(NULL); t; t = nf_tenure_any(t)) {
        if (!ours_to_renew(t))
            continue;
        int64_t due = due_ms(t, ttl_ms);
        due = due < t->deadline_ms ? due : t->deadline_ms;
        next = due < next ? due : next;
    }
    int64_t orphan = nf_orphans_next();
    int64_t answer = nf_pending_next();
    next = orphan < next ? orphan : next;
    next = answer < next ? answer : next;
    return next == INT64_MAX && ending > 0 ? nf_now_ms() + LINGER_MS : next;
}

/* Collects the tenures that this tick works on, referenced. Table locked. Returns how many; *list to be freed. */
static size_t collect(int ttl_ms, int64_t now, struct nf_tenure ***list)
{
    size_t n = 0;
    size_t room = (size_t)nf_tenure_count();
    nf_table_owed();
    *list = room ? nf_calloc(room, sizeof(struct nf_tenure *)) : NULL;
    if (!*list)
        return 0;
    for (struct nf_tenure *t = nf_tenure_any(NULL); t && n < room; t = nf_tenure_any(t)) {
        if (!ours_to_renew(t))
            continue;
        bool due = due_ms(t, ttl_ms) <= now || t->deadline_ms <= now;
        bool nearly = t->tried_ms <= t->renewed_ms && t->renewed_ms + ttl_ms / 4 <= now;
        if (due || nearly) {
            nf_tenure_ref(t);
            (*list)[n++] = t;
        }
    }
    return n;
}

/* The file belongs to a newer tenure of our own host: a conversion or a second lock of the same description. */
static bool superseded(const struct nf_tenure *t, const struct nf_renewal *r)
{
    return r->result == NF_GONE && t->identity_len > 0 && strncmp(r->holder, t->token, (size_t)t->identity_len) == 0;
}

/* Applies what Redis said about t. Table locked. Returns true if t was lost, to be dealt with unlocked. */
static bool apply(struct nf_tenure *t, const struct nf_renewal *r, int64_t sent_ms, int ttl_ms)
{
    nf_table_owed();
    if (!t->listed || !ours_to_renew(t))
        return false; /* ended, or handed over, while the answer was on its way */
    t->tried_ms = sent_ms;
    if (r->result == NF_RENEWED || r->result == NF_RECLAIMED) {
        t->renewed_ms = sent_ms;
        t->deadline_ms = nf_lease_deadline(sent_ms, ttl_ms);
        return false;
    }
    if (superseded(t, r)) {
        nf_tenure_remove(t);
        return false;
    }
    t->lost = r->result == NF_GONE || nf_now_ms() >= t->deadline_ms;
    return t->lost;
}

/* What to ask Redis about the n tenures; returns the first moment at which one of them may be lost. Table locked. */
static int64_t ask_for(struct nf_tenure *const *list, size_t n, int64_t sent_ms, struct nf_renewal *r)
{
    int64_t first_deadline = INT64_MAX;
    nf_table_owed();
    for (size_t i = 0; i < n; i++) {
        const struct nf_tenure *t = list[i];
        r[i] = (struct nf_renewal){.names = t->names,
                                   .token = t->token,
                                   .fence = nf_range_owner(t->mode) ? "" : t->fence, /* an owner's changes, and is not asked for */
                                   .identity_len = t->identity_len,
                                   .mode = t->mode,
                                   .late = t->deadline_ms <= sent_ms};
        first_deadline = t->deadline_ms < first_deadline ? t->deadline_ms : first_deadline;
    }
    return first_deadline;
}

/* Asks Redis to renew them; when that was sent in *sent. */
static int ask(const struct nf_config *c, struct nf_tenure *const *list, struct nf_renewal *r, size_t n, int64_t *sent, char *why,
               size_t why_size)
{
    int64_t first_deadline;
    int err;
    do {
        *sent = nf_now_ms();
        nf_table_lock();
        first_deadline = ask_for(list, n, *sent, r);
        nf_table_unlock();
        int64_t give_up = nf_lease_patience(*sent, first_deadline, c->redis.timeout_ms, c->policy.ttl_ms);
        err = n ? nf_op_renew(&c->redis, &c->policy, r, n, give_up, why, why_size) : 0;
    } while (err < 0 && nf_lease_slept(*sent, first_deadline, nf_now_ms(), c->policy.ttl_ms));
    return err;
}

/* One tick's renewals; the table not locked. */
static void renew(const struct nf_config *c, struct nf_tenure **list, size_t n)
{
    char why[200] = "";
    struct nf_renewal *r = nf_calloc(n, sizeof *r);
    size_t live = 0;
    int64_t sent;
    if (!r)
        return;
    for (size_t i = 0; i < n; i++)
        if (!nf_lease_verify(list[i]))
            list[live++] = list[i];
        else {
            nf_table_lock();
            nf_tenure_unref(list[i]);
            nf_table_unlock();
        }
    int err = ask(c, list, r, live, &sent, why, sizeof why);
    if (err < 0 && !outage_said)
        nf_log(NF_LOG_WARN, "a renewal failed: %s; trying again until the leases end", why[0] ? why : "no usable answer");
    else if (err == 0 && live && outage_said)
        nf_log(NF_LOG_INFO, "Redis answers again; the leases are renewed");
    outage_said = live ? err < 0 : outage_said;
    for (size_t i = 0; i < live; i++) {
        if (r[i].result == NF_MISSING)
            r[i].result = nf_record_reclaim(list[i]) ? NF_RECLAIMED : NF_GONE;
        nf_table_lock();
        bool lost = apply(list[i], &r[i], sent, c->policy.ttl_ms);
        nf_table_unlock();
        if (r[i].result == NF_RECLAIMED)
            nf_log(NF_LOG_WARN, "Redis had lost %s; taken back, nobody was in between", list[i]->names->key);
        /* Unlocked in a way that nobody saw, and adopted by a local process since: an end, not a loss. */
        if (lost && !nf_lease_verify(list[i]))
            nf_lost(list[i], r[i].holder, r[i].result == NF_GONE ? "it is gone in Redis" : "it could not be renewed before its lease ends");
        nf_table_lock();
        nf_tenure_unref(list[i]);
        nf_table_unlock();
    }
    nf_free(r);
}

static void *run(void *arg)
{
    const struct nf_config *c = arg;
    nf_table_lock();
    idle_since = nf_now_ms();
    for (;;) {
        int64_t now = nf_now_ms();
        int64_t next = next_event(c->policy.ttl_ms);
        if (next == INT64_MAX) {
            if (now - idle_since >= LINGER_MS)
                break;
            sleep_until(idle_since + LINGER_MS, c->policy.ttl_ms);
            continue;
        }
        idle_since = now;
        nf_table_unlock();
        if (nf_process_over())
            exit(0); /* what the C library does when the last thread ends */
        nf_table_lock();
        if (next > now) {
            sleep_until(next, c->policy.ttl_ms);
            nf_table_unlock();
            nf_pending_settle(false);
            nf_table_lock();
            continue;
        }
        struct nf_tenure **list;
        size_t n = collect(c->policy.ttl_ms, now, &list);
        nf_table_unlock();
        if (n)
            renew(c, list, n);
        nf_free(list);
        nf_orphans_try(c);
        nf_table_lock();
    }
    running = false;
    nf_table_unlock();
    nf_pool_trim();
    return NULL;
}

/* To wake the thread for each lock would cost more than the lock: it wakes in time by itself. It inherits our blocked signals. */
int nf_lease_run(int64_t due_ms)
{
    pthread_t thread;
    pthread_attr_t attr;
    nf_table_owed();
    pthread_once(&once, init_cond);
    if (running) {
        if (due_ms < wakes_ms)
            pthread_cond_signal(&wake);
        return 0;
    }
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    int r = pthread_create(&thread, &attr, run, (void *)(uintptr_t)nf_config());
    if (r == EINVAL) {
        /* A program with much thread-local data: it needs more than that for itself. */
        pthread_attr_destroy(&attr);
        pthread_attr_init(&attr);
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        r = pthread_create(&thread, &attr, run, (void *)(uintptr_t)nf_config());
    }
    pthread_attr_destroy(&attr);
    running = r == 0;
    return -r;
}

void nf_lease_idle(void)
{
    idle_since = nf_now_ms();
    if (running && wakes_ms > idle_since + 2 * LINGER_MS) {
        wakes_ms = idle_since;
        pthread_cond_signal(&wake);
    }
}

/*
 * Takes out what t has replaced: the kernel let t in, so an earlier tenure of the same inode that excludes it is a
 * thing of the past, as is one of the same descriptor. (Two threads may lock one description at once.) In Redis the
 * token is replaced already, but for a shared one, which is left to run out. Table locked.
 */
static void take_out_replaced(const struct nf_tenure *t)
{
    struct nf_tenure *next;
    nf_table_owed();
    for (struct nf_tenure *old = nf_tenure_first(t->dev, t->ino); old; old = next) {
        next = nf_tenure_next(old);
        if (old->mode == 'x' || t->mode == 'x' || old->fd == t->fd)
            nf_tenure_remove(old);
    }
}

int nf_lease_add(struct nf_tenure *t)
{
    nf_table_lock();
    if (!nf_range_owner(t->mode))
        take_out_replaced(t);
    nf_tenure_insert(t);
    int r = nf_lease_run(t->renewed_ms + nf_config()->policy.ttl_ms / 3);
    if (r < 0)
        nf_tenure_remove(t);
    nf_table_unlock();
    return r;
}

void nf_lease_stay(bool stay)
{
    nf_table_owed();
    ending += stay ? 1 : -1;
}

void nf_lease_fork_prepare(void)
{
    nf_table_lock();
    nf_pool_fork_prepare();
}

void nf_lease_fork_parent(void)
{
    nf_pool_fork_parent();
    nf_table_unlock();
}

/*
 * The orphans are the parent's work; the child only forgets them. Another thread of the parent may have had any mutex, and the
 * allocator's lock, which comes first: all below may free something.
 */
void nf_lease_fork_child(void)
{
    nf_alloc_fork_child();
    nf_pool_fork_child();
    nf_mutex_init(nf_table_mutex());
    nf_table_lock();
    running = false;
    nf_table_fork_child();
    ending = 0;
    nf_orphans_forget();
    init_cond();
    nf_pending_fork_child();
    nf_table_unlock();
    nf_config_fork_child();
    nf_record_fork_child();
}
