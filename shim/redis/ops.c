/*
 * Scripts called, answers checked: see ops.h. Nothing in a reply is trusted: types and lengths first.
 */
#include "redis/ops.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/sigs.h"
#include "redis/pool.h"
#include "redis/ranges.h"
#include "redis/reply.h"
#include "redis/script.h"

#include <bsd/string.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nf_names *nf_names_make(const char *key, size_t len)
{
    static const char *const suffix[] = {"}:fence", "}:queue", "}:alive"};
    const size_t room = 10 + len + 8;
    struct nf_names *n = nf_malloc(sizeof *n + len + 1 + 3 * room);
    if (!n)
        return NULL;
    const char **field[] = {&n->fence, &n->queue, &n->alive};
    size_t *field_len[] = {&n->fence_len, &n->queue_len, &n->alive_len};
    char *p = n->text;
    memcpy(p, key, len);
    p[len] = 0;
    n->key = p;
    n->key_len = len;
    p += len + 1;
    for (int i = 0; i < 3; i++) {
        memcpy(p, "netflock:{", 10);
        memcpy(p + 10, key, len);
        memcpy(p + 10 + len, suffix[i], 8);
        *field[i] = p;
        *field_len[i] = 10 + len + 7;
        p += room;
    }
    return n;
}

static int grant_ms(const struct nf_policy *p)
{
    return p->ttl_ms < 1500 ? p->ttl_ms : 1500;
}

static void read_acquire(const redisReply *r, struct nf_answer *a)
{
    const redisReply *code = nf_reply_element(r, 0, REDIS_REPLY_INTEGER);
    const redisReply *fence = nf_reply_element(r, 1, REDIS_REPLY_STRING);
    const redisReply *grace = nf_reply_element(r, 1, REDIS_REPLY_INTEGER);
    const redisReply *holder = nf_reply_element(r, 2, REDIS_REPLY_STRING);
    const redisReply *left = nf_reply_element(r, 3, REDIS_REPLY_INTEGER);
    const redisReply *rank = nf_reply_element(r, 4, REDIS_REPLY_INTEGER);
    const redisReply *time = nf_reply_element(r, 5, REDIS_REPLY_INTEGER);
    const redisReply *unfetched = nf_reply_element(r, 6, REDIS_REPLY_INTEGER);
    if (code && code->integer == 1 && fence && (size_t)fence->len < sizeof a->fence) {
        a->outcome = NF_GRANTED;
        nf_reply_copy(a->fence, sizeof a->fence, fence);
    } else if (code && code->integer == -1 && grace) {
        a->outcome = NF_GRACE;
        a->left_ms = grace->integer;
    } else if (code && code->integer == 0 && fence && holder && left && rank && time && unfetched) {
        a->outcome = NF_BUSY;
        a->holder_mode = fence->len == 1 && fence->str[0] == 's' ? 's' : 'x';
        nf_reply_copy(a->holder, sizeof a->holder, holder);
        a->left_ms = left->integer;
        a->before_me = rank->integer;
        a->redis_ms = time->integer;
        a->unfetched_ms = unfetched->integer;
    } else {
        nf_reply_error(a, NF_REFUSED, "Redis gave an answer of an unknown form");
    }
}

void nf_op_acquire(const struct nf_config *c, const struct nf_request *q, int64_t deadline_ms, struct nf_answer *a)
{
    char ttl[16];
    char identity[16];
    char sleep[16];
    const struct nf_names *n = q->names;
    struct nf_script_call call = {.script = &nf_script_acquire, .n_keys = 4, .taking = true};
    (void)snprintf(ttl, sizeof ttl, "%d", c->policy.ttl_ms);
    (void)snprintf(sleep, sizeof sleep, "%d", q->wait ? q->sleep_ms : 0);
    (void)snprintf(identity, sizeof identity, "%d", q->identity_len);
    nf_cmd_add(&call.args, n->key, n->key_len);
    nf_cmd_add(&call.args, n->fence, n->fence_len);
    nf_cmd_add(&call.args, n->queue, n->queue_len);
    nf_cmd_add(&call.args, n->alive, n->alive_len);
    nf_cmd_str(&call.args, q->token);
    nf_cmd_str(&call.args, identity);
    nf_cmd_add(&call.args, &q->mode, 1);
    nf_cmd_str(&call.args, ttl);
    nf_cmd_str(&call.args, sleep);
    nf_cmd_str(&call.args, q->adopt);
    nf_cmd_str(&call.args, q->had ? "1" : "0");
    nf_cmd_str(&call.args, nf_arg_run);
    nf_cmd_str(&call.args, nf_grace_arg(&c->redis));
    redisReply *reply = NULL;
    a->sent_ms = nf_now_ms();
    int r = nf_script_run(&c->redis, &call, 1, &reply, deadline_ms, a->why, sizeof a->why);
    a->reached = !nf_reply_unsent(r);
    if (r < 0)
        a->outcome = r == -EACCES ? NF_REFUSED : NF_DOWN;
    else if (reply->type == REDIS_REPLY_ERROR)
        nf_reply_error(a, nf_reply_outcome(reply->str), reply->str);
    else
        read_acquire(reply, a);
    freeReplyObject(reply);
}

