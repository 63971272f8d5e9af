/*
 * See ranges.h. Offsets travel as 16 hex digits.
 */
#include "redis/ranges.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "redis/reply.h"

#include <bsd/string.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEX 17 /* bytes of an offset's text, with its NUL */

static const char *hex(char buf[HEX], uint64_t n)
{
    (void)snprintf(buf, HEX, "%016" PRIx64, n);
    return buf;
}

/* 16 hex digits at s, which need not end there. False if they are not. */
static bool unhex(const char *s, uint64_t *out)
{
    char text[HEX];
    char *end;
    (void)strlcpy(text, s, sizeof text);
    *out = strtoull(text, &end, 16);
    return strlen(text) == HEX - 1 && !*end && *out <= NF_RANGE_END;
}

/* Fields i and i + 1 of a reply: a range. */
static bool read_range(const redisReply *r, size_t i, struct nf_range_answer *out)
{
    const redisReply *start = nf_reply_element(r, i, REDIS_REPLY_STRING);
    const redisReply *end = nf_reply_element(r, i + 1, REDIS_REPLY_STRING);
    return start && end && start->len == HEX - 1 && end->len == HEX - 1 && unhex(start->str, &out->start) && unhex(end->str, &out->end) &&
           out->start < out->end;
}

/* {code, mode, token, start, end, ...} */
static bool read_holder(const redisReply *r, struct nf_range_answer *out)
{
    const redisReply *mode = nf_reply_element(r, 1, REDIS_REPLY_STRING);
    const redisReply *token = nf_reply_element(r, 2, REDIS_REPLY_STRING);
    if (!mode || !token || mode->len != 1 || !read_range(r, 3, out))
        return false;
    out->a.holder_mode = mode->str[0] == 's' ? 's' : 'x';
    nf_reply_copy(out->a.holder, sizeof out->a.holder, token);
    return true;
}

static bool read_busy(const redisReply *r, struct nf_range_answer *out)
{
    const redisReply *left = nf_reply_element(r, 5, REDIS_REPLY_INTEGER);
    const redisReply *rank = nf_reply_element(r, 6, REDIS_REPLY_INTEGER);
    const redisReply *adopt = nf_reply_element(r, 7, REDIS_REPLY_STRING);
    if (!left || !rank || !adopt || (size_t)adopt->len >= sizeof out->adopt || !read_holder(r, out))
        return false;
    out->a.left_ms = left->integer;
    out->a.before_me = rank->integer;
    nf_reply_copy(out->adopt, sizeof out->adopt, adopt);
    return true;
}

static bool read_set(const redisReply *r, struct nf_range_answer *out)
{
    const redisReply *code = nf_reply_element(r, 0, REDIS_REPLY_INTEGER);
    const redisReply *fence = nf_reply_element(r, 1, REDIS_REPLY_STRING);
    const redisReply *left = nf_reply_element(r, 1, REDIS_REPLY_INTEGER);
    switch (code ? code->integer : -1) {
    case 0:
        out->result = NF_RANGE_BUSY;
        return read_busy(r, out);
    case 1:
        out->result = NF_RANGE_DONE;
        if (!fence || (size_t)fence->len >= sizeof out->a.fence)
            return false;
        nf_reply_copy(out->a.fence, sizeof out->a.fence, fence);
        return true;
    case 2:
        out->result = NF_RANGE_DEADLOCK;
        return true;
    case 3:
        out->result = NF_RANGE_STALE;
        return true;
    case 4:
        out->result = NF_RANGE_FORGOTTEN;
        return true;
    case 5:
        out->result = NF_RANGE_GRACE;
        out->a.left_ms = left ? left->integer : 0;
        return left != NULL;
    default:
        return false;
    }
}

static bool read_test(const redisReply *r, struct nf_range_answer *out)
{
    const redisReply *code = nf_reply_element(r, 0, REDIS_REPLY_INTEGER);
    out->result = code && code->integer == 1 ? NF_RANGE_BUSY : NF_RANGE_DONE;
    return code && (code->integer == 0 || (code->integer == 1 && read_holder(r, out)));
}

