/*
 * See record.h.
 */
#include "lease/record.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fdset.h"
#include "base/fdutil.h"
#include "base/klock.h"
#include "base/sys.h"
#include "lease/keeper.h"
#include "lease/lease.h"
#include "redis/ranges.h"

#include <bsd/stdlib.h>
#include <bsd/string.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

atomic_int nf_record_count;

static struct nf_mutex list_mu = NF_MUTEX_INITIALIZER;
#define BUCKETS 256
static struct nf_record_file_list files[BUCKETS]; /* by inode; all zero: none */
static char process_base[40];                     /* this process as an owner, in all files; guarded by list_mu */
static atomic_ulong generations;

static void random_base(char *buf, size_t size, char kind)
{
    uint64_t n[2];
    arc4random_buf(n, sizeof n);
    (void)snprintf(buf, size, "%c%016" PRIx64 "%016" PRIx64, kind, n[0], n[1]);
}

/* With list_mu held. */
static struct nf_record_file *look_up(dev_t dev, ino_t ino)
{
    struct nf_record_file *f;
    nf_mutex_owed(&list_mu);
    LIST_FOREACH(f, &files[ino % BUCKETS], link)
    if (f->dev == dev && f->ino == ino)
        break;
    return f;
}

struct nf_record_file *nf_record_file_find(dev_t dev, ino_t ino)
{
    struct nf_record_file *f;
    if (atomic_load_explicit(&nf_record_count, memory_order_relaxed) == 0)
        return NULL;
    nf_mutex_lock(&list_mu);
    f = look_up(dev, ino);
    if (f)
        f->refs++;
    nf_mutex_unlock(&list_mu);
    return f;
}

struct nf_record_file *nf_record_file_get(dev_t dev, ino_t ino)
{
    struct nf_record_file *f;
    nf_mutex_lock(&list_mu);
    f = look_up(dev, ino);
    if (!f && (f = nf_calloc(1, sizeof *f))) {
        f->dev = dev;
        f->ino = ino;
        nf_mutex_init(&f->mu);
        TAILQ_INIT(&f->records);
        LIST_INSERT_HEAD(&files[ino % BUCKETS], f, link);
    }
    if (f)
        f->refs++;
    nf_mutex_unlock(&list_mu);
    return f;
}

/* With list_mu held. A record has a reference to its file of its own. */
static void put_locked(struct nf_record_file *f)
{
    nf_mutex_owed(&list_mu);
    if (--f->refs > 0)
        return;
    LIST_REMOVE(f, link);
    nf_mutex_destroy(&f->mu);
    nf_free(f);
}

void nf_record_file_put(struct nf_record_file *f)
{
    nf_mutex_lock(&list_mu);
    put_locked(f);
    nf_mutex_unlock(&list_mu);
}

struct nf_record_file *nf_record_file_next(struct nf_record_file *after)
{
    nf_mutex_lock(&list_mu);
    struct nf_record_file *f = after ? LIST_NEXT(after, link) : NULL;
    for (size_t i = after ? after->ino % BUCKETS + 1 : 0; !f && i < BUCKETS; i++)
        f = LIST_FIRST(&files[i]);
    if (f)
        f->refs++;
    if (after)
        put_locked(after);
    nf_mutex_unlock(&list_mu);
    return f;
}

/*
 * Is this record's description the one behind fd? Where kcmp(2) is not allowed: if it is the only one, and fd's
 * description has such a lock.
 */
bool nf_record_same_description(const struct nf_record *r, int fd)
{
    nf_mutex_owed(&r->file->mu);
    if (r->fd == fd)
        return true;
    int same = r->fd < 0 ? -ENOENT : nf_sys.kcmp_file(r->fd, fd);
    return same == 0 || (same < 0 && nf_fd_lock_mode(fd, r->file->ino, true) > 0);
}

struct nf_record *nf_record_find(struct nf_record_file *f, char kind, int fd)
{
    struct nf_record *r;
    nf_mutex_owed(&f->mu);
    TAILQ_FOREACH (r, &f->records, link)
        if (r->kind == kind && (kind == 'p' || nf_record_same_description(r, fd)))
            return r;
    return NULL;
}

