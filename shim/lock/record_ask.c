/*
 * See record_ask.h, and docs/design.md for the states and crash points.
 */
#include "lock/record_ask.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fdset.h"
#include "base/fdutil.h"
#include "base/log.h"
#include "base/process.h"
#include "base/real.h"
#include "base/sigs.h"
#include "base/sleep.h"
#include "base/sys.h"
#include "lease/keeper.h"
#include "lease/lease.h"
#include "lock/outage.h"
#include "lock/shadow.h"

#include <bsd/stdlib.h>
#include <bsd/string.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* What a try can come to, besides 0 and a negative errno that is final. */
enum { KERNEL_BUSY = 1, REDIS_BUSY, REDIS_DOWN, GRACE, AGAIN };

void nf_record_absolute(struct flock *fl, uint64_t start, uint64_t end)
{
    fl->l_whence = SEEK_SET;
    fl->l_start = (off_t)start;
    fl->l_len = end == NF_RANGE_END ? 0 : (off_t)(end - start);
}

bool nf_record_alone(struct nf_record_call *k, int err)
{
    if (!k->alone && err < 0)
        k->alone = nf_shadow_allowed(k->c, err, &k->f);
    return k->alone;
}

/* The kernel's step. `mode` may be 'u'. 0 or -errno. */
static int kernel_set(struct nf_record_call *k, uint64_t start, uint64_t end, char mode, bool wait)
{
    struct flock fl = {.l_type = mode == 'x' ? F_WRLCK : mode == 's' ? F_RDLCK : F_UNLCK};
    int nb = k->kind == 'o' ? F_OFD_SETLK : F_SETLK;
    int blocking = k->kind == 'o' ? F_OFD_SETLKW : F_SETLKW;
    if (k->alone)
        return 0;
    nf_record_absolute(&fl, start, end);
    int r = nf_real()->fcntl(k->fd, wait ? blocking : nb, &fl) == 0 ? 0 : -errno;
    return r < 0 && nf_record_alone(k, r) ? 0 : r == -EACCES ? -EAGAIN : r;
}

/* What the kernel says of a descriptor that is not open for this, where it is not asked. */
static int check_open_mode(const struct nf_record_call *k)
{
    int flags = nf_sys.fcntl(k->fd, F_GETFL, 0);
    int access = flags & O_ACCMODE;
    if (flags < 0 || flags & O_PATH)
        return -EBADF;
    return (k->mode == 'x' && access == O_RDONLY) || (k->mode == 's' && access == O_WRONLY) ? -EBADF : 0;
}

static bool none(int fd)
{
    (void)fd;
    return false;
}

static int readable(int fd, long unused)
{
    int flags = nf_sys.fcntl(fd, F_GETFL, 0);
    (void)unused;
    return flags >= 0 && !(flags & O_PATH) && (flags & O_ACCMODE) != O_WRONLY;
}

/* Through a descriptor that is only open for writing a shared lock cannot be had back: the process has another, which it took it by. */
static void share_otherwise(struct nf_record_call *k, uint64_t start, uint64_t end)
{
    int fd = k->fd;
    k->fd = nf_fd_find(k->f.dev, k->f.ino, none, readable, 0);
    if (k->fd >= 0)
        (void)kernel_set(k, start, end, 's', false);
    k->fd = fd;
}

/* The kernel gets back what it had before: never more than it has now. */
static void kernel_restore(struct nf_record_call *k, uint64_t start, uint64_t end)
{
    uint64_t next;
    for (uint64_t at = start; at < end; at = next) {
        char mode = nf_ranges_at(k->had, at, &next);
        next = next < end ? next : end;
        if (kernel_set(k, at, next, mode ? mode : 'u', false) == -EBADF && mode == 's' && k->kind == 'p')
            share_otherwise(k, at, next);
    }
}

/*
 * Takes the range in the kernel, but for what would weaken something there: were Redis to refuse the rest, that could not
 * be had back.
 */
