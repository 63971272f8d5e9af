/*
 * EVALSHA first, EVAL on NOSCRIPT: see script.h.
 */
#include "redis/script.h"

#include "base/alloc.h"
#include "redis/pool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scripts.inc"

static void build(struct nf_cmd *cmd, const struct nf_script_call *call, const char *verb, const char *script, const char *n_keys)
{
    cmd->argc = 0;
    cmd->taking = call->taking;
    nf_cmd_str(cmd, verb);
    nf_cmd_str(cmd, script);
    nf_cmd_str(cmd, n_keys);
    for (int i = 0; i < call->args.argc; i++)
        nf_cmd_add(cmd, call->args.argv[i], call->args.len[i]);
}

/* The server has lost its scripts (restart, SCRIPT FLUSH): send the text, which also stores it. */
static int with_text(const struct nf_redis_opts *opts, const struct nf_script_call *call, const char *n_keys, redisReply **reply,
                     int64_t deadline_ms, char *why, size_t why_size)
{
    struct nf_cmd cmd;
    freeReplyObject(*reply);
    *reply = NULL;
    build(&cmd, call, "EVAL", call->script->text, n_keys);
    return nf_pool_exchange(opts, &cmd, 1, reply, deadline_ms, why, why_size);
}

static const char *const digits[] = {"0", "1", "2", "3", "4"};

void nf_script_post(const struct nf_redis_opts *opts, const struct nf_script_call *call)
{
    struct nf_cmd cmd;
    build(&cmd, call, "EVALSHA", call->script->sha1, digits[call->n_keys]);
    nf_pool_post(opts, &cmd);
}

int nf_script_run(const struct nf_redis_opts *opts, const struct nf_script_call *calls, size_t n, redisReply **replies, int64_t deadline_ms,
                  char *why, size_t why_size)
{
    struct nf_cmd one;
    struct nf_cmd *cmds = n == 1 ? &one : nf_calloc(n, sizeof *cmds);
    if (!cmds)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        build(&cmds[i], &calls[i], "EVALSHA", calls[i].script->sha1, digits[calls[i].n_keys]);
    int r = nf_pool_exchange(opts, cmds, n, replies, deadline_ms, why, why_size);
    if (cmds != &one)
        nf_free(cmds);
    for (size_t i = 0; r == 0 && i < n; i++) {
        if (replies[i]->type != REDIS_REPLY_ERROR || strncmp(replies[i]->str, "NOSCRIPT", 8) != 0)
            continue;
        r = with_text(opts, &calls[i], digits[calls[i].n_keys], &replies[i], deadline_ms, why, why_size);
        if (r < 0)
            for (size_t k = 0; k < n; k++) {
                freeReplyObject(replies[k]);
                replies[k] = NULL;
            }
    }
    return r;
}
