/*
 * Record locks: who has which bytes of a file, and who waits for which. See shim/redis/ranges.lua for what lies in Redis,
 * where the file is cut into segments, each with all its owners; people want to know of an owner and its ranges.
 */
#include "cli/cli.h"
#include "cli/people.h"

#include "base/ranges.h"

#include <stdlib.h>
#include <string.h>

#define HEX 16

/* Pieces are put together to what is shown, so more of them are read; the answer's size alone would let in millions. */
#define PIECES_MAX ((size_t)16 * PEOPLE_MAX)

/* What an owner has of a segment, or of several that follow each other. */
struct piece {
    const char *id; /* in the answer: the owner's, not ended by NUL */
    size_t id_len;
    char mode;
    uint64_t start, end;
};

struct pieces {
    struct piece *v;
    size_t n, room;
};

static int by_owner(const void *left, const void *right)
{
    const struct piece *a = left;
    const struct piece *b = right;
    int r = memcmp(a->id, b->id, a->id_len < b->id_len ? a->id_len : b->id_len);
    if (r == 0)
        r = (a->id_len > b->id_len) - (a->id_len < b->id_len);
    if (r == 0)
        r = a->mode - b->mode;
    return r ? r : (a->start > b->start) - (a->start < b->start);
}

static int by_range(const void *left, const void *right)
{
    const struct piece *a = left;
    const struct piece *b = right;
    if (a->start != b->start)
        return a->start > b->start ? 1 : -1;
    if (a->end != b->end)
        return a->end > b->end ? 1 : -1;
    return by_owner(a, b);
}