static int kernel_take(struct nf_record_call *k)
{
    uint64_t next;
    k->piece_start = k->start;
    k->piece_end = k->end;
    if (k->mode == 'x')
        return kernel_set(k, k->start, k->end, 'x', false);
    for (uint64_t at = k->start; at < k->end; at = next) {
        char mode = nf_ranges_at(k->had, at, &next);
        next = next < k->end ? next : k->end;
        int e = mode == 'x' ? 0 : kernel_set(k, at, next, 's', false);
        if (e < 0) {
            k->piece_start = at;
            k->piece_end = next;
            kernel_restore(k, k->start, at);
            return e;
        }
    }
    return 0;
}

static bool not_inherited(int fd)
{
    return !nf_shared(fd);
}

static int any(int fd, long unused)
{
    (void)unused;
    return fd >= 0;
}

/* Does the kernel have locks of this process that were taken before its exec? Those stay with the descriptors that it inherited. */
static bool is_heir(const struct nf_record_call *k)
{
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return k->kind == 'p' && !k->alone && nf_real()->fcntl(k->fd, F_OFD_GETLK, &fl) == 0 && fl.l_type != F_UNLCK &&
           nf_fd_find(k->f.dev, k->f.ino, not_inherited, any, 0) >= 0;
}

/* What somebody else has unlocked, or made shared, through the same description. */
static void forget_unlocked(struct nf_record *r, const struct nf_ranges *kernel)
{
    uint64_t next;
    uint64_t there;
    bool had = r->held.n > 0;
    for (uint64_t at = 0; at < NF_RANGE_END; at = next) {
        char ours = nf_ranges_at(&r->held, at, &next);
        char now = nf_ranges_at(kernel, at, &there);
        next = there < next ? there : next;
        if (ours && ours != now && now != 'x' && nf_ranges_reserve(&r->held) == 0) {
            nf_ranges_set(&r->held, at, next, now);
            r->dirty = true;
        }
    }
    if (!had || r->held.n)
        return;
    nf_record_drop(r, false);
    if (!r->refs)
        (void)nf_record_new_token(r);
}

/*
 * What the owner has in the kernel may be more than this process knows of: another one has taken ranges through the same
 * description, or the program that this process was before; or less. The kernel is asked then; where it does not tell, what we
 * know counts. A part that it has just let us have after a wait is as it was before.
 */
static void look_before(struct nf_record_call *k, struct nf_record *r)
{
    char path[48] = "/proc/locks";
    struct nf_ranges now = {0};
    pid_t pid = k->kind == 'p' ? nf_sys.getpid() : -1;
    uint64_t next;
    bool waited = k->waited;
    k->had = &r->held;
    k->waited = false;
    if (k->alone || !(k->kind == 'p' ? r->heir : nf_shared(k->fd)))
        return;
    if (k->kind == 'o')
        (void)snprintf(path, sizeof path, "/proc/thread-self/fdinfo/%d", k->fd);
    int e = nf_fd_ranges(path, k->f.ino, k->kind == 'p' ? "POSIX" : "OFDLCK", pid, &now);
    for (uint64_t at = k->piece_start; e == 0 && waited && at < k->piece_end; at = next) {
        char mode = nf_ranges_at(&k->asked, at, &next);
        next = next < k->piece_end ? next : k->piece_end;
        if ((e = nf_ranges_reserve(&now)) == 0)
            nf_ranges_set(&now, at, next, mode);
    }
    if (e == 0) {
        nf_ranges_clear(&k->asked);
        k->asked = now;
        k->had = &k->asked;
        forget_unlocked(r, &now);
    } else {
        nf_ranges_clear(&now);
    }
}

bool nf_record_file_open(struct nf_record_call *k)
{
    k->file = nf_record_file_get(k->f.dev, k->f.ino);
    if (k->file)
        pthread_mutex_lock(&k->file->mu);
    return k->file;
}

