/*
 * How a tenure ends, and how one finds out: see lease.h.
 */
#include "lease/lease.h"

#include "base/clock.h"
#include "base/fdset.h"
#include "base/fdutil.h"
#include "base/sys.h"
#include "lease/keeper.h"
#include "lease/orphan.h"
#include "lease/record.h"
#include "redis/ranges.h"

#include <errno.h>
#include <string.h>

/*
 * A signal handler that calls close() may have interrupted the program's malloc(): nothing here may need that. A name whose
 * address is not known is looked up by the renewal thread.
 */
static void release(const struct nf_tenure *t)
{
    const struct nf_config *c = nf_config();
    struct nf_redis_opts redis = c->redis;
    struct nf_answer a;
    struct nf_request q = {.names = t->names, .token = t->token, .mode = t->mode};
    redis.look_nothing_up = true;
    int r = nf_op_release(&redis, &c->policy, &q, nf_now_ms() + redis.timeout_ms, &a);
    explicit_bzero(&redis, sizeof redis);
    if (r >= 0)
        return;
    nf_log(NF_LOG_INFO, "%s could not be released (%s); trying again until its lease ends", t->names->key, a.why);
    struct nf_names *names = nf_names_make(t->names->key, t->names->key_len);
    if (names)
        nf_lease_orphan(names, t->token, t->mode, nf_now_ms() + c->policy.ttl_ms);
}

void nf_lease_end(struct nf_tenure *t)
{
    nf_table_lock();
    bool to_do = t->listed && !t->lost; /* else another thread ended it, or there is nothing left to end */
    nf_tenure_remove(t);
    if (to_do)
        nf_lease_stay(true);
    nf_table_unlock();
    if (!to_do)
        return;
    release(t);
    nf_table_lock();
    nf_lease_stay(false);
    nf_table_unlock();
}

/* A kept shared one, off the list: its keeper knows whether other readers are left. */
static void leave_to_keeper(struct nf_tenure *t)
{
    (void)nf_keeper_sync(t->lock_dev, t->lock_ino, t->names->key, t->names->key_len);
    nf_table_lock();
    bool taken = nf_tenure_with_keeper(t);
    nf_table_unlock();
    if (!taken) /* it was about to start, and has failed: nobody else knows this token */
        release(t);
    nf_table_lock();
    nf_lease_stay(false);
    nf_table_unlock();
}

void nf_lease_unlocked(struct nf_tenure *t)
{
    const struct nf_names *n = t->names;
    bool keeper = nf_config()->policy.keeper != NF_KEEPER_NEVER;
    nf_table_lock();
    bool kept = keeper && nf_tenure_with_keeper(t);
    bool left_to_it = kept && t->mode == 's';
    if (left_to_it) {
        nf_tenure_remove(t);
        nf_lease_stay(true);
    }
    nf_table_unlock();
    if (left_to_it) {
        leave_to_keeper(t);
        return;
    }
    nf_lease_end(t);
    if (kept)
        (void)nf_keeper_ended(t->lock_dev, t->lock_ino, n->key, n->key_len, t->token);
}

/* Is fd a descriptor of another tenure's description? (Where kcmp(2) is not allowed this cannot be told: no.) */
static bool of_another(const struct nf_tenure *t, int fd)
{
    int others[16];
    size_t n = 0;
    nf_table_lock();
    for (struct nf_tenure *u = nf_tenure_first(t->dev, t->ino); u && n < 16; u = nf_tenure_next(u))
        if (u != t && u->fd >= 0)
            others[n++] = u->fd;
    nf_table_unlock();
    while (n > 0)
        if (nf_sys.kcmp_file(others[--n], fd) == 0)
            return true;
    return false;
}

static int has_our_flock(int fd, long arg)
{
    const struct nf_tenure *t = (const struct nf_tenure *)arg;
    int mode = nf_fd_lock_mode(fd, t->ino, false);
    return mode > 0 && of_another(t, fd) ? 0 : mode;
}

int nf_lease_other_fd(const struct nf_tenure *t)
{
    return nf_fd_find(t->dev, t->ino, nf_tenure_has_fd, has_our_flock, (long)t);
}

