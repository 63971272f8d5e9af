/*
 * flock(2) between hosts: see flock.h, and docs/design.md for the states.
 *
 * The kernel's lock is taken first and given back last when Redis refuses: whoever has the kernel's lock speaks for
 * this host. Unlocking goes the other way round: the kernel first, so that a slow Redis never holds up a local
 * process; a local process that is let in between adopts our token, and our release then finds nothing to do.
 */
#include "lock/flock.h"

#include "base/clock.h"
#include "base/fdset.h"
#include "base/fdutil.h"
#include "base/klock.h"
#include "base/process.h"
#include "base/real.h"
#include "base/sigs.h"
#include "base/sys.h"
#include "lease/keeper.h"
#include "lease/lease.h"
#include "lock/acquire.h"
#include "lock/leave.h"
#include "lock/match.h"
#include "lock/shadow.h"

#include <bsd/string.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

static int real_flock(int fd, int op)
{
    return nf_real()->flock(fd, op) == 0 ? 0 : -errno;
}

static void unref(struct nf_tenure *t)
{
    nf_table_lock();
    nf_tenure_unref(t);
    nf_table_unlock();
}

/* LOCK_NB lost in the kernel: to a keeper that just looked whether the lock is free? Then it is, in a moment. */
static int retry_past_keeper(int fd, int op, const struct nf_file *f)
{
    struct nf_quiet quiet;
    int r = -EWOULDBLOCK;
    for (int i = 0; i < 3 && r == -EWOULDBLOCK; i++) {
        nf_quiet(&quiet);
        enum nf_keeper_state s = nf_keeper_sync(f->lock_dev, f->lock_ino, f->key, f->key_len);
        nf_loud(&quiet);
        if (s == NF_KEEPER_HELD || (s == NF_KEEPER_NONE && i > 0))
            break;
        r = f->shadow >= 0 ? nf_klock(f->shadow, op, true) : real_flock(fd, op);
        if (s == NF_KEEPER_NONE)
            break;
    }
    return r;
}

static int kernel_lock(int fd, int op, const struct nf_file *f)
{
    int r = f->shadow >= 0 ? nf_klock(f->shadow, op, true) : real_flock(fd, op);
    if (r == -EWOULDBLOCK && nf_config()->policy.keeper != NF_KEEPER_NEVER)
        r = retry_past_keeper(fd, op, f);
    return r;
}

/* Puts a stand-in into f: that of an earlier lock of the same description, or a new one. */
static int take_shadow(struct nf_file *f, const struct nf_tenure *prev)
{
    struct stat st;
    int fd = prev && prev->shadow >= 0 ? nf_sys.fcntl(prev->shadow, F_DUPFD_CLOEXEC, prev->shadow) : nf_shadow_open(nf_config(), f);
    int r = fd < 0 ? -ENOLCK : nf_sys.fstat(fd, &st);
    if (r < 0)
        return -ENOLCK;
    f->shadow = fd;
    f->lock_dev = st.st_dev;
    f->lock_ino = st.st_ino;
    return 0;
}

/* The host's own step: the file's lock in the kernel, or that of a stand-in. */
static int local_lock(int fd, int op, struct nf_file *f, const struct nf_tenure *prev)
{
    bool shadow = (prev && prev->shadow >= 0) || nf_shadow_wanted(nf_config());
    int r = shadow ? 0 : kernel_lock(fd, op, f);
    if (shadow && (nf_sys.fcntl(fd, F_GETFL, 0) & O_PATH))
        return -EBADF; /* as the kernel's flock says */
    if (r < 0 && nf_shadow_allowed(nf_config(), r, f))
        shadow = true;
    if (!shadow)
        return r;
    r = take_shadow(f, prev);
    return r < 0 ? r : kernel_lock(fd, op, f);
}

static void local_unlock(int fd, struct nf_file *f)
{
    (void)(f->shadow >= 0 ? nf_klock(f->shadow, LOCK_UN, true) : real_flock(fd, LOCK_UN));
}