void nf_record_file_close(struct nf_record_call *k)
{
    if (!k->file)
        return;
    pthread_mutex_unlock(&k->file->mu);
    nf_record_file_put(k->file);
}

static struct nf_range_request request(const struct nf_record_call *k, struct nf_record *r)
{
    return (struct nf_range_request){.names = r->t->names,
                                     .token = r->t->token,
                                     .identity_len = k->alone ? 0 : r->t->identity_len,
                                     .seq = ++r->seq,
                                     .mode = k->mode,
                                     .start = k->start,
                                     .end = k->end,
                                     .holds = r->t->listed && r->held.n > 0,
                                     .ticket = "",
                                     .adopt = ""};
}

static void ask(const struct nf_record_call *k, const struct nf_range_request *q, struct nf_range_answer *a)
{
    nf_range_set(k->c, q, nf_now_ms() + k->c->redis.timeout_ms, a);
}

static struct nf_record *owner(struct nf_record_call *k)
{
    struct nf_record *r = nf_record_find(k->file, k->kind, k->fd);
    if (r)
        (void)nf_record_check_lost(r);
    else
        r = nf_record_new(k->file, k->kind, k->fd, k->f.key, k->f.key_len);
    if (r && !r->held.n)
        r->heir = is_heir(k);
    if (r)
        r->alone = r->alone || k->alone;
    return r;
}

int nf_record_test(struct nf_record_call *k, struct nf_range_answer **out)
{
    struct nf_record *r = owner(k);
    struct nf_range_answer *a = *out = nf_malloc(sizeof *a);
    int e = -ENOLCK;
    if (r && a) {
        struct nf_range_request q = request(k, r);
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
    struct nf_range_request q = request(k, r);
    if (k->mode == 'u' && r->held.n == 0) {
        nf_record_drop(r, false);
        return;
    }
    nf_record_sync(r);
    ask(k, &q, a);
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
        e = room ? kernel_set(k, k->start, k->end, 'u', false) : -ENOLCK;
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
        struct nf_range_request q = request(k, r);
        q.step = ticket ? NF_STEP_QUEUE : NF_STEP_ONCE;
        q.ticket = ticket ? ticket->token : "";
        q.adopt = adopt;
        ask(k, &q, a);
        if (a->result == NF_RANGE_FORGOTTEN) {
            nf_record_forgotten(r);
            return -ENOLCK;
        }
        if (a->result == NF_RANGE_STALE)
            continue; /* by a request of our own that had been given up */
        if (a->result != NF_RANGE_BUSY || !a->adopt[0])
            break;
        /* It stood in Redis before this look at the kernel, which still says that the range is ours: it is stale. */
        int e = kernel_take(k);
        if (e < 0)
            return e == -EAGAIN ? KERNEL_BUSY : e;
        memcpy(adopt, a->adopt, sizeof adopt);
    }
    switch (a->result) {
    case NF_RANGE_DONE:
        return 0;
    case NF_RANGE_BUSY:
        return REDIS_BUSY;
    case NF_RANGE_DEADLOCK:
        return -EDEADLK;
    case NF_RANGE_GRACE:
        nf_grace_say(k->c, a->a.left_ms);
        return GRACE;
    case NF_RANGE_REFUSED:
        nf_refused(k->f.key, a->a.why);
        return -ENOLCK;
    default:
        return REDIS_DOWN;
    }
}

/* Redis has granted: the range is ours. */
static int enter(struct nf_record_call *k, struct nf_record *r, const struct nf_range_answer *a)
{
    nf_ranges_set(&r->held, k->start, k->end, k->mode);
    if (k->mode == 's')
        (void)kernel_set(k, k->start, k->end, 's', false);
    int e = nf_record_leased(r, a->a.sent_ms, a->a.fence);
    if (e == 0) {
        enum nf_keeper_mode keeper = k->c->policy.keeper;
        bool shared = k->kind == 'o' && !k->alone && (nf_shared(k->fd) || k->forks != nf_fork_count());
        if (!r->t->kept && (keeper == NF_KEEPER_ALWAYS || (keeper == NF_KEEPER_AUTO && shared)))
            (void)nf_keeper_give(&r->t, 1);
        return 0;
    }
    nf_log(NF_LOG_ERROR, "no lock on %s (ENOLCK): no thread to renew it (error %d)", k->f.key, -e);
    nf_record_drop(r, true); /* there was nothing else: it is the owner's first lease */
    kernel_restore(k, k->start, k->end);
    return -ENOLCK;
}

