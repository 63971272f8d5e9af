/*
 * Reading holders and waiters out of replies: see people.h, and the scripts in shim/redis for what they mean.
 *
 * All times are by the server's clock, but one: when a shared tenure began stands only in its token, written by the
 * clock of its own host.
 */
#include "cli/people.h"

#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

bool answer_is_error(const redisReply *r)
{
    return r->type == REDIS_REPLY_ERROR;
}

static size_t n_pairs(const redisReply *array)
{
    return array && array->type == REDIS_REPLY_ARRAY ? (size_t)array->elements / 2 : 0;
}

/* The i-th pair; false if it is none of strings. */
static bool pair(const redisReply *array, size_t i, struct pair *out)
{
    *out = (struct pair){array->element[2 * i], array->element[2 * i + 1]};
    return out->key->type == REDIS_REPLY_STRING && out->value->type == REDIS_REPLY_STRING;
}

static int compare(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int r = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return r ? r : (a_len > b_len) - (a_len < b_len);
}

static int by_pair_key(const void *left, const void *right)
{
    const redisReply *a = ((const struct pair *)left)->key;
    const redisReply *b = ((const struct pair *)right)->key;
    return compare(a->str, (size_t)a->len, b->str, (size_t)b->len);
}

struct pairs pairs_read(const redisReply *array)
{
    size_t all = n_pairs(array);
    struct pairs p = {.v = need(calloc(all + 1, sizeof *p.v))};
    for (size_t i = 0; i < all; i++)
        p.n += pair(array, i, &p.v[p.n]);
    qsort(p.v, p.n, sizeof *p.v, by_pair_key);
    return p;
}

const redisReply *pairs_find(const struct pairs *p, const char *key, size_t len)
{
    size_t from = 0;
    size_t to = p->n;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        const redisReply *other = p->v[middle].key;
        int r = compare(key, len, other->str, (size_t)other->len);
        if (r == 0)
            return p->v[middle].value;
        if (r < 0)
            to = middle;
        else
            from = middle + 1;
    }
    return NULL;
}

int64_t whole_score(const redisReply *score, int64_t otherwise)
{
    double n = strtod(score->str, NULL);
    return n > -9e15 && n < 9e15 ? (int64_t)n : otherwise;
}

/* `ours` stays false for what another client has written. */
void who_set_token(struct who *w, const char *s, size_t len, char mode)
{
    len = len < NF_TOKEN_MAX ? len : NF_TOKEN_MAX;
    w->token = need(malloc(len + 1));
    memcpy(w->token, s, len);
    w->token[len] = 0;
    w->token_len = len;
    w->mode = mode;
    w->ours = !memchr(s, 0, len) && nf_token_parse(w->token, &w->info) == 0;
    w->age_ms = w->since_ms = w->left_ms = MS_UNKNOWN;
}

void who_set_since(struct who *w, int64_t since_ms, int64_t now_us)
{
    if (since_ms <= 0 || since_ms > 9000000000000000)
        return;
    int64_t age = now_us / 1000 - since_ms;
    w->since_ms = since_ms;
    w->age_ms = age < 0 ? 0 : age;
}

/* The fencing token, or 0. Redis gives "" when there is none. */
static uint64_t read_fence(const redisReply *r)
{
    char *end;
    if (r->type != REDIS_REPLY_STRING || r->len == 0 || r->len > 19 || r->str[0] < '1' || r->str[0] > '9')
        return 0;
    unsigned long long n = strtoull(r->str, &end, 10);
    return *end ? 0 : n;
}

/*
 * One exclusive holder. Its fencing token is the file's last one, and says when it was granted, in microseconds; but
 * another client's lock has none, and what the key holds then is that of some tenure before.
 */
static void fill_exclusive(struct lock *l, const struct answers *a, int64_t now_us)
{
    int64_t left = a->to[Q_PTTL]->type == REDIS_REPLY_INTEGER ? a->to[Q_PTTL]->integer : -1;
    if (left == -2)
        return; /* it ended between two of our questions */
    l->holders = need(calloc(1, sizeof *l->holders));
    l->n_holders = 1;
    struct who *w = l->holders;
    who_set_token(w, a->to[Q_STRING]->str, (size_t)a->to[Q_STRING]->len, 'x');
    w->left_ms = left < 0 ? MS_FOREVER : left;
    if (!w->ours)
        return;
    w->fence = read_fence(a->to[Q_FENCE]);
    if (w->fence)
        who_set_since(w, (int64_t)(w->fence / 1000), now_us);
    else
        who_set_since(w, w->info.start_ms, now_us);
}

