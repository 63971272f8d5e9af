/*
 * What netflock asks of Redis about byte ranges, as typed calls. Every operation is one script, safe to repeat; those
 * of one owner carry a growing seq, so that a request which is overtaken changes nothing any more.
 *
 * An owner is a process ('p') or an open file description ('o'): the first letter of its token's NONCE.
 */
#ifndef NF_REDIS_RANGES_H
#define NF_REDIS_RANGES_H

#include "base/ranges.h"
#include "redis/ops.h"
#include "redis/script.h"

/* Is this mode of a tenure that of an owner of byte ranges? */
static inline bool nf_range_owner(char mode)
{
    return mode == 'p' || mode == 'o';
}

#define NF_ADOPT_MAX 4096

enum nf_range_step {
    NF_STEP_ONCE = 0,
    NF_STEP_QUEUE = 'q',  /* queue me when busy */
    NF_STEP_KERNEL = 'k', /* I am going to wait in the kernel: only note that, and look for a deadlock */
    NF_STEP_CANCEL = 'c', /* I do not wait any more */
};

struct nf_range_request {
    const struct nf_names *names;
    const char *token;
    int identity_len; /* 0: no other has the same */
    uint64_t seq;
    char mode; /* 'x', 's', or 'u' to give up */
    uint64_t start, end;
    bool holds; /* the owner holds something of the file: before the request, or, with 'u', after it */
    enum nf_range_step step;
    const char *ticket; /* the wait's own token, "" if none */
    const char *adopt;  /* owners of our own host that are stale, "ID SEQ ID SEQ"; "" none */
};

enum nf_range_result {
    NF_RANGE_DONE,
    NF_RANGE_BUSY,
    NF_RANGE_DEADLOCK,
    NF_RANGE_STALE,     /* a later request of the same owner came first */
    NF_RANGE_GRACE,     /* as NF_GRACE: a.left_ms */
    NF_RANGE_FORGOTTEN, /* Redis does not know what the owner holds: all is lost */
    NF_RANGE_DOWN,      /* no usable answer; asking again may help */
    NF_RANGE_REFUSED,   /* asking again will not help */
};

struct nf_range_answer {
    enum nf_range_result result;
    struct nf_answer a; /* BUSY: holder (its token), holder_mode, left_ms, before_me; DOWN, REFUSED: why; always: sent_ms, reached */
    uint64_t start, end;
    char adopt[NF_ADOPT_MAX]; /* BUSY: not "" if only stale owners of our own host are in the way */
};

void nf_range_set(const struct nf_config *c, const struct nf_range_request *q, int64_t deadline_ms, struct nf_range_answer *out);

/* Who of other hosts keeps the owner from the range? BUSY or DONE, DOWN, REFUSED. */
void nf_range_test(const struct nf_config *c, const struct nf_range_request *q, int64_t deadline_ms, struct nf_range_answer *out);

/*
 * Takes from the owner what is not in `held`. 0, or -errno: then try again. With `reclaim`, when Redis has lost the owner:
 * gives it what is in `held`; -ENOENT when that cannot be had any more.
 */
int nf_range_sync(const struct nf_redis_opts *o, const struct nf_policy *p, const struct nf_names *names, const char *token, uint64_t seq,
                  const struct nf_ranges *held, bool reclaim, int64_t deadline_ms);

/* Ends an owner: as nf_op_release(). */
int nf_range_drop(const struct nf_redis_opts *o, const struct nf_policy *p, const struct nf_request *q, int64_t deadline_ms,
                  struct nf_answer *a);

/* The call that renews an owner's lease. `ttl` and `grace` must live until it is sent. */
void nf_range_renew_call(struct nf_script_call *call, const struct nf_renewal *r, const char *ttl, const char *grace);

/* What an owner holds, for its keeper: 0, -ENOENT when Redis does not know it, or another -errno. */
int nf_range_list(const struct nf_redis_opts *o, const struct nf_names *names, const char *token, int64_t deadline_ms, uint64_t *seq,
                  struct nf_ranges *held);

#endif