static void fail(struct nf_range_answer *out, enum nf_outcome outcome, const char *text)
{
    nf_reply_error(&out->a, outcome, text);
    out->result = outcome == NF_REFUSED ? NF_RANGE_REFUSED : NF_RANGE_DOWN;
}

static void run(const struct nf_config *c, const struct nf_script_call *call, int64_t deadline_ms,
                bool (*read)(const redisReply *r, struct nf_range_answer *out), struct nf_range_answer *out)
{
    redisReply *reply = NULL;
    out->a.why[0] = out->a.holder[0] = out->adopt[0] = 0;
    out->a.sent_ms = nf_now_ms();
    int r = nf_script_run(&c->redis, call, 1, &reply, deadline_ms, out->a.why, sizeof out->a.why);
    out->a.reached = !nf_reply_unsent(r);
    if (r < 0)
        out->result = r == -EACCES ? NF_RANGE_REFUSED : NF_RANGE_DOWN;
    else if (reply->type == REDIS_REPLY_ERROR)
        fail(out, nf_reply_outcome(reply->str), reply->str);
    else if (!read(reply, out))
        fail(out, NF_REFUSED, "Redis gave an answer of an unknown form");
    freeReplyObject(reply);
}

static struct nf_script_call call_for(const struct nf_script *script, const struct nf_names *names, const char *token)
{
    struct nf_script_call call = {.script = script, .n_keys = 1};
    nf_cmd_add(&call.args, names->key, names->key_len);
    nf_cmd_str(&call.args, token);
    return call;
}

void nf_range_set(const struct nf_config *c, const struct nf_range_request *q, int64_t deadline_ms, struct nf_range_answer *out)
{
    char ttl[16];
    char identity[16];
    char seq[24];
    char start[HEX];
    char end[HEX];
    const char step[2] = {(char)q->step, 0};
    struct nf_script_call call = call_for(&nf_script_range_set, q->names, q->token);
    call.taking = q->mode != 'u' && q->step != NF_STEP_CANCEL;
    (void)snprintf(ttl, sizeof ttl, "%d", c->policy.ttl_ms);
    (void)snprintf(identity, sizeof identity, "%d", q->identity_len);
    (void)snprintf(seq, sizeof seq, "%" PRIu64, q->seq);
    nf_cmd_str(&call.args, identity);
    nf_cmd_str(&call.args, seq);
    nf_cmd_add(&call.args, &q->mode, 1);
    nf_cmd_str(&call.args, hex(start, q->start));
    nf_cmd_str(&call.args, hex(end, q->end));
    nf_cmd_str(&call.args, ttl);
    nf_cmd_str(&call.args, step);
    nf_cmd_str(&call.args, q->ticket);
    nf_cmd_str(&call.args, q->adopt);
    nf_cmd_str(&call.args, q->holds ? "1" : "0");
    nf_cmd_str(&call.args, nf_arg_run);
    nf_cmd_str(&call.args, nf_grace_arg(&c->redis));
    run(c, &call, deadline_ms, read_set, out);
}

void nf_range_test(const struct nf_config *c, const struct nf_range_request *q, int64_t deadline_ms, struct nf_range_answer *out)
{
    char identity[16];
    char start[HEX];
    char end[HEX];
    struct nf_script_call call = call_for(&nf_script_range_test, q->names, q->token);
    (void)snprintf(identity, sizeof identity, "%d", q->identity_len);
    nf_cmd_str(&call.args, identity);
    nf_cmd_add(&call.args, &q->mode, 1);
    nf_cmd_str(&call.args, hex(start, q->start));
    nf_cmd_str(&call.args, hex(end, q->end));
    run(c, &call, deadline_ms, read_test, out);
}

#define TEXT_BYTES 36 /* "x START END " */