static void drop_shadow(struct nf_file *f)
{
    if (f->shadow >= 0)
        (void)nf_sys.close(f->shadow);
    f->shadow = -1;
}

/* The kernel has said no to a conversion, and may have dropped the old lock on the way (flock(2)). */
static void after_failed_conversion(int fd, struct nf_tenure *prev)
{
    struct nf_quiet quiet;
    if (!prev)
        return;
    nf_quiet(&quiet);
    int lock_fd = prev->shadow >= 0 ? prev->shadow : fd;
    if (nf_fd_lock_mode(lock_fd, prev->lock_ino, prev->shadow >= 0) == 0)
        nf_lease_unlocked(prev);
    unref(prev);
    nf_loud(&quiet);
}

/* Ends what the converted lock was in Redis: the new request's script does it, since it is of the same identity. */
static void supersede(struct nf_tenure *prev, const struct nf_file *f)
{
    /* Renamed since: the new request is about another key, and will not find the old one. */
    if (prev->names->key_len != f->key_len || memcmp(prev->names->key, f->key, f->key_len) != 0)
        nf_lease_unlocked(prev);
    nf_table_lock();
    nf_tenure_remove(prev);
    nf_tenure_unref(prev);
    nf_table_unlock();
}

/* Asked for what is held already: nothing to do. What a keeper renews we cannot vouch for: ask Redis again. */
static bool still_good(const struct nf_tenure *t, int fd, char mode)
{
    if (nf_shared(fd))
        return false; /* another process may have unlocked or converted it */
    nf_table_lock();
    bool good = t->listed && !t->ending && !t->lost && !t->kept && t->mode == mode && nf_left_ms(t->deadline_ms) > 0;
    nf_table_unlock();
    return good;
}

/*
 * Does this description have the kernel's lock in this mode already? Then asking again changes nothing, and other
 * processes that share it may be working under it. Only a description that others may share, or whose tenure a keeper
 * has, can have a lock that we do not renew ourselves.
 */
static bool had_already(int fd, const struct nf_file *f, const struct nf_tenure *prev, char mode)
{
    if (prev ? still_good(prev, fd, mode) : !nf_shared(fd))
        return false;
    if (prev && prev->shadow >= 0)
        return prev->mode == mode;
    return nf_fd_lock_mode(fd, f->ino, false) == mode;
}

static int lock(int fd, int op, struct nf_file *f)
{
    struct nf_quiet quiet;
    char mode = (op & ~LOCK_NB) == LOCK_EX ? 'x' : 's';
    struct nf_tenure *prev;
    bool had;
    unsigned forks = nf_fork_count();
    if (nf_config()->broken)
        return -ENOLCK; /* said when the configuration was read */
    if (nf_tenure_count() > 0) {
        nf_quiet(&quiet);
        prev = nf_lease_of_fd(fd, f->dev, f->ino);
        had = had_already(fd, f, prev, mode);
        nf_loud(&quiet);
    } else {
        prev = NULL;
        had = had_already(fd, f, NULL, mode);
    }
    int r = local_lock(fd, op, f, prev);
    if (r < 0) {
        drop_shadow(f);
        after_failed_conversion(fd, prev);
        return r;
    }
    nf_quiet(&quiet);
    if (prev && still_good(prev, fd, mode)) {
        drop_shadow(f);
        unref(prev);
    } else {
        char replaced[NF_TOKEN_MAX] = "";
        bool kept = prev && nf_config()->policy.keeper != NF_KEEPER_NEVER && nf_tenure_kept(prev);
        enum nf_before before = had ? NF_BEFORE_HAD : kept ? NF_BEFORE_KEPT : NF_BEFORE_NONE;
        /* The keeper must not take the end of its token for a loss. A shared one that becomes exclusive has ended, with all
           other readers of this host, now that the kernel let us in; an exclusive one is replaced, and then has ended. */
        bool tell_first = kept && prev->mode == 's' && mode == 'x';
        bool tell_after = kept && prev->mode == 'x' && !had;
        if (prev) {
            (void)strlcpy(replaced, prev->token, sizeof replaced);
            supersede(prev, f);
        }
        if (tell_first)
            (void)nf_keeper_ended(f->lock_dev, f->lock_ino, f->key, f->key_len, replaced);
        r = nf_acquire(fd, f, mode, op & LOCK_NB, before, replaced, &quiet.mask, forks);
        if (tell_after)
            (void)nf_keeper_ended(f->lock_dev, f->lock_ino, f->key, f->key_len, replaced);
        if (r < 0 && !had)
            local_unlock(fd, f);
        if (r < 0)
            drop_shadow(f);
    }
    nf_loud(&quiet);
    return r;
}

