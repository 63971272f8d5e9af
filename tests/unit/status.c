/*
 * What `netflock status` makes of Redis' answers (shim/cli/people.c, records.c) and how it shows it (table.c, json.c): anybody
 * may have written what lies there.
 */
#include "cli/people.h"

#include "base/ranges.h"

#include "support/unit.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOW_US INT64_C(1700000000000000)
#define NOW_MS (NOW_US / 1000)
#define TOKEN "nf1:b:1:2:n:web-1:7:backup:1699999990000"
#define SEG0 "0000000000000000"
#define SEG1 "0000000000000010"
#define SEG2 "0000000000000020"

static struct lock l;

static void forget(void)
{
    view_free_lock(&l);
    l = (struct lock){0};
}

/* A lock with a string, as Redis answers about it; each may be replaced. */
static struct answers exclusive(const char *value)
{
    return (struct answers){.to = {[Q_SET] = unit_reply("-WRONGTYPE x"),
                                   [Q_STRING] = unit_reply(value),
                                   [Q_PTTL] = unit_reply("20000"),
                                   [Q_FENCE] = unit_reply("'1699999995000000'")}};
}

static struct answers shared(const char *set)
{
    return (struct answers){.to = {[Q_SET] = unit_reply(set),
                                   [Q_STRING] = unit_reply("-WRONGTYPE x"),
                                   [Q_PTTL] = unit_reply("20000"),
                                   [Q_FENCE] = unit_reply("''")}};
}

static struct answers records(const char *table, const char *owners, const char *leases)
{
    return (struct answers){.to = {[Q_RANGES] = unit_reply(table), [Q_OWNERS] = unit_reply(owners), [Q_LEASES] = unit_reply(leases)}};
}

static char *printed(void (*show)(const struct view *v), const struct view *v)
{
    int fd = memfd_create("out", MFD_CLOEXEC);
    (void)fflush(stdout);
    int out = dup(1);
    assert_true(fd >= 0 && out >= 0 && dup2(fd, 1) == 1);
    show(v);
    (void)fflush(stdout);
    off_t n = lseek(fd, 0, SEEK_END);
    char *text = unit_fill((size_t)n, 0);
    assert_true(dup2(out, 1) == 1 && pread(fd, text, (size_t)n, 0) == n);
    (void)close(out);
    (void)close(fd);
    assert_int_equal(strlen(text), n);
    return text;
}

/* No byte may reach a terminal that it would obey. JSON is for programs: there, UTF-8 stays what it is. */
static void check_shown(const struct view *v)
{
    for (const char *p = printed(show_table, v); *p; p++)
        expect(*p == '\n' || (*p >= ' ' && *p < 0x7f), "byte %d is in the table", (unsigned char)*p);
    for (const char *p = printed(show_json, v); *p; p++)
        expect(*p == '\n' || ((unsigned char)*p >= ' ' && *p != 0x7f), "byte %d is in the JSON", (unsigned char)*p);
}

TEST(an_exclusive_holder_is_shown_with_its_lease_and_fencing_token)
{
    struct answers a = exclusive("'" TOKEN "'");
    people_fill(&l, &a, NOW_US);
    assert_int_equal(l.n_holders, 1);
    const struct who *w = l.holders;
    assert_true(w->ours && w->mode == 'x' && w->info.pid == 7 && w->left_ms == 20000);
    assert_string_equal(w->info.host, "web-1");
    assert_string_equal(w->info.command, "backup");
    assert_true(w->fence == 1699999995000000 && w->since_ms == 1699999995000 && w->age_ms == 5000);
    forget();
}

TEST(a_holder_of_another_program_is_shown_as_what_it_is)
{
    struct answers a = exclusive("'8f14e45f'");
    people_fill(&l, &a, NOW_US);
    assert_int_equal(l.n_holders, 1);
    assert_true(!l.holders->ours && l.holders->fence == 0 && l.holders->age_ms == MS_UNKNOWN);
    forget();
    a = exclusive("'" TOKEN "'");
    a.to[Q_PTTL] = unit_reply("-1");
    people_fill(&l, &a, NOW_US);
    assert_true(l.holders->left_ms == MS_FOREVER);
    forget();
    a.to[Q_PTTL] = unit_reply("-2"); /* it ended between two questions */
    people_fill(&l, &a, NOW_US);
    assert_int_equal(l.n_holders, 0);
    forget();
}