int nf_range_sync(const struct nf_redis_opts *o, const struct nf_policy *pol, const struct nf_names *names, const char *token, uint64_t seq,
                  const struct nf_ranges *held, bool reclaim, int64_t deadline_ms)
{
    char ttl[16];
    char number[24];
    char why[200];
    redisReply *reply = NULL;
    struct nf_script_call call = call_for(&nf_script_range_sync, names, token);
    char *text = nf_malloc(held->n * TEXT_BYTES + 1);
    if (!text)
        return -ENOMEM;
    char *p = text;
    *p = 0;
    for (size_t i = 0; i < held->n; i++)
        p += snprintf(p, TEXT_BYTES + 1, "%c %016" PRIx64 " %016" PRIx64 " ", held->v[i].mode, held->v[i].start, held->v[i].end);
    (void)snprintf(ttl, sizeof ttl, "%d", pol->ttl_ms);
    (void)snprintf(number, sizeof number, "%" PRIu64, seq);
    nf_cmd_str(&call.args, number);
    nf_cmd_str(&call.args, ttl);
    nf_cmd_str(&call.args, text);
    nf_cmd_str(&call.args, nf_arg_run);
    nf_cmd_str(&call.args, nf_grace_arg(o));
    nf_cmd_str(&call.args, reclaim ? "1" : "0");
    int r = nf_script_run(o, &call, 1, &reply, deadline_ms, why, sizeof why);
    if (r == 0 && reply->type != REDIS_REPLY_INTEGER)
        r = -EPROTO;
    if (r == 0 && reclaim && reply->integer != 1)
        r = -ENOENT;
    freeReplyObject(reply);
    nf_free(text);
    return r;
}

int nf_range_drop(const struct nf_redis_opts *o, const struct nf_policy *p, const struct nf_request *q, int64_t deadline_ms,
                  struct nf_answer *a)
{
    /* The largest seq: the owner's id is never used again. */
    const struct nf_config c = {.redis = *o, .policy = *p};
    const struct nf_range_request drop = {
        .names = q->names, .token = q->token, .seq = UINT32_MAX, .mode = 'u', .end = NF_RANGE_END, .ticket = "", .adopt = ""};
    struct nf_range_answer *out = nf_calloc(1, sizeof *out);
    if (!out)
        return -ENOMEM;
    nf_range_set(&c, &drop, deadline_ms, out);
    *a = out->a;
    bool done = out->result == NF_RANGE_DONE;
    nf_free(out);
    return done ? 1 : -EPROTO;
}

void nf_range_renew_call(struct nf_script_call *call, const struct nf_renewal *r, const char *ttl, const char *grace)
{
    *call = call_for(&nf_script_range_renew, r->names, r->token);
    nf_cmd_str(&call->args, ttl);
    nf_cmd_str(&call->args, nf_arg_run);
    nf_cmd_str(&call->args, grace);
    nf_cmd_str(&call->args, r->late ? "1" : "0");
}

/* "MODE START END ..." from a reply. */
static int parse_list(const char *s, struct nf_ranges *held)
{
    uint64_t start;
    uint64_t end;
    size_t len = strlen(s);
    for (size_t at = 0; at < len; at += TEXT_BYTES) {
        const char *p = s + at;
        if (len - at < TEXT_BYTES - 1 || (p[0] != 'x' && p[0] != 's') || !unhex(p + 2, &start) || !unhex(p + 2 + HEX, &end) || start >= end)
            return -EPROTO;
        if (nf_ranges_reserve(held) < 0)
            return -ENOMEM;
        nf_ranges_set(held, start, end, p[0]);
    }
    return 0;
}

int nf_range_list(const struct nf_redis_opts *o, const struct nf_names *names, const char *token, int64_t deadline_ms, uint64_t *seq,
                  struct nf_ranges *held)
{
    char why[200];
    redisReply *reply = NULL;
    struct nf_script_call call = call_for(&nf_script_range_list, names, token);
    int r = nf_script_run(o, &call, 1, &reply, deadline_ms, why, sizeof why);
    const redisReply *number = r == 0 ? nf_reply_element(reply, 0, REDIS_REPLY_INTEGER) : NULL;
    const redisReply *list = r == 0 ? nf_reply_element(reply, 1, REDIS_REPLY_STRING) : NULL;
    if (r == 0)
        r = !number || !list ? -EPROTO : number->integer < 0 ? -ENOENT : parse_list(list->str, held);
    if (r == 0)
        *seq = (uint64_t)number->integer;
    freeReplyObject(reply);
    return r;
}
