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

static bool is_error(const redisReply *r)
{
    return r->type == REDIS_REPLY_ERROR;
}

static size_t pairs(const redisReply *set)
{
    return set && set->type == REDIS_REPLY_ARRAY ? (size_t)set->elements / 2 : 0;
}

/* The i-th member and score of a ZRANGE ... WITHSCORES; false if they are not what they should be. */
static bool pair(const redisReply *set, size_t i, const redisReply **member, double *score)
{
    const redisReply *text = set->element[2 * i + 1];
    *member = set->element[2 * i];
    if ((*member)->type != REDIS_REPLY_STRING || text->type != REDIS_REPLY_STRING)
        return false;
    *score = strtod(text->str, NULL);
    return true;
}

/* A score as a whole number; what no clock can mean becomes `otherwise`. */
static int64_t whole(double score, int64_t otherwise)
{
    return score > -9e15 && score < 9e15 ? (int64_t)score : otherwise;
}

/* Takes a token apart. `ours` stays false for what another client has written. */
static void set_token(struct who *w, const char *s, size_t len, char mode)
{
    w->token = need(malloc(len + 1));
    memcpy(w->token, s, len);
    w->token[len] = 0;
    w->token_len = len;
    w->mode = mode;
    w->ours = !memchr(s, 0, len) && nf_token_parse(w->token, &w->info) == 0;
    w->age_ms = w->since_ms = w->left_ms = MS_UNKNOWN;
}

static void set_since(struct who *w, int64_t since_ms, int64_t now_us)
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
    int64_t left = a->pttl->type == REDIS_REPLY_INTEGER ? a->pttl->integer : -1;
    if (left == -2)
        return; /* it ended between two of our questions */
    l->holders = need(calloc(1, sizeof *l->holders));
    l->n_holders = 1;
    struct who *w = l->holders;
    set_token(w, a->string->str, (size_t)a->string->len, 'x');
    w->left_ms = left < 0 ? MS_FOREVER : left;
    if (!w->ours)
        return;
    w->fence = read_fence(a->fence);
    if (w->fence)
        set_since(w, (int64_t)(w->fence / 1000), now_us);
    else
        set_since(w, w->info.start_ms, now_us);
}

/* Shared holders. A lease that has run out does not count any more, though nobody may have removed it yet. */
static void fill_shared(struct lock *l, const redisReply *set, int64_t now_us)
{
    size_t n = pairs(set);
    l->truncated |= n == PEOPLE_MAX;
    l->holders = need(calloc(n + 1, sizeof *l->holders));
    for (size_t i = 0; i < n; i++) {
        const redisReply *member;
        double score;
        if (!pair(set, i, &member, &score) || score * 1000 <= (double)now_us)
            continue;
        struct who *w = &l->holders[l->n_holders++];
        set_token(w, member->str, (size_t)member->len, 's');
        int64_t until = whole(score, MS_FOREVER);
        w->left_ms = until == MS_FOREVER ? MS_FOREVER : until - now_us / 1000;
        if (w->ours)
            set_since(w, w->info.start_ms, now_us);
    }
}

/* Until when a waiter counts as alive. */
struct alive {
    const redisReply *member;
    double until_ms;
};

static int by_member(const void *left, const void *right)
{
    const redisReply *a = ((const struct alive *)left)->member;
    const redisReply *b = ((const struct alive *)right)->member;
    size_t len = (size_t)(a->len < b->len ? a->len : b->len);
    int r = memcmp(a->str, b->str, len);
    return r ? r : (a->len > b->len) - (a->len < b->len);
}

static struct alive *sort_alive(const redisReply *set, size_t *n)
{
    size_t all = pairs(set);
    struct alive *sorted = need(calloc(all + 1, sizeof *sorted));
    *n = 0;
    for (size_t i = 0; i < all; i++)
        *n += pair(set, i, &sorted[*n].member, &sorted[*n].until_ms);
    qsort(sorted, *n, sizeof *sorted, by_member);
    return sorted;
}

/* How long the waiter's place is kept; one that has let that pass is skipped when its turn comes (grant.lua). */
static void set_alive(struct who *w, const redisReply *member, const struct alive *alive, size_t n, int64_t now_us)
{
    const struct alive wanted = {.member = member};
    const struct alive *found = bsearch(&wanted, alive, n, sizeof *alive, by_member);
    int64_t left = found ? whole(found->until_ms, 0) - now_us / 1000 : -1;
    w->dead = left < 0;
    w->left_ms = w->dead ? 0 : left;
}

/* A member of the queue is "x:" or "s:" and the waiter's token; its score is when it came, in microseconds. */
static void fill_waiters(struct lock *l, const struct answers *a, int64_t now_us)
{
    size_t n = pairs(a->queue);
    size_t n_alive;
    struct alive *alive = sort_alive(a->alive, &n_alive);
    bool alive_known = !is_error(a->alive) && n_alive < PEOPLE_MAX;
    l->truncated |= n == PEOPLE_MAX;
    l->waiters = need(calloc(n + 1, sizeof *l->waiters));
    for (size_t i = 0; i < n; i++) {
        const redisReply *member;
        double score;
        if (!pair(a->queue, i, &member, &score))
            continue;
        struct who *w = &l->waiters[l->n_waiters++];
        size_t skip = member->len >= 2 && (member->str[0] == 'x' || member->str[0] == 's') && member->str[1] == ':' ? 2 : 0;
        set_token(w, member->str + skip, (size_t)member->len - skip, skip ? member->str[0] : 0);
        set_since(w, whole(score, 0) / 1000, now_us);
        if (alive_known)
            set_alive(w, member, alive, n_alive, now_us);
    }
    free(alive);
}

void people_fill(struct lock *l, const struct answers *a, int64_t now_us)
{
    bool set = !is_error(a->set);
    bool string = !is_error(a->string);
    /* Neither says WRONGTYPE only for a key that is not there: both gave an empty answer then. */
    if (string && !set && a->string->type == REDIS_REPLY_STRING)
        fill_exclusive(l, a, now_us);
    else if (set && !string)
        fill_shared(l, a->set, now_us);
    else if (!set)
        l->problem = "the key holds neither a string nor a sorted set: no lock";
    if (a->queue && is_error(a->queue))
        l->problem = "its queue is no sorted set";
    else if (a->queue)
        fill_waiters(l, a, now_us);
}