static bool read_offset(const char *s, uint64_t *out)
{
    uint64_t n = 0;
    for (size_t i = 0; i < HEX; i++) {
        char c = s[i];
        if ((c < '0' || c > '9') && (c < 'a' || c > 'f'))
            return false;
        n = n << 4 | (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    *out = n;
    return n <= NF_RANGE_END;
}

/* START END at s, of len bytes, with something after it. */
static bool read_range(const char *s, size_t len, uint64_t *start, uint64_t *end)
{
    return len > 2 * HEX && read_offset(s, start) && read_offset(s + HEX, end) && *start < *end;
}

/* Adds one entry of a segment's HOLDERS. False if there are too many. */
static bool add_piece(struct pieces *p, struct piece piece)
{
    if (p->n == PIECES_MAX)
        return false;
    if (p->n == p->room) {
        p->room = p->room ? p->room * 2 : 64;
        p->v = need(reallocarray(p->v, p->room, sizeof *p->v));
    }
    p->v[p->n++] = piece;
    return true;
}

/* A member of the table is START END HOLDERS. */
static void take_segment(struct lock *l, struct pieces *p, const char *s, size_t len)
{
    uint64_t start;
    uint64_t end;
    bool odd = !read_range(s, len, &start, &end);
    size_t next;
    for (size_t at = 2 * HEX; !odd && at < len; at = next + 1) {
        const char *comma = memchr(s + at, ',', len - at);
        next = comma ? (size_t)(comma - s) : len;
        odd = next < at + 2 || (s[at] != 'x' && s[at] != 's');
        if (!odd && !add_piece(p, (struct piece){s + at + 1, next - at - 1, s[at], start, end})) {
            l->truncated = true;
            return;
        }
    }
    if (odd && !l->problem)
        l->problem = "its table of ranges has entries that are none";
}

/* Makes one piece of those of an owner that follow each other; then sorts them for people. */
static void put_together(struct pieces *p)
{
    size_t kept = 0;
    if (p->n == 0)
        return;
    qsort(p->v, p->n, sizeof *p->v, by_owner);
    for (size_t i = 1; i < p->n; i++) {
        struct piece *last = &p->v[kept];
        const struct piece *piece = &p->v[i];
        if (piece->id_len == last->id_len && memcmp(piece->id, last->id, last->id_len) == 0 && piece->mode == last->mode &&
            piece->start <= last->end)
            last->end = piece->end > last->end ? piece->end : last->end;
        else
            p->v[++kept] = *piece;
    }
    p->n = kept + 1;
    qsort(p->v, p->n, sizeof *p->v, by_range);
}

static char owner_of(char first)
{
    return first == 'p' || first == 'o' ? first : (char)0;
}

/* known: "SEQ TOKEN", or NULL: then all that is known of the owner is its id. */
static void set_owner(struct who *w, const struct piece *p, const redisReply *known, int64_t now_us)
{
    const char *blank = known ? memchr(known->str, ' ', (size_t)known->len) : NULL;
    if (blank)
        who_set_token(w, blank + 1, (size_t)known->len - (size_t)(blank + 1 - known->str), p->mode);
    else
        who_set_token(w, p->id, p->id_len, p->mode);
    if (w->ours)
        who_set_since(w, w->info.start_ms, now_us);
    w->ranged = true;
    w->start = p->start;
    w->end = p->end;
    w->owner = owner_of(p->id[0]);
    w->unconfirmed = memchr(p->id, '~', p->id_len) != NULL;
}

/*
 * An owner whose lease has run out does not count any more, though nobody may have removed it yet. One of which there is no
 * lease at all does count: the scripts refuse others what it has.
 */
static void fill_owners(struct lock *l, struct pieces *p, const struct answers *a, int64_t now_us)
{
    const redisReply *scan = a->to[Q_OWNERS];
    bool scanned = scan->type == REDIS_REPLY_ARRAY && scan->elements == 2;
    struct pairs owners = pairs_read(scanned ? scan->element[1] : NULL);
    struct pairs leases = pairs_read(a->to[Q_LEASES]);
    l->truncated |= scanned && (scan->element[0]->type != REDIS_REPLY_STRING || strcmp(scan->element[0]->str, "0") != 0);
    l->owners = need(calloc((p->n < PEOPLE_MAX ? p->n : PEOPLE_MAX) + 1, sizeof *l->owners));
    for (size_t i = 0; i < p->n; i++) {
        const redisReply *until = pairs_find(&leases, p->v[i].id, p->v[i].id_len);
        if (until && strtod(until->str, NULL) * 1000 <= (double)now_us)
            continue;
        if (l->n_owners == PEOPLE_MAX) {
            l->truncated = true;
            break;
        }
        struct who *w = &l->owners[l->n_owners++];
        set_owner(w, &p->v[i], pairs_find(&owners, p->v[i].id, p->v[i].id_len), now_us);
        int64_t until_ms = until ? whole_score(until, MS_FOREVER) : MS_UNKNOWN;
        w->left_ms = until_ms < 0 ? until_ms : until_ms - now_us / 1000;
    }
    free(owners.v);
    free(leases.v);
}

/* A member of the queue is MODE START END TOKEN, without anything between them. */
static void take_waiter(struct who *w, const char *s, size_t len)
{
    const size_t before = 1 + 2 * HEX;
    uint64_t start;
    uint64_t end;
    if (len < before || (s[0] != 'x' && s[0] != 's') || !read_range(s + 1, len - 1, &start, &end)) {
        who_set_token(w, s, len, 0);
        return;
    }
    who_set_token(w, s + before, len - before, s[0]);
    w->ranged = true;
    w->start = start;
    w->end = end;
    w->owner = w->ours ? owner_of(w->token[w->info.identity_len]) : (char)0;
}

static const char *wrong_type(const struct answers *a)
{
    const redisReply *const *to = a->to;
    return to[Q_RANGES] && answer_is_error(to[Q_RANGES])   ? "its table of ranges is no sorted set"
           : to[Q_OWNERS] && answer_is_error(to[Q_OWNERS]) ? "its table of owners is no hash"
           : to[Q_LEASES] && answer_is_error(to[Q_LEASES]) ? "its table of leases is no sorted set"
           : to[Q_RQUEUE] && answer_is_error(to[Q_RQUEUE]) ? "its queue for ranges is no sorted set"
                                                           : NULL;
}

void records_fill(struct lock *l, const struct answers *a, int64_t now_us)
{
    const redisReply *table = a->to[Q_RANGES];
    struct pieces p = {0};
    if (!l->problem)
        l->problem = wrong_type(a);
    if (table && table->type == REDIS_REPLY_ARRAY) {
        l->truncated |= (size_t)table->elements == PEOPLE_MAX;
        for (size_t i = 0; i < (size_t)table->elements; i++)
            if (table->element[i]->type == REDIS_REPLY_STRING)
                take_segment(l, &p, table->element[i]->str, (size_t)table->element[i]->len);
        put_together(&p);
        fill_owners(l, &p, a, now_us);
        free(p.v);
    }
    if (a->to[Q_RQUEUE] && !answer_is_error(a->to[Q_RQUEUE]))
        l->range_waiters = people_waiting(a->to[Q_RQUEUE], a->to[Q_RALIVE], now_us, take_waiter, &l->n_range_waiters, &l->truncated);
}
