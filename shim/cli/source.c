/*
 * Asking Redis who holds and who waits, with commands that only read: a server that lets its users run no scripts,
 * and a replica, will answer them too.
 *
 * Keys come from SCAN, which does not hold the server up as KEYS would; each is then asked for by pipelined commands,
 * a batch at a time. Nothing in Redis is trusted: a value may be of any type and size, so strings are read by
 * GETRANGE and sets by ranges, what is sent back is bounded, and a batch with too big an answer is halved until the
 * one key is found that is to blame.
 */
#include "cli/cli.h"
#include "cli/people.h"
#include "cli/view.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "redis/conn.h"
#include "redis/ops.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCAN_COUNT "1000"
#define BATCH 128
#define ANSWER_BYTES_MAX (16 * 1024 * 1024)
#define PER_KEY 6 /* commands */

struct source {
    const struct nf_redis_opts *opts;
    struct nf_conn *conn;
};

static int connect_source(struct source *s, char *why, size_t why_size)
{
    int err = 0;
    if (!s->conn)
        s->conn = nf_conn_open(s->opts, nf_now_ms() + s->opts->timeout_ms, &err, why, why_size);
    if (!s->conn)
        return err;
    s->conn->reply_max = ANSWER_BYTES_MAX;
    return 0;
}

struct source *source_open(const struct nf_redis_opts *opts, char *why, size_t why_size)
{
    struct source *s = need(calloc(1, sizeof *s));
    s->opts = opts;
    if (connect_source(s, why, why_size) == 0)
        return s;
    free(s);
    return NULL;
}

void source_close(struct source *s)
{
    if (s)
        nf_conn_close(s->conn);
    free(s);
}

static void free_replies(redisReply **replies, size_t n)
{
    for (size_t i = 0; i < n; i++)
        freeReplyObject(replies[i]);
}

/* Sends n commands, reads n replies; all are set, or none. */
static int exchange(struct source *s, const struct nf_cmd *cmds, size_t n, redisReply **replies, char *why, size_t why_size)
{
    size_t got = 0;
    int r = connect_source(s, why, why_size);
    if (r < 0)
        return r;
    int64_t deadline = nf_now_ms() + s->opts->timeout_ms;
    r = nf_conn_send(s->conn, cmds, n, deadline);
    while (r == 0 && got < n) {
        r = nf_conn_reply(s->conn, deadline, &replies[got]);
        got += r == 0;
    }
    if (r == 0)
        return 0;
    free_replies(replies, got);
    nf_conn_close(s->conn);
    s->conn = NULL;
    (void)snprintf(why, why_size, "%s",
                   r == -ETIMEDOUT ? "no answer within the connect time-out"
                   : r == -EPROTO  ? "the peer does not speak Redis' protocol, or its answer is too long"
                                   : "the connection was closed");
    return r;
}

/* An error that is about the connection, our rights or the server's state, not about the type of one key. */
static bool refused(const redisReply *r, char *why, size_t why_size)
{
    if (r->type != REDIS_REPLY_ERROR || strncmp(r->str, "WRONGTYPE", 9) == 0)
        return false;
    (void)snprintf(why, why_size, "%s", r->str);
    return true;
}

/* One of the two scans that run side by side: keys that are locks, and keys that are queues. */
struct scan {
    const char *pattern;
    size_t before, after; /* bytes around the lock's key in what is found */
    bool queue;
    bool done;
    char cursor[24];
};

static int take_scan(struct scan *scan, const redisReply *r, struct view *v)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 2 || r->element[0]->type != REDIS_REPLY_STRING ||
        (size_t)r->element[0]->len >= sizeof scan->cursor || r->element[1]->type != REDIS_REPLY_ARRAY)
        return -EPROTO;
    memcpy(scan->cursor, r->element[0]->str, (size_t)r->element[0]->len + 1);
    scan->done = strcmp(scan->cursor, "0") == 0;
    const redisReply *found = r->element[1];
    for (size_t i = 0; i < (size_t)found->elements; i++) {
        const redisReply *key = found->element[i];
        if (key->type == REDIS_REPLY_STRING && (size_t)key->len >= scan->before + scan->after)
            view_add(v, key->str + scan->before, (size_t)key->len - scan->before - scan->after, scan->queue);
    }
    return 0;
}

int source_scan(struct source *s, struct view *v, char *why, size_t why_size)
{
    struct scan scans[] = {{.pattern = "lock:*", .cursor = "0"},
                           {.pattern = "netflock:{lock:*}:queue", .before = 10, .after = 7, .queue = true, .cursor = "0"}};
    int r = 0;
    while (r == 0 && !(scans[0].done && scans[1].done)) {
        struct nf_cmd cmds[2] = {{0}};
        redisReply *replies[2];
        struct scan *asked[2];
        size_t n = 0;
        for (size_t i = 0; i < 2; i++) {
            if (scans[i].done)
                continue;
            asked[n] = &scans[i];
            const char *const words[] = {"SCAN", scans[i].cursor, "MATCH", scans[i].pattern, "COUNT", SCAN_COUNT};
            for (size_t k = 0; k < sizeof words / sizeof words[0]; k++)
                nf_cmd_str(&cmds[n], words[k]);
            n++;
        }
        r = exchange(s, cmds, n, replies, why, why_size);
        if (r < 0)
            return r;
        for (size_t i = 0; i < n && r == 0; i++) {
            r = refused(replies[i], why, why_size) ? -EACCES : take_scan(asked[i], replies[i], v);
            if (r == -EPROTO)
                (void)snprintf(why, why_size, "it gave an answer of an unknown form to SCAN");
        }
        free_replies(replies, n);
    }
    view_sort(v);
    return r;
}

