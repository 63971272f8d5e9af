/*
 * Calling scripts: EVALSHA, and EVAL for those the server does not know (yet, or any more).
 */
#ifndef NF_REDIS_SCRIPT_H
#define NF_REDIS_SCRIPT_H

#include "redis/conn.h"

struct nf_script {
    const char *sha1;
    const char *text;
};

extern const struct nf_script nf_script_acquire, nf_script_release, nf_script_renew, nf_script_look;
extern const struct nf_script nf_script_range_set, nf_script_range_test, nf_script_range_sync, nf_script_range_renew, nf_script_range_list;

struct nf_script_call {
    const struct nf_script *script;
    int n_keys;
    bool taking;        /* as in struct nf_cmd */
    struct nf_cmd args; /* the keys, then the arguments */
};

/*
 * Runs n scripts, pipelined; replies[] are all set on success. Returns 0 (an error reply of a script is a reply), or
 * -errno with one clause in why.
 */
int nf_script_run(const struct nf_redis_opts *opts, const struct nf_script_call *calls, size_t n, redisReply **replies, int64_t deadline_ms,
                  char *why, size_t why_size);

/* Sends a script whose answer nobody waits for, and which may be lost; only over a connection that is there. */
void nf_script_post(const struct nf_redis_opts *opts, const struct nf_script_call *call);

#endif
