/*
 * shim/base/ranges.c: sets of byte ranges, by hand and against a plain array of bytes.
 */
#include "base/ranges.h"

#include "support/unit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define END NF_RANGE_END

static struct nf_ranges set;

static void put(uint64_t start, uint64_t end, char mode)
{
    assert_int_equal(nf_ranges_reserve(&set), 0);
    nf_ranges_set(&set, start, end, mode);
}

/* "x0-10 s20-end" */
static const char *shown(const struct nf_ranges *r)
{
    static char text[4096];
    size_t n = 0;
    text[0] = 0;
    for (size_t i = 0; i < r->n; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%c%" PRIu64 "-", i ? " " : "", r->v[i].mode, r->v[i].start);
        n += r->v[i].end == END ? (size_t)snprintf(text + n, sizeof text - n, "end")
                                : (size_t)snprintf(text + n, sizeof text - n, "%" PRIu64, r->v[i].end);
    }
    return text;
}

/* Carries out "x0-10 u3-5 s7-end" and shows what is held then. */
static const char *after(const char *steps)
{
    nf_ranges_clear(&set);
    for (const char *p = steps; *p; p += strspn(p, " ")) {
        char *end;
        char mode = *p == 'u' ? (char)0 : *p;
        uint64_t first = strtoull(p + 1, &end, 10);
        bool open = strncmp(end, "-end", 4) == 0;
        uint64_t last = open ? END : strtoull(end + 1, &end, 10);
        put(first, last, mode);
        p = open ? end + 4 : end;
    }
    return shown(&set);
}

TEST(ranges_split_merge_and_change_as_the_kernel_does_it)
{
    static const struct {
        const char *steps, *held;
    } rows[] = {
        {"", ""},
        {"x0-10", "x0-10"},
        /* nothing */
        {"x5-5", ""},
        {"x9-5", ""},
        {"x0-10 u5-5", "x0-10"},
        {"x0-10 s5-5", "x0-10"},
        {"u0-10", ""},
        /* merged */
        {"x0-10 x10-20", "x0-20"},
        {"x10-20 x0-10", "x0-20"},
        {"x0-10 x20-30 x10-20", "x0-30"},
        {"x0-10 x5-15", "x0-15"},
        {"x5-15 x0-10", "x0-15"},
        {"x0-10 x2-5", "x0-10"},
        {"x2-5 x0-10", "x0-10"},
        {"x0-10 x0-10", "x0-10"},
        {"x0-1 x2-3 x4-5 x6-7 x1-6", "x0-7"},
        /* apart */
        {"x0-10 x11-20", "x0-10 x11-20"},
        {"x11-20 x0-10", "x0-10 x11-20"},
        {"x0-10 s10-20", "x0-10 s10-20"},
        {"s10-20 x0-10", "x0-10 s10-20"},
        /* split */
        {"x0-10 u3-5", "x0-3 x5-10"},
        {"x0-10 u0-5", "x5-10"},
        {"x0-10 u5-10", "x0-5"},
        {"x0-10 u0-10", ""},
        {"x5-10 u0-20", ""},
        {"x0-10 x20-30 u5-25", "x0-5 x25-30"},
        {"x0-1 x2-3 x4-5 u0-100", ""},
        {"x0-10 u10-20", "x0-10"},
        {"x10-20 u0-10", "x10-20"},
        {"x0-10 x20-30 u10-20", "x0-10 x20-30"},
        /* up and down */
        {"s0-10 x0-10", "x0-10"},
        {"x0-10 s0-10", "s0-10"},
        {"s0-10 x3-5", "s0-3 x3-5 s5-10"},
        {"x0-10 s3-5", "x0-3 s3-5 x5-10"},
        {"s0-10 x3-5 s3-5", "s0-10"},
        {"s0-10 x0-5", "x0-5 s5-10"},
        {"s0-10 x5-10", "s0-5 x5-10"},
        {"s0-10 x5-15", "s0-5 x5-15"},
        {"s0-10 x20-30 s10-20", "s0-20 x20-30"},
        {"s0-10 x20-30 x10-20", "s0-10 x10-30"},
        {"s0-10 x10-20 s20-30 s10-20", "s0-30"},
        {"x0-10 s10-20 x20-30 s5-25", "x0-5 s5-25 x25-30"},
        /* to the end of the file, wherever that is */
        {"x0-end", "x0-end"},
        {"x5-end u10-end", "x5-10"},
        {"x5-end u0-10", "x10-end"},
        {"x5-end u10-20", "x5-10 x20-end"},
        {"x0-10 x10-end", "x0-end"},
        {"s0-end x9223372036854775807-end", "s0-9223372036854775807 x9223372036854775807-end"},
        {"x9223372036854775807-end u0-9223372036854775807", "x9223372036854775807-end"},
        {"x9223372036854775807-end u0-end", ""},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *held = after(rows[i].steps);
        expect(strcmp(held, rows[i].held) == 0, "%s leaves %s", rows[i].steps, held);
    }
    nf_ranges_clear(&set);
}