TEST(a_fencing_token_that_is_none_is_not_shown)
{
    static const char *const rows[] = {"''", "'0'", "'01'", "'-1'", "'1x'", "' 1'", "'99999999999999999999'", "nil", "7", "[ ]", "+OK"};
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct answers a = exclusive("'" TOKEN "'");
        a.to[Q_FENCE] = unit_reply(rows[i]);
        people_fill(&l, &a, NOW_US);
        expect(l.n_holders == 1 && l.holders->fence == 0, "%s", rows[i]);
        expect(l.holders->since_ms == 1699999990000, "%s: not since the token's own time", rows[i]);
        forget();
    }
}

TEST(shared_holders_are_those_whose_lease_has_not_run_out)
{
    struct answers a = shared("[ '" TOKEN "' '1700000005000' 'gone' '1699999999999' 'edge' '1700000000000' 'other' '1700000000001'"
                              " 'for ever' 'inf' ]");
    people_fill(&l, &a, NOW_US);
    assert_int_equal(l.n_holders, 3);
    assert_true(l.holders[0].ours && l.holders[0].mode == 's' && l.holders[0].left_ms == 5000 && l.holders[0].age_ms == 10000);
    assert_true(!l.holders[1].ours && l.holders[1].left_ms == 1);
    assert_true(l.holders[2].left_ms == MS_FOREVER);
    forget();
}

TEST(waiters_keep_their_order_and_the_dead_are_marked)
{
    struct answers a = {.to = {[Q_QUEUE] = unit_reply("[ 'x:" TOKEN "' '1699999999000000' 's:b' '1699999999500000' 'odd' 'nonsense' ]"),
                               [Q_ALIVE] = unit_reply("[ 's:b' '1699999999999' 'x:" TOKEN "' '1700000002000' ]")}};
    people_fill(&l, &a, NOW_US);
    assert_int_equal(l.n_waiters, 3);
    assert_true(l.waiters[0].ours && l.waiters[0].mode == 'x' && !l.waiters[0].dead && l.waiters[0].left_ms == 2000);
    assert_true(l.waiters[0].age_ms == 1000);
    assert_true(l.waiters[1].mode == 's' && l.waiters[1].dead && l.waiters[1].left_ms == 0);
    assert_true(l.waiters[2].mode == 0 && l.waiters[2].dead && l.waiters[2].age_ms == MS_UNKNOWN);
    assert_string_equal(l.waiters[1].token, "b");
    forget();
}

TEST(a_key_of_another_type_is_a_problem_and_no_lock)
{
    struct answers a = exclusive("-WRONGTYPE x");
    people_fill(&l, &a, NOW_US);
    assert_int_equal(l.n_holders, 0);
    assert_non_null(l.problem);
    forget();
    a = (struct answers){.to = {[Q_QUEUE] = unit_reply("-WRONGTYPE x"), [Q_ALIVE] = unit_reply("-WRONGTYPE x")}};
    people_fill(&l, &a, NOW_US);
    assert_non_null(l.problem);
    forget();
}

TEST(pieces_of_record_locks_are_put_together_for_each_owner)
{
    struct answers a = records("[ '" SEG0 SEG1 "xp1,so2' '" SEG1 SEG2 "xp1' '" SEG2 "8000000000000000so2,so~3' ]",
                               "[ '0' [ 'p1' '7 " TOKEN "' ] ]", "[ 'p1' '1700000005000' 'o2' 'inf' 'o~3' '1700000000001' ]");
    records_fill(&l, &a, NOW_US);
    assert_null(l.problem);
    assert_int_equal(l.n_owners, 4);
    const struct who *w = l.owners;
    assert_true(w[0].start == 0 && w[0].end == 0x10 && w[0].owner == 'o' && w[0].mode == 's' && !w[0].ours);
    assert_true(w[1].start == 0 && w[1].end == 0x20 && w[1].owner == 'p' && w[1].mode == 'x' && w[1].ours && w[1].left_ms == 5000);
    assert_true(w[2].start == 0x20 && w[2].end == NF_RANGE_END && !w[2].unconfirmed && w[2].left_ms == MS_FOREVER);
    assert_true(w[3].unconfirmed && w[3].left_ms == 1);
    forget();
}

