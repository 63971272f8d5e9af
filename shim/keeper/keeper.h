/*
 * netflock-keeper: renews the tenures of programs that cannot see their end, and ends them with the kernel's lock.
 *
 * One process may keep several files (all those that one program handed over at once). The main thread does all the
 * talking: with Redis, with the shims. For each file a second thread does nothing but sleep in flock(LOCK_EX) on an
 * open file description of our own: when the kernel grants it, nobody on this host holds the lock any more.
 *
 * A file's mutex (kfile.mu):
 *  1. guards which tenures the file has, and whether each has ended; `fresh` and `has_thread` too. The main thread alone changes
 *     the list, and may therefore walk it without; the file's own thread, as long as there is one, is the only one that changes
 *     `fresh`. All else belongs to the main thread, or never changes;
 *  2. is held over flock(LOCK_EX | LOCK_NB) and LOCK_UN on our own description, which do not block, and over the start of the
 *     file's thread; not over any reading of /proc, nor any exchange;
 *  3. nests inside no other, and no other is taken under it.
 */
#ifndef NF_KEEPER_KEEPER_H
#define NF_KEEPER_KEEPER_H

#include "base/mutex.h"
#include "base/ranges.h"
#include "lease/proto.h"
#include "redis/ops.h"

#include <bsd/sys/queue.h>
#include <pthread.h>
#include <stdbool.h>

/* Somebody who has the open file description that `ours` refers to. */
struct holder {
    int ours;
    pid_t pid; /* the last one known, and its descriptor */
    int fd;
};

/* holders.c: has any other process that description? (The guard does not count.) */
bool holder_alive(struct holder *h);

/*
 * Sends sig to every process that has a descriptor of dev:ino whose description holds a lock there: type "FLOCK" or
 * "OFDLCK". Returns to how many.
 */
int holders_signal(uint64_t dev, uint64_t ino, const char *type, int sig);

struct kept {
    TAILQ_ENTRY(kept) link;
    bool ended; /* guarded by the file's mutex: the kernel's lock behind it is gone */
    bool lost;
    char mode;
    int identity_len;
    int64_t renewed_ms, tried_ms, deadline_ms;
    int64_t gone_ms;       /* since when it is known that the token is gone; 0 it is not */
    int64_t release_at_ms; /* next try to release, once ended */
    int hold;              /* the lock's own description, held for whoever has holder.ours; -1 none */
    struct holder holder;  /* ours == -1: none */
    char fence[NF_FENCE_MAX];
    char token[NF_TOKEN_MAX];
};

/* records.c: an owner of byte ranges. */
struct krec {
    TAILQ_ENTRY(krec) link;
    char kind;  /* 'p' or 'o' */
    bool alone; /* the kernel has no such locks: only the process's end counts */
    bool ended, lost;
    bool compared; /* at least once: the lock may have gone before the first look */
    pid_t pid;     /* 'p': the owner */
    int pidfd;
    int64_t renewed_ms, tried_ms, deadline_ms;
    uint64_t seq;
    struct nf_ranges has;    /* in Redis, when that was last asked */
    struct nf_ranges kernel; /* what was locked when all was in order */
    char token[NF_TOKEN_MAX];
};

struct kfile {
    TAILQ_ENTRY(kfile) link;
    uint64_t dev, ino;
    struct nf_names *names;
    int fresh;            /* our own open file description of the file; -1: /proc/locks is looked at instead; guarded by mu */
    bool ofd;             /* a stand-in: open file description locks instead of flock(2)'s */
    int listen;           /* the abstract socket; -1: another keeper, or somebody else, has the name */
    int64_t listen_at_ms; /* it could not be had: when to try again, and the pause before that */
    int listen_pause_ms;
    pthread_t thread;
    bool has_thread; /* guarded by mu */
    struct nf_mutex mu;
    pthread_cond_t work; /* the thread sleeps here while there is nothing to watch */
    TAILQ_HEAD(, kept) tenures;
    TAILQ_HEAD(, krec) records;
};