int nf_op_release(const struct nf_redis_opts *o, const struct nf_policy *p, const struct nf_request *q, int64_t deadline_ms,
                  struct nf_answer *a)
{
    char grant[16];
    const struct nf_names *n = q->names;
    if (nf_range_owner(q->mode))
        return nf_range_drop(o, p, q, deadline_ms, a);
    struct nf_script_call call = {.script = &nf_script_release, .n_keys = 4};
    (void)snprintf(grant, sizeof grant, "%d", grant_ms(p));
    nf_cmd_add(&call.args, n->key, n->key_len);
    nf_cmd_add(&call.args, n->fence, n->fence_len);
    nf_cmd_add(&call.args, n->queue, n->queue_len);
    nf_cmd_add(&call.args, n->alive, n->alive_len);
    nf_cmd_str(&call.args, q->token);
    nf_cmd_add(&call.args, &q->mode, 1);
    nf_cmd_str(&call.args, q->wait ? "1" : "0");
    nf_cmd_str(&call.args, grant);
    redisReply *reply = NULL;
    int r = nf_script_run(o, &call, 1, &reply, deadline_ms, a->why, sizeof a->why);
    if (r == 0 && reply->type == REDIS_REPLY_INTEGER) {
        r = (int)reply->integer & 1;
        if (reply->integer & 2) /* a waiter has it now: should it be dead, this finds it out */
            nf_script_post(o, &call);
    } else if (r == 0) {
        nf_reply_error(a, NF_DOWN, reply->type == REDIS_REPLY_ERROR ? reply->str : "Redis gave an answer of an unknown form");
        r = -EPROTO;
    }
    freeReplyObject(reply);
    return r;
}

static void read_renewal(const redisReply *r, struct nf_renewal *out)
{
    const redisReply *code = nf_reply_element(r, 0, REDIS_REPLY_INTEGER);
    const redisReply *holder = nf_reply_element(r, 1, REDIS_REPLY_STRING);
    if (!code)
        return;
    if (code->integer == 1) {
        out->result = NF_RENEWED;
    } else if (code->integer == 2) {
        out->result = NF_RECLAIMED;
    } else if (code->integer == 3) {
        out->result = NF_MISSING;
    } else if (code->integer == 0 && holder) {
        out->result = NF_GONE;
        nf_reply_copy(out->holder, sizeof out->holder, holder);
    }
}

/* NETFLOCK_GRACE as the scripts want it. */
const char *nf_grace_arg(const struct nf_redis_opts *o)
{
    return o->grace == NF_GRACE_OFF ? "0" : o->grace_arg;
}

/* A batch bounds what is in flight: neither side's socket buffer may fill while the other one writes. */
#define BATCH 64

static int renew_batch(const struct nf_redis_opts *o, const char *ttl, struct nf_renewal *r, size_t n, int64_t deadline_ms, char *why,
                       size_t why_size)
{
    struct nf_script_call calls[BATCH] = {0};
    char identity[BATCH][16];
    redisReply *replies[BATCH];
    for (size_t i = 0; i < n; i++) {
        if (nf_range_owner(r[i].mode)) {
            nf_range_renew_call(&calls[i], &r[i], ttl, nf_grace_arg(o));
            continue;
        }
        calls[i] = (struct nf_script_call){.script = &nf_script_renew, .n_keys = 2};
        nf_cmd_add(&calls[i].args, r[i].names->key, r[i].names->key_len);
        nf_cmd_add(&calls[i].args, r[i].names->fence, r[i].names->fence_len);
        nf_cmd_str(&calls[i].args, r[i].token);
        nf_cmd_add(&calls[i].args, &r[i].mode, 1);
        nf_cmd_str(&calls[i].args, ttl);
        nf_cmd_str(&calls[i].args, r[i].fence);
        (void)snprintf(identity[i], sizeof identity[i], "%d", r[i].identity_len);
        nf_cmd_str(&calls[i].args, identity[i]);
        nf_cmd_str(&calls[i].args, nf_arg_run);
        nf_cmd_str(&calls[i].args, nf_grace_arg(o));
        nf_cmd_str(&calls[i].args, r[i].late ? "1" : "0");
    }
    int err = nf_script_run(o, calls, n, replies, deadline_ms, why, why_size);
    for (size_t i = 0; err == 0 && i < n; i++) {
        if (replies[i]->type == REDIS_REPLY_ERROR)
            (void)strlcpy(why, replies[i]->str, why_size);
        read_renewal(replies[i], &r[i]);
        freeReplyObject(replies[i]);
    }
    for (size_t i = 0; err == 0 && i < n; i++)
        if (r[i].result == NF_UNKNOWN)
            err = -EPROTO;
    return err;
}