TEST(an_owner_whose_lease_has_run_out_is_not_shown)
{
    struct answers a = records("[ '" SEG0 SEG1 "xp1,xp2' ]", "[ '0' [ ] ]", "[ 'p1' '1699999999999' ]");
    records_fill(&l, &a, NOW_US);
    assert_int_equal(l.n_owners, 1); /* of the other there is no lease at all: the scripts keep others out */
    assert_string_equal(l.owners->token, "p2");
    assert_true(l.owners->left_ms == MS_UNKNOWN);
    forget();
}

TEST(a_table_of_ranges_that_is_odd_is_a_problem)
{
    static const char *const rows[] = {
        "[ '' ]",
        "[ 'x' ]",
        "[ '" SEG0 SEG1 "' ]",
        "[ '" SEG1 SEG0 "xp1' ]",
        "[ '" SEG0 SEG0 "xp1' ]",
        "[ '" SEG0 "800000000000000fxp1' ]",
        "[ '" SEG0 "00000000000000GGxp1' ]",
        "[ '" SEG0 SEG1 "x' ]",
        "[ '" SEG0 SEG1 "p1' ]",
        "[ '" SEG0 SEG1 "xp1,' ]",
        "[ '" SEG0 SEG1 "xp1,,sp2' ]",
        "[ '" SEG0 SEG1 ",xp1' ]",
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct answers a = records(rows[i], "[ '0' [ ] ]", "[ ]");
        records_fill(&l, &a, NOW_US);
        bool harmless = i == 9; /* a comma at the end alone */
        expect(l.problem || harmless, "%s", rows[i]);
        forget();
    }
}

/* Whatever is of the wrong type, in each place: nothing is read that is not there. */
TEST(answers_of_any_type_in_any_place_do_no_harm)
{
    static const char *const odd[] = {"7",
                                      "''",
                                      "'x'",
                                      "nil",
                                      "+OK",
                                      "-ERR x",
                                      "[ ]",
                                      "[nil]",
                                      "[ 1 ]",
                                      "[ 'x' ]",
                                      "[ 'x' 1 ]",
                                      "[ nil nil ]",
                                      "[ [ ] [ ] ]",
                                      "[ 'x' 'y' ]",
                                      "[ 'x' 'y' 'z' ]",
                                      "[ '0' [ 'x' ] ]",
                                      "[ '0' [ 'x' 'y' 'z' ] ]",
                                      "[ 1 [ 'x' ] ]",
                                      ("[ '" SEG0 SEG1 "xp1' ]")};
    for (int q = 0; q < QUESTIONS; q++)
        for (size_t i = 0; i < COUNT(odd); i++)
            for (size_t k = 0; k < COUNT(odd); k++) {
                struct answers a = {{0}};
                for (int other = 0; other < QUESTIONS; other++)
                    a.to[other] = unit_reply(other == q ? odd[i] : odd[k]);
                people_fill(&l, &a, NOW_US);
                records_fill(&l, &a, NOW_US);
                forget();
                unit_forget();
            }
}