/* The tenure that fd is known to stand for, without a look at its name; NULL if that takes a closer look. */
static struct nf_tenure *known(int fd, struct nf_file *f)
{
    struct stat st;
    if (nf_sys.fstat(fd, &st) < 0)
        return NULL;
    struct nf_tenure *t = nf_lease_of_fd(fd, st.st_dev, st.st_ino);
    if (!t)
        return NULL;
    f->dev = f->lock_dev = st.st_dev;
    f->ino = f->lock_ino = st.st_ino;
    f->shadow = -1;
    f->key_len = t->names->key_len < sizeof f->key ? t->names->key_len : 0;
    memcpy(f->key, t->names->key, f->key_len + 1);
    return t;
}

static void set_ending(struct nf_tenure *t, bool ending)
{
    nf_table_lock();
    t->ending = ending;
    nf_table_unlock();
}

/* `matched`: *f is filled in; else fd is one that a tenure is known by. */
static int unlock(int fd, int op, struct nf_file *f, bool matched)
{
    struct nf_quiet quiet;
    nf_quiet(&quiet);
    struct nf_tenure *t = matched ? nf_lease_of_fd(fd, f->dev, f->ino) : known(fd, f);
    if (!t && !matched && nf_match(fd, f) != NF_MATCH_YES) {
        nf_loud(&quiet);
        return real_flock(fd, op);
    }
    if (t)
        set_ending(t, true); /* before the kernel lets another thread have it */
    int r = t && t->shadow >= 0 ? nf_klock(t->shadow, LOCK_UN, true) : real_flock(fd, op);
    if (r < 0 && nf_shadow_allowed(nf_config(), r, f))
        r = 0; /* there is no such lock, so it is unlocked */
    if (r < 0 && t)
        set_ending(t, false);
    if (r == 0 && t)
        nf_lease_unlocked(t);
    else if (r == 0 && nf_config()->policy.keeper != NF_KEEPER_NEVER)
        (void)nf_keeper_sync(f->lock_dev, f->lock_ino, f->key, f->key_len);
    if (t)
        unref(t);
    nf_loud(&quiet);
    return r;
}

int nf_flock(int fd, int op)
{
    struct nf_file f;
    int kind = op & ~LOCK_NB;
    if (kind != LOCK_EX && kind != LOCK_SH && kind != LOCK_UN)
        return real_flock(fd, op); /* the kernel says EINVAL */
    bool held = kind == LOCK_UN && nf_marked(NF_MARK_TENURE, fd);
    /* First of all: most calls of most programs are none of our business. */
    enum nf_match match = held ? NF_MATCH_YES : nf_match(fd, &f);
    if (match == NF_MATCH_NO || (match == NF_MATCH_DOUBT && kind == LOCK_UN))
        return real_flock(fd, op);
    if (match == NF_MATCH_DOUBT)
        return -ENOLCK;
    switch (nf_process_where()) {
    case NF_VFORK_CHILD:
        /* It shares its parent's memory: our state is not its own to change. */
        return kind == LOCK_UN ? real_flock(fd, op) : -ENOLCK;
    case NF_FORKED:
        nf_fork_noticed();
        break;
    case NF_HOME:
        break;
    }
    return kind == LOCK_UN ? unlock(fd, op, &f, !held) : lock(fd, op, &f);
}