TAILQ_HEAD(kfile_list, kfile);

struct keeper {
    struct nf_redis_opts redis;
    struct nf_policy policy;
    struct kfile_list files;
    int wake[2]; /* a pipe: a watching thread has seen a lock go, or cannot watch any more */
    bool outage_said;
};

extern struct keeper keeper;

/* watch.c: the kernel's side. */
void kfile_watch_start(struct kfile *f);
/* Our own description of the file, for the main thread: it stays open. -1: there is none. */
int kfile_fresh(struct kfile *f);
bool kfile_watched(struct kfile *f); /* has it a thread? */
bool kfile_has_ended(struct kfile *f, const struct kept *k);
/* In a forked copy: the thread stayed behind. */
void kfile_watch_forget(struct kfile *f);
/* Looks at the kernel's lock now, without blocking; true if nobody holds it (then all tenures are marked ended). */
bool kfile_look(struct kfile *f);
/* Adds a tenure, which takes over from the file's earlier ones where they cannot both be true. */
void kfile_add(struct kfile *f, struct kept *k);
bool kfile_has_live(struct kfile *f);
/* Marks the tenure with this token ended: somebody who knows has said so. */
bool kfile_ended(struct kfile *f, const char *token);

/* records.c */
bool krec_add(struct kfile *f, const struct nf_ho_tenure *m);
int64_t krec_tend(struct kfile *f);                  /* looks, renews, releases; returns when to come back */
bool krec_ended(struct kfile *f, const char *token); /* its owner has given all up itself */
void krec_take_over(struct kfile *f);                /* in the guard */

/* Is nothing kept of the file? */
static inline bool kfile_idle(const struct kfile *f)
{
    return TAILQ_EMPTY(&f->tenures) && TAILQ_EMPTY(&f->records);
}

/* serve.c: the shims' side. */
int serve_start(int ctl);             /* reads the hello and the tenures, and answers */
void serve_listener(struct kfile *f); /* one connection is waiting */
struct kfile *kfile_new(const struct nf_ho_tenure *m);

/* The file's socket: bound and listening, or f->listen == -1 when the name is taken. */
void kfile_listen(struct kfile *f);

/*
 * A file whose address could not be had, since a keeper that was just dying still had it, is not found by others: they would
 * start keepers of their own. Tries again, or gives what it has to who listens there. When to call next; INT64_MAX: not again.
 */
int64_t kfile_be_found(struct kfile *f);
/* Another keeper has the file's name: gives it the tenures that may move; true if none is left here. */
bool kfile_give_away(struct kfile *f);

/*
 * guard.c: a copy of this process that does nothing but wait for our death, and then takes our place.
 */
void guard_outdated(void);  /* what we keep has changed: a newer copy is due in a moment */
int64_t guard_due_ms(void); /* when (CLOCK_BOOTTIME); INT64_MAX if not */
void guard_tend(void);      /* makes that copy when it is due. In the copy this returns when it has become the keeper */
void guard_stop(void);      /* the copy is gone, with its descriptors, when this returns */
int guard_fd(void);         /* readable when the copy has died; -1 if there is none */
pid_t guard_pid(void);      /* 0 if there is none */

/*
 * cgroup.c: out of the program's control group, so that not all is killed at one blow. v1: at the start, while there is one
 * thread. v2: called in the guard, which has the time, for itself and the keeper.
 */
void cgroup_leave(void);
void cgroup_leave_both(pid_t keeper_pid);

/* tend.c: Redis' side. Renews what is due, releases what has ended; returns when to come back (CLOCK_BOOTTIME). */
int64_t tend(void);
/* Releases what has ended in one file, now. */
void tend_ended(struct kfile *f);
/* Forgets a tenure: it is released, or lost, or another keeper has it. */
void kept_drop(struct kfile *f, struct kept *k);

#endif
