/*
 * A set of byte ranges of a file, each shared or exclusive, as one owner of record locks has them: disjoint, in order,
 * neighbours of the same mode merged (as the kernel does it).
 *
 * Offsets run from 0 to NF_RANGE_END, which is not an offset itself: the end of a range is not part of it.
 */
#ifndef NF_BASE_RANGES_H
#define NF_BASE_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NF_RANGE_END (UINT64_C(1) << 63)

struct nf_range {
    uint64_t start, end;
    char mode; /* 'x' or 's' */
};

struct nf_ranges {
    struct nf_range *v;
    size_t n, room;
};

/* Makes sure that the next nf_ranges_set() finds room. -ENOMEM. */
int nf_ranges_reserve(struct nf_ranges *r);

/* [start, end) has this mode from now on; 0: none. Needs nf_ranges_reserve() before it. */
void nf_ranges_set(struct nf_ranges *r, uint64_t start, uint64_t end, char mode);

/* The mode at offset `at` ('x', 's', 0), and in *end where another begins (NF_RANGE_END at the latest). */
char nf_ranges_at(const struct nf_ranges *r, uint64_t at, uint64_t *end);

/* Is all of [start, end) held in this mode or a stronger one? */
bool nf_ranges_cover(const struct nf_ranges *r, uint64_t start, uint64_t end, char mode);

/* Is any part of [start, end) held in exactly this mode? */
bool nf_ranges_any(const struct nf_ranges *r, uint64_t start, uint64_t end, char mode);

/*
 * The first part of `r`, at or after *start, that is not held at all in `by`: true, and [*start, *end). To go on, call again
 * with *start = *end.
 */
bool nf_ranges_missing(const struct nf_ranges *r, const struct nf_ranges *by, uint64_t *start, uint64_t *end);

bool nf_ranges_equal(const struct nf_ranges *a, const struct nf_ranges *b);

void nf_ranges_clear(struct nf_ranges *r);

#endif
