/*
 * What netflock asks of Redis, as typed calls: acquire, release, renew, wait.
 *
 * Every operation is one script, safe to repeat with the same token. Callers have all signals blocked (except in
 * nf_op_wait) and cancellation disabled.
 */
#ifndef NF_REDIS_OPS_H
#define NF_REDIS_OPS_H

#include "base/config.h"
#include "base/identity.h"
#include "redis/conn.h"

#include <stdbool.h>
#include <stdint.h>

#define NF_FENCE_MAX 24

/* The names of a file's keys in Redis; one allocation. */
struct nf_names {
    const char *key, *fence, *queue, *alive;
    size_t key_len, fence_len, queue_len, alive_len;
    char text[];
};

/* Makes the names for a key of len bytes; NULL when out of memory. Free with nf_free(). */
struct nf_names *nf_names_make(const char *key, size_t len);

enum nf_outcome {
    NF_GRANTED, /* held */
    NF_BUSY,    /* somebody incompatible holds it, or is before us in the queue */
    NF_GRACE,   /* Redis was restarted or has lost data: old holders come first, for left_ms */
    NF_DOWN,    /* no usable answer; asking again may help (also: LOADING, READONLY, OOM, ...) */
    NF_REFUSED, /* Redis will not do it: NOPERM, WRONGTYPE, AUTH; asking again will not help */
};

struct nf_answer {
    enum nf_outcome outcome;
    char fence[NF_FENCE_MAX];  /* NF_GRANTED */
    char holder[NF_TOKEN_MAX]; /* NF_BUSY: one holder's token, or foreign value, cut */
    char holder_mode;          /* NF_BUSY: 'x' or 's' */
    int64_t left_ms;           /* NF_BUSY: until it is worth to look again, mostly the end of the holder's lease; -1 never; NF_GRACE */
    int64_t redis_ms;          /* NF_BUSY: Redis' clock when it answered, in ms */
    int64_t before_me;         /* NF_BUSY: waiters ahead; -1 when not queued */
    int64_t unfetched_ms;      /* NF_BUSY: it was granted to a waiter who, should he not come in so many ms, is dead; 0: not so */
    bool reached;              /* the request may have reached Redis, even if no answer came */
    bool told;                 /* nf_op_wait: a message came, not just the end of the time */
    int64_t grant_at_ms;       /* nf_op_wait: Redis' clock when it granted */
    int grant_ms;              /* nf_op_wait: how long that grant lasts; 0: none came */
    int64_t sent_ms;           /* when the request was sent (CLOCK_BOOTTIME): a lease counts from here */
    char why[200];             /* NF_DOWN, NF_REFUSED: one clause */
};

struct nf_request {
    const struct nf_names *names;
    const char *token;
    int identity_len;  /* of token's identity; 0: no other has the same */
    const char *adopt; /* a token of our own host that is certainly stale, to be removed; "" none */
    char mode;         /* 'x' or 's' */
    bool had;          /* the kernel's lock was ours in this mode before: take its tenure over without letting it go */
    bool wait;         /* queue me when busy */
    int sleep_ms;      /* with wait: I ask again within this time, or am dead */
};

/* One that waits for a record lock asks again at least so often: well before the 7 s after which the script takes a silent
   one for dead. */
#define NF_WAITER_POLL_MS 2600

/* NETFLOCK_GRACE as the scripts want it. */
const char *nf_grace_arg(const struct nf_redis_opts *o);

void nf_op_acquire(const struct nf_config *c, const struct nf_request *q, int64_t deadline_ms, struct nf_answer *a);

/*
 * Ends the tenure (or, with q->wait, also the wait) of q->token. 1 if it held the file, 0 if not, -errno with a->why
 * when Redis gave no answer: then it must be tried again until the lease has run out.
 */
int nf_op_release(const struct nf_redis_opts *o, const struct nf_policy *p, const struct nf_request *q, int64_t deadline_ms,
                  struct nf_answer *a);

struct nf_renewal {
    const struct nf_names *names;
    const char *token;
    const char *fence;
    int identity_len;
    char mode;
    bool late;                                                                 /* the tenure's own deadline is past */
    enum { NF_RENEWED, NF_RECLAIMED, NF_GONE, NF_MISSING, NF_UNKNOWN } result; /* MISSING: byte ranges, to be reclaimed */
    char holder[NF_TOKEN_MAX];                                                 /* NF_GONE: who has it now, "" nobody */
};

/* Renews n tenures, pipelined. Returns 0, or -errno with `why` (those without an answer stay NF_UNKNOWN). */
int nf_op_renew(const struct nf_redis_opts *o, const struct nf_policy *p, struct nf_renewal *r, size_t n, int64_t deadline_ms, char *why,
                size_t why_size);

/*
 * Sleeps until the waiter's turn may have come, at most ms, on a connection of its own. `mask` is the host's signal
 * mask, which is set around the one blocking call.
 * 0: ask again, unless a->grant_ms says that the message was a grant of a file (a->fence, a->grant_at_ms), which came after
 * the last answer to an ask. -EINTR: a handler without SA_RESTART ran. Another -errno: Redis is away.
 */
int nf_op_wait(const struct nf_redis_opts *o, const struct nf_request *q, int ms, const sigset_t *mask, struct nf_answer *a);

#endif