/* Appends one command of words. A word's length is that of its text unless it is the key, which may hold any byte. */
static void ask(struct nf_cmd *cmd, const char *verb, const char *key, size_t key_len, const char *const *rest)
{
    *cmd = (struct nf_cmd){0};
    nf_cmd_str(cmd, verb);
    nf_cmd_add(cmd, key, key_len);
    for (; rest && *rest; rest++)
        nf_cmd_str(cmd, *rest);
}

/*
 * The commands that tell all about one key. The order matters: the set is asked for before the string, so that a
 * lock that ends in between looks as if it had been gone all along (see people_fill).
 */
static size_t ask_all(struct nf_cmd *cmd, const struct nf_names *n, bool queue)
{
    static const char *const members[] = {"0", PEOPLE_LAST, "WITHSCORES", NULL};
    static const char *const value[] = {"0", TOKEN_LAST, NULL};
    static const char *const number[] = {"0", "23", NULL};
    ask(&cmd[0], "ZRANGE", n->key, n->key_len, members);
    ask(&cmd[1], "GETRANGE", n->key, n->key_len, value);
    ask(&cmd[2], "PTTL", n->key, n->key_len, NULL);
    ask(&cmd[3], "GETRANGE", n->fence, n->fence_len, number);
    if (!queue)
        return 4;
    ask(&cmd[4], "ZRANGE", n->queue, n->queue_len, members);
    ask(&cmd[5], "ZRANGE", n->alive, n->alive_len, members);
    return PER_KEY;
}

static int64_t server_time_us(const redisReply *r)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 2 || r->element[0]->type != REDIS_REPLY_STRING ||
        r->element[1]->type != REDIS_REPLY_STRING)
        return nf_wall_ms() * 1000;
    return strtoll(r->element[0]->str, NULL, 10) % 1000000000000 * 1000000 + strtoll(r->element[1]->str, NULL, 10) % 1000000;
}

static int take_batch(struct lock *locks, size_t n, redisReply **replies, size_t n_replies, char *why, size_t why_size)
{
    /* TIME, the first, may be denied: then our own clock must do. */
    for (size_t i = 1; i < n_replies; i++)
        if (refused(replies[i], why, why_size))
            return -EACCES;
    int64_t now_us = server_time_us(replies[0]);
    redisReply **at = replies + 1;
    for (size_t i = 0; i < n; i++) {
        bool queue = locks[i].may_have_queue;
        struct answers a = {at[0], at[1], at[2], at[3], queue ? at[4] : NULL, queue ? at[5] : NULL};
        people_fill(&locks[i], &a, now_us);
        at += queue ? PER_KEY : 4;
    }
    return 0;
}

/* Asks about n keys in one exchange; if the answer is too long, about one half of them and then the other. */
static int fill_batch(struct source *s, struct lock *locks, size_t n, char *why, size_t why_size)
{
    struct nf_names *names[BATCH];
    struct nf_cmd *cmds = need(calloc(n * PER_KEY + 1, sizeof *cmds));
    redisReply **replies = need(calloc(n * PER_KEY + 1, sizeof(redisReply *)));
    size_t n_cmds = 1;
    nf_cmd_str(&cmds[0], "TIME");
    for (size_t i = 0; i < n; i++) {
        names[i] = need(nf_names_make(locks[i].key, locks[i].key_len));
        n_cmds += ask_all(&cmds[n_cmds], names[i], locks[i].may_have_queue);
    }
    int r = exchange(s, cmds, n_cmds, replies, why, why_size);
    if (r == 0) {
        r = take_batch(locks, n, replies, n_cmds, why, why_size);
        free_replies(replies, n_cmds);
    } else if (r == -EPROTO && n > 1) {
        r = fill_batch(s, locks, n / 2, why, why_size);
        if (r == 0)
            r = fill_batch(s, locks + n / 2, n - n / 2, why, why_size);
    } else if (r == -EPROTO) {
        locks[0].problem = "what Redis holds here is too big to be shown";
        r = 0;
    }
    for (size_t i = 0; i < n; i++)
        nf_free(names[i]);
    free(replies);
    free(cmds);
    return r;
}

int source_fill(struct source *s, struct view *v, char *why, size_t why_size)
{
    size_t kept = 0;
    for (size_t at = 0; at < v->n; at += BATCH) {
        int r = fill_batch(s, v->locks + at, v->n - at < BATCH ? v->n - at : BATCH, why, why_size);
        if (r < 0)
            return r;
    }
    for (size_t i = 0; i < v->n; i++) {
        if (v->locks[i].n_holders || v->locks[i].n_waiters || v->locks[i].problem)
            v->locks[kept++] = v->locks[i];
        else
            view_free_lock(&v->locks[i]);
    }
    v->n = kept;
    return 0;
}