TEST(what_is_held_at_an_offset_and_how_far)
{
    uint64_t end;
    (void)after("x10-20 s20-30 x40-end");
    static const struct {
        uint64_t at;
        char mode;
        uint64_t end;
    } rows[] = {{0, 0, 10},    {9, 0, 10},  {10, 'x', 20}, {19, 'x', 20},  {20, 's', 30},
                {29, 's', 30}, {30, 0, 40}, {39, 0, 40},   {40, 'x', END}, {END - 1, 'x', END}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        char mode = nf_ranges_at(&set, rows[i].at, &end);
        expect(mode == rows[i].mode && end == rows[i].end, "at %" PRIu64 ": %d until %" PRIu64, rows[i].at, mode, end);
    }
    (void)after("x10-20");
    assert_int_equal(nf_ranges_at(&set, 20, &end), 0);
    assert_true(end == END);
    (void)after("");
    assert_int_equal(nf_ranges_at(&set, 5, &end), 0);
    assert_true(end == END);
}

TEST(a_range_is_covered_by_its_own_mode_or_a_stronger_one)
{
    static const struct {
        const char *held;
        uint64_t start, end;
        bool x, s;
    } rows[] = {
        {"x0-10", 0, 10, true, true},
        {"s0-10", 0, 10, false, true},
        {"x0-5 s5-10", 0, 10, false, true},
        {"x0-5 s5-10", 0, 5, true, true},
        {"x0-5 x6-10", 0, 10, false, false},
        {"x0-10", 0, 11, false, false},
        {"x1-10", 0, 10, false, false},
        {"x0-10", 3, 4, true, true},
        {"x0-10", 10, 11, false, false},
        {"", 0, 1, false, false},
        {"", 5, 5, true, true},
        {"x0-end", 0, END, true, true},
        {"x0-9223372036854775807", 0, END, false, false},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)after(rows[i].held);
        expect(nf_ranges_cover(&set, rows[i].start, rows[i].end, 'x') == rows[i].x, "%s, exclusive, row %zu", rows[i].held, i);
        expect(nf_ranges_cover(&set, rows[i].start, rows[i].end, 's') == rows[i].s, "%s, shared, row %zu", rows[i].held, i);
    }
    nf_ranges_clear(&set);
}

TEST(sets_are_equal_when_all_their_ranges_are)
{
    struct nf_ranges first = {0};
    static const char *const rows[] = {"", "x0-10", "s0-10", "x0-11", "x1-10", "x0-10 x20-30", "x0-10 s10-20"};
    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)after(rows[i]);
        first = set;
        set = (struct nf_ranges){0};
        for (size_t k = 0; k < COUNT(rows); k++) {
            (void)after(rows[k]);
            expect(nf_ranges_equal(&first, &set) == (i == k), "%s and %s", rows[i], rows[k]);
        }
        nf_ranges_clear(&first);
    }
    nf_ranges_clear(&set);
}

/* --- at random, against an array that has one cell for each byte --------------------------------------------------------------- */

#define CELLS 48

struct model {
    char cell[CELLS];
};

/* Cell i begins here: the last ones reach to the end of all files. */
static uint64_t offset(unsigned i, bool wide)
{
    return i == CELLS ? END : wide ? (END / CELLS) * i : i;
}

static void compare_at(const struct nf_ranges *r, const struct model *m, bool wide)
{
    for (unsigned i = 0; i < CELLS; i++) {
        uint64_t end;
        unsigned until = i;
        char mode = nf_ranges_at(r, offset(i, wide), &end);
        while (until < CELLS && m->cell[until] == m->cell[i])
            until++;
        expect(mode == m->cell[i] && end == offset(until, wide), "at %u in %s", i, shown(r));
    }
}