/* Whatever may have arrived in Redis is undone in the background. A waiter asks again: that supersedes it. */
static void undo(struct nf_record *r, const struct nf_ticket *ticket)
{
    if (r->dirty && !r->held.n && !ticket)
        nf_record_drop(r, true);
}

static int try_with(struct nf_record_call *k, struct nf_record *r, const struct nf_ticket *ticket, struct nf_range_answer *a)
{
    bool weaker = k->mode == 's' && nf_ranges_cover(&r->held, k->start, k->end, 's');
    if (nf_ranges_reserve(&r->held) < 0)
        return -ENOLCK;
    int e = k->alone ? check_open_mode(k) : 0;
    if (e == 0)
        e = weaker ? kernel_set(k, k->start, k->end, 's', false) : kernel_take(k);
    r->alone = r->alone || k->alone;
    if (e < 0)
        return e == -EAGAIN ? KERNEL_BUSY : e;
    bool same = nf_ranges_cover(&r->held, k->start, k->end, k->mode) && !(weaker && nf_ranges_any(&r->held, k->start, k->end, 'x'));
    if (same && r->t->listed && nf_left_ms(r->t->deadline_ms) > 0) {
        nf_record_sync(r);
        return 0;
    }
    if (weaker && r->t->listed) {
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
    if (e == REDIS_DOWN) {
        nf_outage_began(k->c, a->a.why);
        r->dirty = r->dirty || a->a.reached;
        if (k->c->policy.on_outage == NF_OUTAGE_LOCAL) {
            nf_ranges_set(&r->held, k->start, k->end, k->mode);
            return k->mode == 's' ? kernel_set(k, k->start, k->end, 's', false) : 0;
        }
    } else if (e == REDIS_BUSY) {
        nf_outage_over(k->c);
    }
    kernel_restore(k, k->start, k->end);
    undo(r, ticket);
    return e;
}

/* One try, under the file's mutex. */
static int try_once(struct nf_record_call *k, struct nf_record *r, const struct nf_ticket *ticket, struct nf_range_answer *a)
{
    look_before(k, r);
    return try_with(k, r, ticket, a);
}

static struct nf_request waiting(const struct nf_record *r, const struct nf_ticket *ticket)
{
    return (struct nf_request){.names = r->t->names, .token = ticket->nonce, .mode = r->kind, .wait = true};
}

/* How long to sleep before asking again when nobody wakes us: the first in line watch the end of the holder's lease. */
static int patience_ms(const struct nf_answer *a)
{
    int jitter = (int)arc4random_uniform(20);
    if (a->before_me >= 0 && a->before_me < 3 && a->left_ms >= 0 && a->left_ms < NF_WAITER_POLL_MS)
        return (int)a->left_ms + 2 + jitter + 25 * (int)a->before_me;
    return NF_WAITER_POLL_MS + 10 * jitter;
}

/* Notes with Redis that we wait no more. If it does not answer, its own deadlines end the wait. */
static void cancel(const struct nf_record_call *k, struct nf_record *r, const struct nf_ticket *ticket, struct nf_range_answer *a)
{
    struct nf_range_request q = request(k, r);
    q.step = NF_STEP_CANCEL;
    q.ticket = ticket->token;
    ask(k, &q, a);
}

/*
 * Waits in the kernel, for a process of this host. A circle that runs through other hosts the kernel cannot see: Redis is
 * told of our wait first, unless we hold nothing that anybody could wait for.
 */
static int kernel_wait(struct nf_record_call *k, struct nf_record *r, const struct nf_ticket *ticket, struct nf_range_answer *a)
{
    a->result = NF_RANGE_DONE;
    if (k->kind == 'p' && nf_tenure_count() > 0) {
        struct nf_range_request q = request(k, r);
        q.step = NF_STEP_KERNEL;
        q.ticket = ticket->token;
        ask(k, &q, a);
        if (a->result == NF_RANGE_DEADLOCK)
            return -EDEADLK;
    }
    nf_sigs_restore(k->mask);
    int e = kernel_set(k, k->piece_start, k->piece_end, k->mode, true);
    nf_sigs_block(NULL);
    k->waited = e == 0;
    return e < 0 ? e : AGAIN;
}

static int redis_wait(const struct nf_record_call *k, const struct nf_record *r, const struct nf_ticket *ticket, struct nf_answer *a,
                      int *down_ms)
{
    struct nf_request q = waiting(r, ticket);
    if (nf_sigs_interrupting(k->mask))
        return -EINTR;
    int e = nf_op_wait(&k->c->redis, &q, patience_ms(a), k->mask, a);
    if (e == 0)
        *down_ms = 20;
    if (e == 0 || e == -EINTR)
        return e == 0 ? AGAIN : e;
    if (e == -EACCES) {
        nf_refused(k->f.key, a->why);
        return -ENOLCK;
    }
    return REDIS_DOWN;
}

/* F_SETLKW: tries, waits for what is in the way, tries again. The file's mutex is held between the waits. */
static int wait_for(struct nf_record_call *k, struct nf_record *r, struct nf_range_answer *a)
{
    struct nf_ticket ticket;
    int down_ms = 20;
    int deadlocks = 0;
    bool in_redis = false;
    int e = nf_record_ticket(r, &ticket) < 0 ? -ENOLCK : AGAIN;
    r->refs++;
    while (e == AGAIN) {
        e = try_once(k, r, &ticket, a);
        in_redis = in_redis || e == REDIS_BUSY || (e == REDIS_DOWN && a->a.reached);
        if (e <= 0 && e != -EDEADLK)
            break;
        pthread_mutex_unlock(&k->file->mu);
        if (e == KERNEL_BUSY) {
            in_redis = true;
            e = kernel_wait(k, r, &ticket, a);
        } else if (e == GRACE) {
            e = nf_grace_pause(k->c, a->a.left_ms, k->mask) < 0 ? -EINTR : AGAIN;
        } else if (e == REDIS_BUSY) {
            e = redis_wait(k, r, &ticket, &a->a, &down_ms);
        }
        if (e == REDIS_DOWN) {
            nf_outage_began(k->c, a->a.why);
            e = k->c->policy.on_outage == NF_OUTAGE_ERROR ? -ENOLCK : nf_back_off(&down_ms, k->mask) < 0 ? -EINTR : AGAIN;
        }
        /* A circle may only seem to be one while the news of an unlock is on its way: a real one does not go away. */
        if (e == -EDEADLK && a->result == NF_RANGE_DEADLOCK && ++deadlocks < 3)
            e = nf_sleep(15, k->mask) < 0 ? -EINTR : AGAIN;
        pthread_mutex_lock(&k->file->mu);
        (void)nf_record_check_lost(r);
    }
    if (e < 0 && in_redis)
        cancel(k, r, &ticket, a);
    r->refs--;
    if (e != 0)
        undo(r, NULL);
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
        struct nf_record *r = owner(k);
        if (r)
            e = k->wait ? wait_for(k, r, a) : try_once(k, r, NULL, a);
        if (r)
            nf_record_tidy(r);
        nf_record_file_close(k);
    }
    nf_ranges_clear(&k->asked);
    nf_free(a);
    nf_loud(&quiet);
    return e == KERNEL_BUSY || e == REDIS_BUSY ? -EAGAIN : e == REDIS_DOWN || e == GRACE ? -ENOLCK : e;
}
