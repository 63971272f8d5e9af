/*
 * See ranges.h.
 */
#include "base/ranges.h"

#include "base/alloc.h"

#include <errno.h>
#include <string.h>

/* Setting one range cuts another in two at most: two more than before. */
int nf_ranges_reserve(struct nf_ranges *r)
{
    if (r->n + 2 <= r->room)
        return 0;
    size_t room = r->room ? 2 * r->room : 4;
    struct nf_range *v = nf_realloc(r->v, room * sizeof *v);
    if (!v)
        return -ENOMEM;
    r->v = v;
    r->room = room;
    return 0;
}

/* The first range that ends at `at` or later (n if there is none). */
static size_t first_ending(const struct nf_ranges *r, uint64_t at)
{
    size_t lo = 0;
    size_t hi = r->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (r->v[mid].end < at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

void nf_ranges_set(struct nf_ranges *r, uint64_t start, uint64_t end, char mode)
{
    struct nf_range new[3];
    size_t n_new = 0;
    size_t from = first_ending(r, start); /* it may only touch us: then it is merged, or kept */
    size_t to = from;
    struct nf_range mid = {start, end, mode};
    struct nf_range after = {0, 0, 0};
    if (start >= end)
        return;
    for (; to < r->n && r->v[to].start <= end; to++) {
        const struct nf_range *old = &r->v[to];
        if (old->mode == mode) {
            mid.start = old->start < mid.start ? old->start : mid.start;
            mid.end = old->end > mid.end ? old->end : mid.end;
            continue;
        }
        if (old->start < start)
            new[n_new++] = (struct nf_range){old->start, old->end < start ? old->end : start, old->mode};
        if (old->end > end)
            after = (struct nf_range){old->start > end ? old->start : end, old->end, old->mode};
    }
    if (mode)
        new[n_new++] = mid;
    if (after.mode)
        new[n_new++] = after;
    memmove(r->v + from + n_new, r->v + to, (r->n - to) * sizeof *r->v);
    memcpy(r->v + from, new, n_new * sizeof *new);
    r->n = r->n - (to - from) + n_new;
}

char nf_ranges_at(const struct nf_ranges *r, uint64_t at, uint64_t *end)
{
    size_t i = first_ending(r, at + 1);
    *end = NF_RANGE_END;
    if (i == r->n)
        return 0;
    bool inside = r->v[i].start <= at;
    *end = inside ? r->v[i].end : r->v[i].start;
    return inside ? r->v[i].mode : 0;
}

bool nf_ranges_cover(const struct nf_ranges *r, uint64_t start, uint64_t end, char mode)
{
    while (start < end) {
        char m = nf_ranges_at(r, start, &start);
        if (m != 'x' && m != mode)
            return false;
    }
    return true;
}

bool nf_ranges_any(const struct nf_ranges *r, uint64_t start, uint64_t end, char mode)
{
    while (start < end)
        if (nf_ranges_at(r, start, &start) == mode)
            return true;
    return false;
}

bool nf_ranges_missing(const struct nf_ranges *r, const struct nf_ranges *by, uint64_t *start, uint64_t *end)
{
    uint64_t here;
    uint64_t there;
    for (uint64_t at = *start; at < NF_RANGE_END; at = here < there ? here : there) {
        char want = nf_ranges_at(r, at, &here);
        char have = nf_ranges_at(by, at, &there);
        if (want && !have) {
            *start = at;
            *end = here < there ? here : there;
            return true;
        }
    }
    return false;
}

bool nf_ranges_equal(const struct nf_ranges *a, const struct nf_ranges *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (a->v[i].start != b->v[i].start || a->v[i].end != b->v[i].end || a->v[i].mode != b->v[i].mode)
            return false;
    return true;
}

void nf_ranges_clear(struct nf_ranges *r)
{
    nf_free(r->v);
    *r = (struct nf_ranges){0};
}