/* A stand-in's lock tells nothing about the descriptors it stands for: any open one of the file counts. */
static int is_open(int fd, long unused)
{
    (void)unused;
    return fd >= 0;
}

/* Another descriptor that keeps t's lock: >= 0; -ENOENT: none anywhere; another -errno: nobody can tell. */
static int look_around(const struct nf_tenure *t, bool maybe_elsewhere)
{
    int fd = t->shadow >= 0 ? nf_fd_find(t->dev, t->ino, nf_tenure_has_fd, is_open, 0) : nf_lease_other_fd(t);
    if (fd != -ENOENT || !maybe_elsewhere)
        return fd;
    /* Not in this process; another one may have inherited it. */
    int locked = nf_inode_locked(t->lock_ino, t->shadow >= 0, 0);
    return locked == 0 ? -ENOENT : locked < 0 ? locked : -EBUSY;
}

bool nf_lease_verify(struct nf_tenure *t)
{
    if (nf_range_owner(t->mode))
        return nf_record_verify(t);
    nf_table_lock();
    int fd = t->fd;
    bool skip = !t->listed || t->deciding;
    bool gone = !t->listed;
    t->deciding = t->deciding || !skip;
    nf_table_unlock();
    if (skip)
        return gone;
    int mode = !nf_fd_is(fd, t->dev, t->ino) ? 0 : t->shadow >= 0 ? t->mode : nf_fd_lock_mode(fd, t->ino, false);
    int other = mode == 0 ? look_around(t, nf_shared(fd)) : fd;
    nf_table_lock();
    t->deciding = false;
    bool kept = nf_tenure_with_keeper(t);
    bool ended = t->listed && mode == 0 && other == -ENOENT;
    if (t->listed && mode == 0 && other >= 0)
        nf_tenure_set_fd(t, other);
    if (ended && kept)
        nf_tenure_remove(t);
    nf_table_unlock();
    if (ended && !kept)
        nf_lease_end(t);
    return ended;
}

enum { CANDIDATES = 64 };

/* The tenures of one inode, referenced, with the descriptors they had when the table was looked at. */
struct candidates {
    size_t n;
    struct nf_tenure *t[CANDIDATES];
    int fd[CANDIDATES];
};

/* Which of several? Only called where the plain case has not told. Table not locked. */
static struct nf_tenure *pick(const struct candidates *c, int fd, ino_t ino)
{
    bool unsure = false;
    for (size_t i = 0; i < c->n; i++) {
        int same = c->fd[i] >= 0 ? nf_sys.kcmp_file(c->fd[i], fd) : 1;
        if (same == 0)
            return c->t[i];
        unsure = unsure || same < 0;
    }
    /* Without kcmp(2): the holders of shared locks on one inode are all alike to other hosts, so any will do. */
    int mode = unsure ? nf_fd_lock_mode(fd, ino, false) : 0;
    for (size_t i = 0; i < c->n && mode > 0; i++)
        if (c->t[i]->mode == mode)
            return c->t[i];
    return NULL;
}

struct nf_tenure *nf_lease_of_fd(int fd, dev_t dev, ino_t ino)
{
    struct candidates c = {0};
    struct nf_tenure *found = NULL;
    if (nf_tenure_count() == 0)
        return NULL;
    nf_table_lock();
    for (struct nf_tenure *t = nf_tenure_first(dev, ino); t && !found; t = nf_tenure_next(t))
        if (t->fd == fd)
            found = t;
    if (found)
        nf_tenure_ref(found);
    for (struct nf_tenure *t = nf_tenure_first(dev, ino); t && c.n < CANDIDATES && !found; t = nf_tenure_next(t)) {
        nf_tenure_ref(t);
        c.fd[c.n] = t->fd;
        c.t[c.n++] = t;
    }
    nf_table_unlock();
    if (!found && c.n)
        found = pick(&c, fd, ino);
    nf_table_lock();
    for (size_t i = 0; i < c.n; i++)
        if (c.t[i] != found)
            nf_tenure_unref(c.t[i]);
    nf_table_unlock();
    return found;
}
