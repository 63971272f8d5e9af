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

#include "base/clock.h"
#include "redis/conn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCAN_COUNT "1000"
#define BATCH 128
#define ANSWER_BYTES_MAX (16 * 1024 * 1024)
#define LEAD "netflock:{" /* the names of all keys about a lock but the lock's own: LEAD, that one, and one of these: */
#define QUEUE "}:queue"
#define RANGES "}:ranges"
#define RQUEUE "}:rqueue"

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

/* One of the scans that run side by side, for one kind of key each. */
struct scan {
    const char *pattern, *lead, *end;
    unsigned ask; /* what there is then to be asked */
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
    size_t before = strlen(scan->lead);
    size_t around = before + strlen(scan->end);
    for (size_t i = 0; i < (size_t)found->elements; i++) {
        const redisReply *key = found->element[i];
        if (key->type == REDIS_REPLY_STRING && (size_t)key->len >= around)
            view_add(v, key->str + before, (size_t)key->len - around, scan->ask);
    }
    return 0;
}

int source_scan(struct source *s, struct view *v, char *why, size_t why_size)
{
    struct scan scans[] = {{"lock:*", "", "", ASK_LOCK, false, "0"},
                           {LEAD "lock:*" QUEUE, LEAD, QUEUE, ASK_LOCK | ASK_QUEUE, false, "0"},
                           {LEAD "lock:*" RANGES, LEAD, RANGES, ASK_RANGES, false, "0"},
                           {LEAD "lock:*" RQUEUE, LEAD, RQUEUE, ASK_RANGES | ASK_RQUEUE, false, "0"}};
    enum { SCANS = sizeof scans / sizeof scans[0] };
    int r = 0;
    while (r == 0) {
        struct nf_cmd cmds[SCANS] = {{0}};
        redisReply *replies[SCANS];
        struct scan *asked[SCANS];
        size_t n = 0;
        for (size_t i = 0; i < SCANS; i++) {
            if (scans[i].done)
                continue;
            asked[n] = &scans[i];
            const char *const words[] = {"SCAN", scans[i].cursor, "MATCH", scans[i].pattern, "COUNT", SCAN_COUNT};
            for (size_t k = 0; k < sizeof words / sizeof words[0]; k++)
                nf_cmd_str(&cmds[n], words[k]);
            n++;
        }
        if (n == 0)
            break;
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

/*
 * All that is asked about one file, of which a file's `ask` chooses. The order matters: the set is asked for before the
 * string, so that a lock that ends in between looks as if it had been gone all along (see people_fill). So are the owners
 * before the ranges, and the leases after them: an owner that comes or goes meanwhile is known by one of the two.
 */
static const struct {
    unsigned ask;
    const char *verb;
    const char *end; /* of the name; NULL: the lock's own key */
    const char *const rest[4];
} questions[QUESTIONS] = {
    [Q_SET] = {ASK_LOCK, "ZRANGE", NULL, {"0", PEOPLE_LAST, "WITHSCORES"}},
    [Q_STRING] = {ASK_LOCK, "GETRANGE", NULL, {"0", TOKEN_LAST}},
    [Q_PTTL] = {ASK_LOCK, "PTTL", NULL, {NULL}},
    [Q_FENCE] = {ASK_LOCK, "GETRANGE", "}:fence", {"0", "23"}},
    [Q_QUEUE] = {ASK_QUEUE, "ZRANGE", QUEUE, {"0", PEOPLE_LAST, "WITHSCORES"}},
    [Q_ALIVE] = {ASK_QUEUE, "ZRANGE", "}:alive", {"0", PEOPLE_LAST, "WITHSCORES"}},
    [Q_OWNERS] = {ASK_RANGES, "HSCAN", "}:owners", {"0", "COUNT", PEOPLE_COUNT}},
    [Q_RANGES] = {ASK_RANGES, "ZRANGE", RANGES, {"0", PEOPLE_LAST}},
    [Q_LEASES] = {ASK_RANGES, "ZRANGE", "}:leases", {"0", PEOPLE_LAST, "WITHSCORES"}},
    [Q_RQUEUE] = {ASK_RQUEUE, "ZRANGE", RQUEUE, {"0", PEOPLE_LAST, "WITHSCORES"}},
    [Q_RALIVE] = {ASK_RQUEUE, "ZRANGE", "}:ralive", {"0", PEOPLE_LAST, "WITHSCORES"}},
};

/* Room for all the names about a lock. */
static size_t names_size(const struct lock *l)
{
    return QUESTIONS * (l->key_len + sizeof LEAD + sizeof RANGES);
}

/* Writes LEAD KEY END at *at, which is moved on. Lengths count, as a key may hold any byte. */
static void add_name(struct nf_cmd *cmd, const struct lock *l, const char *end, char **at)
{
    char *name = *at;
    size_t lead_len = strlen(LEAD);
    size_t end_len = strlen(end);
    memcpy(name, LEAD, lead_len);
    memcpy(name + lead_len, l->key, l->key_len);
    memcpy(name + lead_len + l->key_len, end, end_len);
    *at += lead_len + l->key_len + end_len;
    nf_cmd_add(cmd, name, (size_t)(*at - name));
}

/* The commands about one file; their words lie in `names` and in the lock. Returns how many. */
static size_t ask_all(struct nf_cmd *cmds, const struct lock *l, char **names)
{
    size_t n = 0;
    for (size_t i = 0; i < QUESTIONS; i++) {
        if (!(l->ask & questions[i].ask))
            continue;
        struct nf_cmd *cmd = &cmds[n++];
        nf_cmd_str(cmd, questions[i].verb);
        if (questions[i].end)
            add_name(cmd, l, questions[i].end, names);
        else
            nf_cmd_add(cmd, l->key, l->key_len);
        for (const char *const *word = questions[i].rest; *word; word++)
            nf_cmd_str(cmd, *word);
    }
    return n;
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
        struct answers a = {{NULL}};
        for (size_t q = 0; q < QUESTIONS; q++)
            if (locks[i].ask & questions[q].ask)
                a.to[q] = *at++;
        people_fill(&locks[i], &a, now_us);
        records_fill(&locks[i], &a, now_us);
    }
    return 0;
}

/* Asks about n keys in one exchange; if the answer is too long, about one half of them and then the other. */
static int fill_batch(struct source *s, struct lock *locks, size_t n, char *why, size_t why_size)
{
    struct nf_cmd *cmds = need(calloc(n * QUESTIONS + 1, sizeof *cmds));
    redisReply **replies = need(calloc(n * QUESTIONS + 1, sizeof(redisReply *)));
    size_t n_cmds = 1;
    size_t size = 1;
    for (size_t i = 0; i < n; i++)
        size += names_size(&locks[i]);
    char *names = need(malloc(size));
    char *at = names;
    nf_cmd_str(&cmds[0], "TIME");
    for (size_t i = 0; i < n; i++)
        n_cmds += ask_all(&cmds[n_cmds], &locks[i], &at);
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
    free(names);
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
        const struct lock *l = &v->locks[i];
        if (l->n_holders || l->n_waiters || l->n_owners || l->n_range_waiters || l->problem)
            v->locks[kept++] = *l;
        else
            view_free_lock(&v->locks[i]);
    }
    v->n = kept;
    return 0;
}