TEST(a_hostile_name_or_value_is_shown_and_not_obeyed)
{
    static const char *const evil[] = {"\x1b[2J",
                                       "a\nb",
                                       "\xc2\x9b",
                                       "\xe2\x80\xae",
                                       "\xff\xfe",
                                       "\"",
                                       "\\",
                                       "\r",
                                       "\x7f",
                                       "",
                                       "\x01",
                                       "nf1:b:1:2:n:\x1b[31m:7:\n\t:1000",
                                       "nf1:b:1:2:n:\xff:-9:\x07:-1"};
    char reply[256];
    for (size_t i = 0; i < COUNT(evil); i++) {
        struct view v = {0};
        view_add(&v, evil[i], strlen(evil[i]), ASK_ALL);
        (void)snprintf(reply, sizeof reply, "'%s'", evil[i]);
        struct answers a = exclusive(reply);
        (void)snprintf(reply, sizeof reply, "[ '%s' '0' ]", evil[i]);
        a.to[Q_QUEUE] = unit_reply(reply);
        a.to[Q_ALIVE] = unit_reply("[ ]");
        (void)snprintf(reply, sizeof reply, "[ '" SEG0 SEG1 "xp%s' ]", evil[i]);
        a.to[Q_RANGES] = unit_reply(reply);
        (void)snprintf(reply, sizeof reply, "[ '0' [ 'p%s' '7 %s' ] ]", evil[i], evil[i]);
        a.to[Q_OWNERS] = unit_reply(reply);
        a.to[Q_LEASES] = unit_reply("[ ]");
        people_fill(v.locks, &a, NOW_US);
        records_fill(v.locks, &a, NOW_US);
        assert_true(v.locks->n_holders == 1 && v.locks->n_waiters == 1 && v.locks->n_owners == 1);
        check_shown(&v);
        view_free(&v);
    }
}

TEST(a_value_is_cut_where_a_token_would_end)
{
    char reply[1024];
    (void)snprintf(reply, sizeof reply, "'%s'", unit_fill(900, 'v'));
    struct answers a = exclusive(reply);
    people_fill(&l, &a, NOW_US);
    assert_int_equal(l.holders->token_len, 320);
    assert_int_equal(strlen(l.holders->token), 320);
    forget();
}

TEST(keys_are_listed_in_order_and_each_once)
{
    struct view v = {0};
    static const char *const keys[] = {"b", "a", "b", "", "ab", "a", "\xff", "B"};
    for (size_t i = 0; i < COUNT(keys); i++)
        view_add(&v, keys[i], strlen(keys[i]), i == 1 ? ASK_LOCK : ASK_QUEUE);
    view_sort(&v);
    static const char *const sorted[] = {"", "B", "a", "ab", "b", "\xff"};
    assert_int_equal(v.n, COUNT(sorted));
    for (size_t i = 0; i < v.n; i++)
        assert_string_equal(v.locks[i].key, sorted[i]);
    assert_int_equal(v.locks[2].ask, ASK_LOCK | ASK_QUEUE);
    view_free(&v);
}

TEST(scores_that_are_no_times_are_told_from_those_that_are)
{
    static const struct {
        const char *score;
        int64_t is;
    } rows[] = {{"'1700000000000'", NOW_MS},
                {"'1.7e12'", NOW_MS},
                {"'-5.9'", -5},
                {"'inf'", 42},
                {"'-inf'", 42},
                {"'nan'", 42},
                {"'9e15'", 42},
                {"'x'", 0},
                {"''", 0}};
    for (size_t i = 0; i < COUNT(rows); i++)
        expect(whole_score(unit_reply(rows[i].score), 42) == rows[i].is, "%s", rows[i].score);
}

UNIT_MAIN(UNIT(an_exclusive_holder_is_shown_with_its_lease_and_fencing_token), UNIT(a_holder_of_another_program_is_shown_as_what_it_is),
          UNIT(a_fencing_token_that_is_none_is_not_shown), UNIT(shared_holders_are_those_whose_lease_has_not_run_out),
          UNIT(waiters_keep_their_order_and_the_dead_are_marked), UNIT(a_key_of_another_type_is_a_problem_and_no_lock),
          UNIT(pieces_of_record_locks_are_put_together_for_each_owner), UNIT(an_owner_whose_lease_has_run_out_is_not_shown),
          UNIT(a_table_of_ranges_that_is_odd_is_a_problem), UNIT(answers_of_any_type_in_any_place_do_no_harm),
          UNIT(a_hostile_name_or_value_is_shown_and_not_obeyed), UNIT(a_value_is_cut_where_a_token_would_end),
          UNIT(keys_are_listed_in_order_and_each_once), UNIT(scores_that_are_no_times_are_told_from_those_that_are))