int nf_op_renew(const struct nf_redis_opts *o, const struct nf_policy *p, struct nf_renewal *r, size_t n, int64_t deadline_ms, char *why,
                size_t why_size)
{
    char ttl[16];
    int err = 0;
    (void)snprintf(ttl, sizeof ttl, "%d", p->ttl_ms);
    for (size_t i = 0; i < n; i++)
        r[i].result = NF_UNKNOWN;
    for (size_t at = 0; at < n; at += BATCH) {
        int e = renew_batch(o, ttl, r + at, n - at < BATCH ? n - at : BATCH, deadline_ms, why, why_size);
        if (e < 0)
            err = e;
        if (e < 0 && e != -EPROTO)
            break;
    }
    return err;
}

/* "FENCE TIME MS": a grant; "" or a single number (of a record lock's waiter): ask. */
static void read_grant(const redisReply *reply, struct nf_answer *a)
{
    const redisReply *message = nf_reply_element(reply, 1, REDIS_REPLY_STRING);
    char *end;
    a->told = message != NULL;
    a->grant_ms = 0;
    size_t n = message ? strcspn(message->str, " ") : 0;
    if (n == 0 || message->str[n] != ' ' || n >= sizeof a->fence || strspn(message->str, "0123456789") != n)
        return;
    int64_t at = strtoll(message->str + n + 1, &end, 10);
    int64_t ms = *end == ' ' ? strtoll(end + 1, &end, 10) : 0;
    if (*end || at <= 0 || ms <= 0 || ms > INT_MAX)
        return;
    memcpy(a->fence, message->str, n);
    a->fence[n] = 0;
    a->grant_at_ms = at;
    a->grant_ms = (int)ms;
}

int nf_op_wait(const struct nf_redis_opts *o, const struct nf_request *q, int ms, const sigset_t *mask, struct nf_answer *a)
{
    char seconds[24];
    struct nf_cmd pop = {0};
    redisReply *reply = NULL;
    bool reused;
    int err = 0;
    a->told = false;
    a->grant_ms = 0;
    const struct nf_names *n = q->names;
    size_t list_len = n->key_len + strlen(q->token) + 17;
    char *list = nf_malloc(list_len + 1);
    if (!list)
        return -ENOMEM;
    memcpy(list, "netflock:{", 10);
    memcpy(list + 10, n->key, n->key_len);
    (void)snprintf(list + 10 + n->key_len, list_len + 1 - 10 - n->key_len, "}:wait:%s", q->token);
    (void)snprintf(seconds, sizeof seconds, "%d.%03d", ms / 1000, ms % 1000);
    nf_cmd_str(&pop, "BLPOP");
    nf_cmd_add(&pop, list, list_len);
    nf_cmd_str(&pop, seconds);
    int64_t deadline = nf_now_ms() + o->timeout_ms;
    struct nf_conn *conn = nf_pool_take(o, deadline, &reused, &err, a->why, sizeof a->why);
    if (conn) {
        err = nf_conn_send(conn, &pop, 1, deadline);
        if (err == 0)
            err = nf_conn_wait_reply(conn, mask, &reply);
        if (err == 0 && reply->type == REDIS_REPLY_ERROR) {
            nf_reply_error(a, nf_reply_outcome(reply->str), reply->str);
            err = a->outcome == NF_REFUSED ? -EACCES : -EAGAIN;
        }
        if (err == 0)
            read_grant(reply, a);
        /* Given back before the grant is confirmed: that takes the same connection. */
        if (err == 0)
            nf_pool_put(conn);
        else
            nf_pool_drop(conn);
        if (err < 0 && !reply)
            (void)strlcpy(a->why, "the connection was closed", sizeof a->why);
    }
    freeReplyObject(reply);
    nf_free(list);
    return err;
}