int nf_record_new_token(struct nf_record *r)
{
    char token[NF_TOKEN_MAX];
    char nonce[64];
    struct nf_tenure *old = r->t;
    nf_mutex_owed(&r->file->mu);
    (void)snprintf(nonce, sizeof nonce, "%s.%lu", r->base, 1 + atomic_fetch_add(&generations, 1));
    int identity = nf_token_make_as(token, nf_config()->policy.host_extra, r->file->dev, r->file->ino, nonce);
    struct nf_names *names = identity < 0 ? NULL : nf_names_make(old->names->key, old->names->key_len);
    if (!names)
        return identity < 0 ? identity : -ENOMEM;
    struct nf_tenure *t = nf_tenure_new(names, token, identity, r->kind, r->file->dev, r->file->ino, -1);
    if (!t)
        return -ENOMEM;
    nf_table_lock();
    nf_tenure_remove(old);
    nf_tenure_unref(old);
    nf_table_unlock();
    r->t = t;
    r->seq = 0;
    r->dirty = false;
    return 0;
}

struct nf_record *nf_record_new(struct nf_record_file *f, char kind, int fd, const char *key, size_t key_len)
{
    struct nf_record *r = nf_calloc(1, sizeof *r);
    struct nf_names *names = nf_names_make(key, key_len);
    nf_mutex_owed(&f->mu);
    if (!r || !names)
        goto fail;
    r->file = f;
    r->kind = kind;
    r->fd = fd;
    nf_mutex_lock(&list_mu);
    if (!process_base[0])
        random_base(process_base, sizeof process_base, 'p');
    (void)strlcpy(r->base, process_base, sizeof r->base);
    f->refs++;
    nf_mutex_unlock(&list_mu);
    if (kind == 'o')
        random_base(r->base, sizeof r->base, 'o');
    r->t = nf_tenure_new(names, "", 0, kind, f->dev, f->ino, -1); /* for its names, until there is a token */
    names = NULL;
    if (!r->t || nf_record_new_token(r) < 0) {
        nf_table_lock();
        nf_tenure_unref(r->t);
        nf_table_unlock();
        nf_record_file_put(f);
        goto fail;
    }
    TAILQ_INSERT_TAIL(&f->records, r, link);
    if (atomic_fetch_add(&nf_record_count, 1) == 0)
        nf_watch_all(true);
    return r;
fail:
    nf_free(names);
    nf_free(r);
    return NULL;
}

void nf_record_tidy(struct nf_record *r)
{
    struct nf_record_file *f = r->file;
    nf_mutex_owed(&f->mu);
    if (r->held.n || r->refs)
        return;
    TAILQ_REMOVE(&f->records, r, link);
    if (atomic_fetch_sub(&nf_record_count, 1) == 1)
        nf_watch_all(false);
    nf_table_lock();
    nf_tenure_remove(r->t);
    nf_tenure_unref(r->t);
    nf_table_unlock();
    nf_ranges_clear(&r->held);
    nf_free(r);
    nf_record_file_put(f); /* the caller has a reference too */
}

void nf_record_leave(struct nf_record *r)
{
    const struct nf_names *n = r->t->names;
    nf_mutex_owed(&r->file->mu);
    nf_table_lock();
    nf_tenure_remove(r->t);
    nf_table_unlock();
    nf_ranges_clear(&r->held);
    (void)nf_keeper_sync(r->file->dev, r->file->ino, n->key, n->key_len);
    if (r->refs)
        (void)nf_record_new_token(r);
    nf_record_tidy(r);
}

void nf_record_drop(struct nf_record *r, bool later)
{
    const struct nf_config *c = nf_config();
    struct nf_answer a;
    struct nf_request q = {.names = r->t->names, .token = r->t->token, .mode = r->kind};
    nf_mutex_owed(&r->file->mu);
    nf_table_lock();
    bool kept = nf_tenure_with_keeper(r->t);
    nf_tenure_remove(r->t);
    nf_table_unlock();
    nf_ranges_clear(&r->held);
    r->dirty = false;
    /* The keeper first, or it would take what it finds gone for lost. */
    if (kept)
        (void)nf_keeper_ended(r->file->dev, r->file->ino, q.names->key, q.names->key_len, q.token);
    if (later || nf_op_release(&c->redis, &c->policy, &q, nf_now_ms() + c->redis.timeout_ms, &a) < 0) {
        struct nf_names *names = nf_names_make(q.names->key, q.names->key_len);
        if (names)
            nf_lease_orphan(names, q.token, q.mode, nf_now_ms() + c->policy.ttl_ms);
    }
    if (r->refs)
        (void)nf_record_new_token(r);
}