static void compare_questions(const struct nf_ranges *r, const struct model *m, bool wide)
{
    unsigned from = unit_below(CELLS);
    unsigned to = from + 1 + unit_below(CELLS - from);
    size_t x = 0;
    size_t s = 0;
    for (unsigned i = from; i < to; i++) {
        x += m->cell[i] == 'x';
        s += m->cell[i] == 's';
    }
    uint64_t a = offset(from, wide);
    uint64_t b = offset(to, wide);
    expect(nf_ranges_any(r, a, b, 'x') == (x > 0), "any x of %u to %u in %s", from, to, shown(r));
    expect(nf_ranges_any(r, a, b, 's') == (s > 0), "any s of %u to %u in %s", from, to, shown(r));
    expect(nf_ranges_any(r, a, b, 0) == (x + s < to - from), "any free of %u to %u in %s", from, to, shown(r));
    expect(nf_ranges_cover(r, a, b, 'x') == (x == to - from), "x covers %u to %u in %s", from, to, shown(r));
    expect(nf_ranges_cover(r, a, b, 's') == (x + s == to - from), "s covers %u to %u in %s", from, to, shown(r));
}

static void check_form(const struct nf_ranges *r)
{
    assert_true(r->n <= r->room);
    for (size_t i = 0; i < r->n; i++) {
        assert_true(r->v[i].start < r->v[i].end && r->v[i].end <= END);
        assert_true(r->v[i].mode == 'x' || r->v[i].mode == 's');
        if (i)
            expect(r->v[i - 1].end < r->v[i].start || (r->v[i - 1].end == r->v[i].start && r->v[i - 1].mode != r->v[i].mode),
                   "not in order, or not merged: %s", shown(r));
    }
}

/* All parts of `a` that `b` has nothing of, marked in an array again. */
static void compare_missing(const struct nf_ranges *a, const struct model *ma, const struct nf_ranges *b, const struct model *mb, bool wide)
{
    struct model found = {{0}};
    uint64_t end = 0;
    for (uint64_t start = 0; nf_ranges_missing(a, b, &start, &end); start = end) {
        expect(start < end, "an empty part of %s", shown(a));
        for (unsigned i = 0; i < CELLS; i++)
            if (offset(i, wide) >= start && offset(i, wide) < end)
                found.cell[i]++;
    }
    for (unsigned i = 0; i < CELLS; i++)
        expect(found.cell[i] == (ma->cell[i] && !mb->cell[i]), "cell %u of %s", i, shown(a));
}

static void at_random(bool wide)
{
    static const char modes[] = {'x', 's', 0};
    struct nf_ranges r[2] = {{0}, {0}};
    struct model m[2] = {{{0}}, {{0}}};
    for (int round = 0; round < 20000; round++) {
        unsigned which = unit_below(2);
        unsigned from = unit_below(CELLS);
        unsigned to = from + unit_below(unit_below(4) ? 6 : CELLS);
        to = to > CELLS ? CELLS : to;
        char mode = modes[unit_below(3)];
        assert_int_equal(nf_ranges_reserve(&r[which]), 0);
        nf_ranges_set(&r[which], offset(from, wide), offset(to, wide), mode);
        memset(m[which].cell + from, mode, to - from);
        check_form(&r[which]);
        compare_questions(&r[which], &m[which], wide);
        if (round % 8 == 0) {
            compare_at(&r[which], &m[which], wide);
            compare_missing(&r[0], &m[0], &r[1], &m[1], wide);
            assert_int_equal(nf_ranges_equal(&r[0], &r[1]), memcmp(&m[0], &m[1], sizeof m[0]) == 0);
        }
    }
    nf_ranges_clear(&r[0]);
    nf_ranges_clear(&r[1]);
}

TEST(twenty_thousand_changes_at_random_agree_with_a_plain_array)
{
    at_random(false);
}

TEST(and_so_they_do_where_ranges_reach_to_the_end_of_all_files)
{
    at_random(true);
}

TEST(a_cleared_set_can_be_used_again)
{
    (void)after("x0-10");
    nf_ranges_clear(&set);
    assert_true(set.n == 0 && set.room == 0 && !set.v);
    assert_string_equal(after("s1-2"), "s1-2");
    nf_ranges_clear(&set);
}

UNIT_MAIN(UNIT(ranges_split_merge_and_change_as_the_kernel_does_it), UNIT(what_is_held_at_an_offset_and_how_far),
          UNIT(a_range_is_covered_by_its_own_mode_or_a_stronger_one), UNIT(sets_are_equal_when_all_their_ranges_are),
          UNIT(twenty_thousand_changes_at_random_agree_with_a_plain_array), UNIT(and_so_they_do_where_ranges_reach_to_the_end_of_all_files),
          UNIT(a_cleared_set_can_be_used_again))
