/*
 * The tenures of this process: which files it holds in Redis, under which token, until when.
 *
 * One tenure belongs to one open file description that holds the kernel's lock. `fd` is one descriptor of this process
 * that refers to it; when that one is closed another is looked for.
 *
 * The table's mutex (nf_table_lock):
 *  1. guards every field of every tenure, once that is in the table, except those that never change from then on: names,
 *     token, identity_len, mode, dev, ino, shadow, lock_dev, lock_ino, and of an flock's tenure the fence;
 *  2. is taken with all signals blocked (nf_quiet), so that a wrapper called in a signal handler never meets it;
 *  3. nests inside the mutex of a file of record locks (record.h), and outside the pool's and the allocator's lock
 *     (alloc.h); nothing else is taken under it;
 *  4. is not held over any exchange with Redis, nor over reads of /proc.
 * A reference (refs) keeps the memory while a thread works on a tenure without the mutex.
 */
#ifndef NF_LEASE_TENURE_H
#define NF_LEASE_TENURE_H

#include "base/mutex.h"
#include "redis/ops.h"

#include <bsd/sys/tree.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct nf_tenure {
    RB_ENTRY(nf_tenure) link;
    uint64_t seq;
    dev_t dev;
    ino_t ino;
    int shadow;     /* a stand-in whose lock counts instead of the file's own (lock/shadow.h); -1: none */
    dev_t lock_dev; /* the file whose kernel lock counts: dev and ino, or the stand-in's */
    ino_t lock_ino;
    int fd;              /* -1: none known at the moment */
    int refs;            /* the table's own included */
    bool listed;         /* in the table */
    bool kept;           /* a keeper renews it and ends it */
    bool unsure;         /* kept, but the keeper has not answered yet: we renew it as well (pending.h) */
    bool giving;         /* being handed to a keeper, which may already count on its token */
    bool alone;          /* an owner of byte ranges without locks in the kernel (record.h) */
    bool lost;           /* the lease ran out, or somebody else has the file */
    bool deciding;       /* a thread is finding out whether it has ended */
    bool ending;         /* LOCK_UN is on its way to the kernel */
    int64_t renewed_ms;  /* when the last successful request was sent (CLOCK_BOOTTIME) */
    int64_t tried_ms;    /* when the last one was tried */
    int64_t deadline_ms; /* up to here nobody else can have it */
    struct nf_names *names;
    char fence[NF_FENCE_MAX];
    char mode; /* 'x' or 's'; 'p' or 'o': an owner of byte ranges (record.h) */
    int identity_len;
    char token[];
};

/* A lease of ttl ms that was asked for at sent_ms is good until then, with a margin for a slow machine. */
static inline int64_t nf_lease_deadline(int64_t sent_ms, int ttl_ms)
{
    int margin = ttl_ms / 20;
    margin = margin < 15 ? 15 : margin > 1000 ? 1000 : margin;
    return sent_ms + ttl_ms - margin;
}

/* How long after a renewal that failed the next one is tried: often enough before the lease ends. */
static inline int64_t nf_lease_retry(int64_t tried_ms, int64_t deadline_ms, int ttl_ms)
{
    int64_t retry = ttl_ms / 20 < 1000 ? ttl_ms / 20 : 1000;
    int64_t part = (deadline_ms - tried_ms) / 4;
    part = part < 20 ? 20 : part;
    return part < retry ? part : retry;
}

/*
 * Until when a renewal that is sent now may wait for its answer: an exchange that hangs must not make us miss the deadline.
 * When that is past already, no longer than Redis keeps others out; and when that is past too (the process was stopped),
 * half a second: it is too late to be told in time, and mostly nobody was in between.
 */
static inline int64_t nf_lease_patience(int64_t sent_ms, int64_t deadline_ms, int timeout_ms, int ttl_ms)
{
    int64_t margin = sent_ms + ttl_ms - nf_lease_deadline(sent_ms, ttl_ms);
    int64_t until = deadline_ms > sent_ms ? deadline_ms : deadline_ms + margin > sent_ms ? deadline_ms + margin : sent_ms + 500;
    return until < sent_ms + timeout_ms ? until : sent_ms + timeout_ms;
}

/*
 * Has a renewal that was sent in time come to nothing because the process was stopped in it, until the lease was over? That says
 * nothing: it is to be sent again, as by one that was stopped before it.
 */
static inline bool nf_lease_slept(int64_t sent_ms, int64_t deadline_ms, int64_t now_ms, int ttl_ms)
{
    int64_t margin = sent_ms + ttl_ms - nf_lease_deadline(sent_ms, ttl_ms);
    return sent_ms < deadline_ms && now_ms >= deadline_ms + margin;
}

/* A tenure as acquired, not in the table yet, without a stand-in so far; takes over names. NULL when out of memory (names are then freed).
 */
struct nf_tenure *nf_tenure_new(struct nf_names *names, const char *token, int identity_len, char mode, dev_t dev, ino_t ino, int fd);

void nf_table_lock(void);
void nf_table_unlock(void);
struct nf_mutex *nf_table_mutex(void); /* for a condition variable, and after a fork */
#define nf_table_owed() nf_mutex_owed(nf_table_mutex())

/* With the table locked: */
void nf_tenure_insert(struct nf_tenure *t);
void nf_tenure_remove(struct nf_tenure *t); /* out of the table; drops the table's reference */
void nf_tenure_set_fd(struct nf_tenure *t, int fd);
struct nf_tenure *nf_tenure_first(dev_t dev, ino_t ino);  /* flock's of this inode; continue with nf_tenure_next */
struct nf_tenure *nf_tenure_next(struct nf_tenure *t);    /* the next one of the same inode */
struct nf_tenure *nf_tenure_any(struct nf_tenure *after); /* all of them, NULL to start */
void nf_tenure_ref(struct nf_tenure *t);
void nf_tenure_unref(struct nf_tenure *t);

/* With the table locked: a keeper has t, or may have it: then a shared tenure is not ours to release any more. */
static inline bool nf_tenure_with_keeper(const struct nf_tenure *t)
{
    nf_table_owed();
    return t->kept || t->giving;
}

/* For those without the lock, who take what they are told for the truth of a moment ago. Both take the lock. */
bool nf_tenure_listed(const struct nf_tenure *t);
bool nf_tenure_kept(const struct nf_tenure *t);

/* How many are in the table; readable without the lock. */
int nf_tenure_count(void);

/* Is fd the descriptor of a listed tenure? Takes the lock. */
bool nf_tenure_has_fd(int fd);

/* In a forked child, with the table locked anew: every tenure counts as kept, its renewal being another process's work. */
void nf_table_fork_child(void);

#endif