int nf_record_leased(struct nf_record *r, int64_t sent_ms, const char *fence)
{
    struct nf_tenure *t = r->t;
    nf_mutex_owed(&r->file->mu);
    nf_table_lock();
    bool listed = t->listed;
    t->renewed_ms = t->tried_ms = sent_ms;
    t->deadline_ms = nf_lease_deadline(sent_ms, nf_config()->policy.ttl_ms);
    (void)strlcpy(t->fence, fence, sizeof t->fence);
    t->alone = r->alone;
    nf_table_unlock();
    return listed ? 0 : nf_lease_add(t);
}

bool nf_record_check_lost(struct nf_record *r)
{
    nf_mutex_owed(&r->file->mu);
    nf_table_lock();
    bool lost = r->t->lost;
    nf_table_unlock();
    if (!lost)
        return false;
    nf_ranges_clear(&r->held);
    (void)nf_record_new_token(r);
    return true;
}

void nf_record_sync(struct nf_record *r)
{
    const struct nf_config *c = nf_config();
    nf_mutex_owed(&r->file->mu);
    if (r->dirty &&
        nf_range_sync(&c->redis, &c->policy, r->t->names, r->t->token, ++r->seq, &r->held, false, nf_now_ms() + c->redis.timeout_ms) == 0)
        r->dirty = false;
}

int nf_record_ticket(const struct nf_record *r, struct nf_ticket *out)
{
    (void)snprintf(out->nonce, sizeof out->nonce, "%s.0~%lu", r->base, 1 + atomic_fetch_add(&generations, 1));
    return nf_token_make_as(out->token, nf_config()->policy.host_extra, r->file->dev, r->file->ino, out->nonce);
}

void nf_record_forgotten(struct nf_record *r)
{
    nf_mutex_owed(&r->file->mu);
    nf_table_lock();
    bool first = !r->t->lost;
    r->t->lost = true;
    nf_table_unlock();
    if (first)
        nf_lost(r->t, "", "it is gone in Redis");
    (void)nf_record_check_lost(r);
}

bool nf_record_reclaim(const struct nf_tenure *t)
{
    const struct nf_config *c = nf_config();
    struct nf_record *r;
    bool done = false;
    struct nf_record_file *f = nf_record_file_find(t->dev, t->ino);
    if (!f)
        return false;
    nf_mutex_lock(&f->mu);
    TAILQ_FOREACH (r, &f->records, link)
        if (r->t == t)
            break;
    done = r && nf_range_sync(&c->redis, &c->policy, t->names, t->token, ++r->seq, &r->held, true, nf_now_ms() + c->redis.timeout_ms) == 0;
    nf_mutex_unlock(&f->mu);
    nf_record_file_put(f);
    return done;
}

void nf_record_release_all(int64_t until_ms)
{
    for (struct nf_record_file *f = nf_record_file_next(NULL); f && nf_now_ms() < until_ms; f = nf_record_file_next(f)) {
        struct nf_record *r;
        struct nf_record *next;
        nf_mutex_lock(&f->mu);
        for (r = TAILQ_FIRST(&f->records); r; r = next) {
            next = TAILQ_NEXT(r, link);
            if (r->kind == 'o' && nf_shared(r->fd))
                continue; /* another process may have it: left to its lease */
            if (r->held.n)
                nf_record_drop(r, false);
            nf_record_tidy(r);
        }
        nf_mutex_unlock(&f->mu);
    }
}

void nf_record_fork_child(void)
{
    nf_mutex_init(&list_mu);
    memset(files, 0, sizeof files);
    process_base[0] = 0;
    if (atomic_exchange(&nf_record_count, 0) > 0)
        nf_watch_all(false);
}
