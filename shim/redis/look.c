/*
 * See look.h.
 */
#include "redis/look.h"

#include "base/clock.h"
#include "redis/reply.h"
#include "redis/script.h"

#include <bsd/string.h>
#include <errno.h>
#include <string.h>

static bool read_look(const redisReply *r, struct nf_look *out)
{
    const redisReply *code = nf_reply_element(r, 0, REDIS_REPLY_INTEGER);
    const redisReply *left = nf_reply_element(r, 1, REDIS_REPLY_INTEGER);
    const redisReply *fence = nf_reply_element(r, 2, REDIS_REPLY_STRING);
    const redisReply *holder = nf_reply_element(r, 3, REDIS_REPLY_STRING);
    if (!code || !left || !fence || !holder || (size_t)fence->len >= sizeof out->fence)
        return false;
    out->result = code->integer == 1 ? NF_LOOK_OURS : code->integer == 2 ? NF_LOOK_OTHER : NF_LOOK_NOBODY;
    out->left_ms = left->integer;
    nf_reply_copy(out->fence, sizeof out->fence, fence);
    nf_reply_copy(out->holder, sizeof out->holder, holder);
    return true;
}

static void fail(struct nf_look *out, enum nf_outcome outcome, const char *why)
{
    struct nf_answer a;
    nf_reply_error(&a, outcome, why);
    out->result = outcome == NF_REFUSED ? NF_LOOK_REFUSED : NF_LOOK_DOWN;
    (void)strlcpy(out->why, a.why, sizeof out->why);
}

/* A token's fifth field. Its bytes end at the next colon. */
static const char *nonce_of(const char *token, int identity_len, size_t *len)
{
    *len = strcspn(token + identity_len, ":");
    return token + identity_len;
}

void nf_op_look(const struct nf_redis_opts *o, const struct nf_names *n, const char *token, int identity_len, bool owner,
                int64_t deadline_ms, struct nf_look *out)
{
    struct nf_script_call call = {.script = &nf_script_look, .n_keys = 2};
    redisReply *reply = NULL;
    size_t nonce_len = 0;
    const char *nonce = nonce_of(token, identity_len, &nonce_len);
    *out = (struct nf_look){.sent_ms = nf_now_ms()};
    nf_cmd_add(&call.args, n->key, n->key_len);
    nf_cmd_add(&call.args, n->fence, n->fence_len);
    nf_cmd_add(&call.args, token, (size_t)identity_len);
    nf_cmd_add(&call.args, nonce, owner ? nonce_len : 0);
    int r = nf_script_run(o, &call, 1, &reply, deadline_ms, out->why, sizeof out->why);
    if (r < 0)
        out->result = r == -EACCES ? NF_LOOK_REFUSED : NF_LOOK_DOWN;
    else if (reply->type == REDIS_REPLY_ERROR)
        fail(out, nf_reply_outcome(reply->str), reply->str);
    else if (!read_look(reply, out))
        fail(out, NF_REFUSED, "Redis gave an answer of an unknown form");
    freeReplyObject(reply);
}
