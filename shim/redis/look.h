/*
 * A look at who has a file: what a program is told about a lock that it does not renew itself.
 */
#ifndef NF_REDIS_LOOK_H
#define NF_REDIS_LOOK_H

#include "redis/ops.h"

struct nf_look {
    enum {
        NF_LOOK_OURS,    /* a token of the identity has it: fence, left_ms */
        NF_LOOK_OTHER,   /* somebody else has it exclusively: holder */
        NF_LOOK_NOBODY,  /* neither: nobody, or readers of other hosts */
        NF_LOOK_DOWN,    /* no usable answer: why */
        NF_LOOK_REFUSED, /* asking again will not help: why */
    } result;
    int64_t sent_ms;          /* when the request was sent (CLOCK_BOOTTIME): left_ms counts from here */
    int64_t left_ms;          /* of the lease */
    char fence[NF_FENCE_MAX]; /* the file's last fencing token, "" if Redis has none */
    char holder[NF_TOKEN_MAX];
    char why[200];
};

/*
 * Does the identity, the first identity_len bytes of token, have the file? With `owner`, does token as an owner of byte
 * ranges? Signals blocked, as for all of ops.h.
 */
void nf_op_look(const struct nf_redis_opts *o, const struct nf_names *n, const char *token, int identity_len, bool owner,
                int64_t deadline_ms, struct nf_look *out);

#endif