/* Shared holders. A lease that has run out does not count any more, though nobody may have removed it yet. */
static void fill_shared(struct lock *l, const redisReply *set, int64_t now_us)
{
    size_t n = n_pairs(set);
    l->truncated |= n == PEOPLE_MAX;
    l->holders = need(calloc(n + 1, sizeof *l->holders));
    for (size_t i = 0; i < n; i++) {
        struct pair p;
        if (!pair(set, i, &p) || strtod(p.value->str, NULL) * 1000 <= (double)now_us)
            continue;
        struct who *w = &l->holders[l->n_holders++];
        who_set_token(w, p.key->str, (size_t)p.key->len, 's');
        int64_t until = whole_score(p.value, MS_FOREVER);
        w->left_ms = until == MS_FOREVER ? MS_FOREVER : until - now_us / 1000;
        if (w->ours)
            who_set_since(w, w->info.start_ms, now_us);
    }
}

/* How long the waiter's place is kept; one that has let that pass is skipped when its turn comes (grant.lua). */
static void set_alive(struct who *w, const redisReply *until_ms, int64_t now_us)
{
    int64_t left = until_ms ? whole_score(until_ms, 0) - now_us / 1000 : -1;
    w->dead = left < 0;
    w->left_ms = w->dead ? 0 : left;
}

/* A member's score is when it came, in microseconds. */
struct who *people_waiting(const redisReply *queue, const redisReply *alive, int64_t now_us,
                           void (*take_member)(struct who *w, const char *s, size_t len), size_t *n, bool *truncated)
{
    size_t all = n_pairs(queue);
    struct pairs until = pairs_read(alive);
    bool alive_known = !answer_is_error(alive) && until.n < PEOPLE_MAX;
    struct who *waiters = need(calloc(all + 1, sizeof *waiters));
    *truncated |= all == PEOPLE_MAX;
    *n = 0;
    for (size_t i = 0; i < all; i++) {
        struct pair p;
        if (!pair(queue, i, &p))
            continue;
        struct who *w = &waiters[(*n)++];
        take_member(w, p.key->str, (size_t)p.key->len);
        who_set_since(w, whole_score(p.value, 0) / 1000, now_us);
        if (alive_known)
            set_alive(w, pairs_find(&until, p.key->str, (size_t)p.key->len), now_us);
    }
    free(until.v);
    return waiters;
}

/* A member of the queue is "x:" or "s:" and the waiter's token. */
static void take_waiter(struct who *w, const char *s, size_t len)
{
    size_t skip = len >= 2 && (s[0] == 'x' || s[0] == 's') && s[1] == ':' ? 2 : 0;
    who_set_token(w, s + skip, len - skip, skip ? s[0] : 0);
}

static void fill_holders(struct lock *l, const struct answers *a, int64_t now_us)
{
    bool set = !answer_is_error(a->to[Q_SET]);
    bool string = !answer_is_error(a->to[Q_STRING]);
    /* Neither says WRONGTYPE only for a key that is not there: both gave an empty answer then. */
    if (string && !set && a->to[Q_STRING]->type == REDIS_REPLY_STRING)
        fill_exclusive(l, a, now_us);
    else if (set && !string)
        fill_shared(l, a->to[Q_SET], now_us);
    else if (!set)
        l->problem = "the key holds neither a string nor a sorted set: no lock";
}

void people_fill(struct lock *l, const struct answers *a, int64_t now_us)
{
    if (a->to[Q_SET])
        fill_holders(l, a, now_us);
    if (a->to[Q_QUEUE] && answer_is_error(a->to[Q_QUEUE]))
        l->problem = "its queue is no sorted set";
    else if (a->to[Q_QUEUE])
        l->waiters = people_waiting(a->to[Q_QUEUE], a->to[Q_ALIVE], now_us, take_waiter, &l->n_waiters, &l->truncated);
}
