/*
 * The table: see tenure.h.
 */
#include "lease/tenure.h"

#include "base/alloc.h"
#include "base/fdset.h"
#include "base/sys.h"
#include "lease/orphan.h"
#include "redis/ranges.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Owners of byte ranges stand apart: they have nothing to do with a file's flock tenures. */
static int compare(const struct nf_tenure *a, const struct nf_tenure *b)
{
    if (nf_range_owner(a->mode) != nf_range_owner(b->mode))
        return nf_range_owner(a->mode) ? 1 : -1;
    if (a->dev != b->dev)
        return a->dev < b->dev ? -1 : 1;
    if (a->ino != b->ino)
        return a->ino < b->ino ? -1 : 1;
    return a->seq < b->seq ? -1 : a->seq > b->seq;
}

RB_HEAD(tree, nf_tenure);
/* libbsd's macro wants BSD's __unused, which glibc's headers use as a name of their own. */
#define __unused __attribute__((unused))
RB_GENERATE_STATIC(tree, nf_tenure, link, compare)
#undef __unused

static struct nf_mutex mu = NF_MUTEX_INITIALIZER;
static struct tree table = RB_INITIALIZER(&table);
static uint64_t next_seq = 1;
static atomic_int count;

struct nf_tenure *nf_tenure_new(struct nf_names *names, const char *token, int identity_len, char mode, dev_t dev, ino_t ino, int fd)
{
    size_t len = strlen(token) + 1;
    struct nf_tenure *t = nf_calloc(1, sizeof *t + len);
    if (!t) {
        nf_free(names);
        return NULL;
    }
    t->names = names;
    t->dev = t->lock_dev = dev;
    t->ino = t->lock_ino = ino;
    t->shadow = -1;
    t->fd = fd;
    t->mode = mode;
    t->refs = 1;
    t->identity_len = identity_len;
    memcpy(t->token, token, len);
    return t;
}

void nf_table_lock(void)
{
    nf_mutex_lock(&mu);
}

void nf_table_unlock(void)
{
    nf_mutex_unlock(&mu);
}

struct nf_mutex *nf_table_mutex(void)
{
    return &mu;
}

void nf_tenure_insert(struct nf_tenure *t)
{
    nf_table_owed();
    /* A close that nobody saw, and the number in use again: it stands for the newer tenure only. */
    if (nf_marked(NF_MARK_TENURE, t->fd))
        for (struct nf_tenure *old = nf_tenure_any(NULL); old; old = nf_tenure_any(old))
            if (old->fd == t->fd)
                old->fd = -1;
    t->seq = next_seq++;
    t->refs++;
    t->listed = true;
    RB_INSERT(tree, &table, t);
    nf_mark(NF_MARK_TENURE, t->fd);
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
}

void nf_tenure_remove(struct nf_tenure *t)
{
    nf_table_owed();
    if (!t->listed)
        return;
    t->listed = false;
    RB_REMOVE(tree, &table, t);
    nf_unmark(NF_MARK_TENURE, t->fd);
    t->fd = -1;
    if (atomic_fetch_sub_explicit(&count, 1, memory_order_relaxed) == 1)
        nf_lease_idle();
    nf_tenure_unref(t);
}

void nf_tenure_set_fd(struct nf_tenure *t, int fd)
{
    nf_table_owed();
    nf_unmark(NF_MARK_TENURE, t->fd);
    t->fd = fd;
    nf_mark(NF_MARK_TENURE, fd);
}

struct nf_tenure *nf_tenure_first(dev_t dev, ino_t ino)
{
    struct nf_tenure key = {.dev = dev, .ino = ino};
    nf_table_owed();
    struct nf_tenure *t = RB_NFIND(tree, &table, &key);
    return t && t->dev == dev && t->ino == ino && !nf_range_owner(t->mode) ? t : NULL;
}

struct nf_tenure *nf_tenure_next(struct nf_tenure *t)
{
    nf_table_owed();
    struct nf_tenure *n = RB_NEXT(tree, &table, t);
    return n && n->dev == t->dev && n->ino == t->ino && nf_range_owner(n->mode) == nf_range_owner(t->mode) ? n : NULL;
}

struct nf_tenure *nf_tenure_any(struct nf_tenure *after)
{
    nf_table_owed();
    return after ? RB_NEXT(tree, &table, after) : RB_MIN(tree, &table);
}

void nf_tenure_ref(struct nf_tenure *t)
{
    nf_table_owed();
    t->refs++;
}

void nf_tenure_unref(struct nf_tenure *t)
{
    nf_table_owed();
    if (t && --t->refs == 0) {
        if (nf_fd_is(t->shadow, t->lock_dev, t->lock_ino))
            (void)nf_sys.close(t->shadow);
        nf_free(t->names);
        nf_free(t);
    }
}

bool nf_tenure_listed(const struct nf_tenure *t)
{
    nf_table_lock();
    bool listed = t->listed;
    nf_table_unlock();
    return listed;
}

bool nf_tenure_kept(const struct nf_tenure *t)
{
    nf_table_lock();
    bool kept = t->kept;
    nf_table_unlock();
    return kept;
}

int nf_tenure_count(void)
{
    return atomic_load_explicit(&count, memory_order_relaxed);
}

bool nf_tenure_has_fd(int fd)
{
    bool found = false;
    if (fd < NF_WATCH_MAX)
        return nf_marked(NF_MARK_TENURE, fd);
    nf_table_lock();
    for (struct nf_tenure *t = nf_tenure_any(NULL); t && !found; t = nf_tenure_any(t))
        found = t->fd == fd;
    nf_table_unlock();
    return found;
}

void nf_table_fork_child(void)
{
    struct nf_tenure *next;
    for (struct nf_tenure *t = nf_tenure_any(NULL); t; t = next) {
        next = nf_tenure_any(t);
        t->kept = true, t->unsure = false;
        if (nf_range_owner(t->mode))
            nf_tenure_remove(t); /* record.h: not inherited */
    }
}
