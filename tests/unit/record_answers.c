/*
 * shim/redis/ranges.c: the answers to what is asked about record locks. As in answers.c, only a reply of exactly the
 * right form gives one.
 */
#include "redis/ranges.c"

#include "support/unit.h"

#define FROM "'0000000000000010'"
#define TO "'0000000000000020'"
#define BUSY "[ 0 's' 'the holder' " FROM " " TO " 1500 2 'p1 7' ]"

static struct nf_range_answer a;

static bool set(const char *reply)
{
    memset(&a, 0x5a, sizeof a);
    return read_set(unit_reply(reply), &a);
}

TEST(an_offset_is_sixteen_hex_digits)
{
    char text[HEX];
    uint64_t n;
    static const uint64_t offsets[] = {0, 1, 0xabcdef, INT64_MAX, NF_RANGE_END};
    for (size_t i = 0; i < COUNT(offsets); i++) {
        assert_true(unhex(hex(text, offsets[i]), &n));
        assert_true(n == offsets[i]);
    }
    assert_string_equal(hex(text, 0xAB), "00000000000000ab");
    assert_true(unhex("00000000000000ff and more", &n) && n == 255);
    static const char *const wrong[] = {"",
                                        "0",
                                        "000000000000000",
                                        "000000000000000g",
                                        "00000000 0000000",
                                        "8000000000000001",
                                        "ffffffffffffffff",
                                        "-000000000000001",
                                        "0000000000000.00"};
    for (size_t i = 0; i < COUNT(wrong); i++)
        expect(!unhex(wrong[i], &n), "%s", wrong[i]);
}

TEST(each_answer_to_a_request_is_understood)
{
    assert_true(set("[ 1 '42' ]"));
    assert_int_equal(a.result, NF_RANGE_DONE);
    assert_string_equal(a.a.fence, "42");
    assert_true(set("[ 2 ]"));
    assert_int_equal(a.result, NF_RANGE_DEADLOCK);
    assert_true(set("[ 3 ]"));
    assert_int_equal(a.result, NF_RANGE_STALE);
    assert_true(set("[ 4 ]"));
    assert_int_equal(a.result, NF_RANGE_FORGOTTEN);
    assert_true(set("[ 5 700 ]"));
    assert_int_equal(a.result, NF_RANGE_GRACE);
    assert_int_equal(a.a.left_ms, 700);
    assert_true(set(BUSY));
    assert_int_equal(a.result, NF_RANGE_BUSY);
    assert_string_equal(a.a.holder, "the holder");
    assert_string_equal(a.adopt, "p1 7");
    assert_true(a.start == 16 && a.end == 32 && a.a.left_ms == 1500 && a.a.before_me == 2 && a.a.holder_mode == 's');
}

TEST(no_other_reply_to_a_request_is_taken)
{
    static const char *const rows[] = {"1",
                                       "'1'",
                                       "+OK",
                                       "nil",
                                       "[ ]",
                                       "[nil]",
                                       "[ '1' ]",
                                       "[ nil ]",
                                       "[ [ 1 ] '42' ]",
                                       "[ 1 ]",
                                       "[ 1 42 ]",
                                       "[ 1 nil ]",
                                       "[ 5 ]",
                                       "[ 5 '700' ]",
                                       "[ 6 ]",
                                       "[ -1 ]",
                                       "[ 4294967297 '42' ]",
                                       "[ 0 ]",
                                       "[ 0 'x' 'h' ]",
                                       "[ 1 '123456789012345678901234' ]"};
    for (size_t i = 0; i < COUNT(rows); i++)
        expect(!set(rows[i]), "%s", rows[i]);
}

TEST(each_busy_reply_with_one_thing_wrong_is_refused)
{
    const char *spoilt;
    size_t round = 0;
    for (; (spoilt = unit_spoil(BUSY, round)); round++)
        expect(!set(spoilt), "%s", spoilt);
    assert_int_equal(round, 8 * 9);
}

TEST(a_range_that_is_none_is_refused)
{
    static const char *const rows[] = {
        "'0000000000000020' '0000000000000010'",
        "'0000000000000010' '0000000000000010'",
        "'000000000000001' '0000000000000020'",
        "'0000000000000010' '00000000000000200'",
        "'0000000000000010' '8000000000000001'",
        "'000000000000001g' '0000000000000020'",
        "'' ''",
    };
    char reply[256];
    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)snprintf(reply, sizeof reply, "[ 0 'x' 'h' %s 1 0 '' ]", rows[i]);
        expect(!set(reply), "%s", reply);
    }
    assert_true(set("[ 0 'x' 'h' '0000000000000000' '8000000000000000' 1 0 '' ]"));
    assert_true(a.start == 0 && a.end == NF_RANGE_END);
}

TEST(what_is_to_be_adopted_is_whole_or_refused)
{
    char reply[8192];
    for (size_t n = NF_ADOPT_MAX - 2; n <= NF_ADOPT_MAX + 1; n++) {
        (void)snprintf(reply, sizeof reply, "[ 0 'x' 'h' " FROM " " TO " 1 0 '%s' ]", unit_fill(n, 'a'));
        expect(set(reply) == (n < NF_ADOPT_MAX), "%zu bytes", n);
        if (n < NF_ADOPT_MAX)
            assert_int_equal(strlen(a.adopt), n);
    }
}

static bool test(const char *reply)
{
    memset(&a, 0x5a, sizeof a);
    return read_test(unit_reply(reply), &a);
}

TEST(a_test_says_who_is_in_the_way_or_nobody)
{
    assert_true(test("[ 0 ]"));
    assert_int_equal(a.result, NF_RANGE_DONE);
    assert_true(test("[ 1 'x' 'h' " FROM " " TO " ]"));
    assert_int_equal(a.result, NF_RANGE_BUSY);
    assert_true(a.start == 16 && a.end == 32 && a.a.holder_mode == 'x');
    static const char *const rows[] = {"0", "nil", "+OK", "[ ]", "[nil]", "[ '0' ]", "[ 2 ]", "[ -1 ]", "[ 1 ]", "[ nil ]"};
    for (size_t i = 0; i < COUNT(rows); i++)
        expect(!test(rows[i]), "%s", rows[i]);
    const char *spoilt;
    for (size_t round = 9; (spoilt = unit_spoil("[ 1 'x' 'h' " FROM " " TO " ]", round)); round++)
        expect(!test(spoilt), "%s", spoilt);
}

TEST(a_list_of_ranges_is_read_whole_or_refused)
{
    struct nf_ranges held = {0};
    assert_int_equal(parse_list("", &held), 0);
    assert_int_equal(held.n, 0);
    assert_int_equal(parse_list("x 0000000000000000 0000000000000010 s 0000000000000020 8000000000000000", &held), 0);
    assert_true(held.n == 2 && held.v);
    assert_true(held.v[0].mode == 'x' && held.v[0].end == 16 && held.v[1].mode == 's' && held.v[1].end == NF_RANGE_END);
    nf_ranges_clear(&held);
    assert_int_equal(parse_list("x 0000000000000000 0000000000000010 ", &held), 0);
    nf_ranges_clear(&held);
    static const char *const rows[] = {
        "x",
        "x 0000000000000000",
        ("x 0000000000000000\0"
         "0000000000000010"), /* what follows the end is not part of it */
        "x 0000000000000000 000000000000001",
        "u 0000000000000000 0000000000000010",
        "x 0000000000000010 0000000000000010",
        "x 0000000000000020 0000000000000010",
        "x 0000000000000000 000000000000001g",
        "x 0000000000000000 8000000000000001",
        "x 0000000000000000 0000000000000010  ",
        "x 0000000000000000 0000000000000010 s 00",
        "xx0000000000000000 0000000000000010 y 0000000000000000 0000000000000010",
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        expect(parse_list(rows[i], &held) == -EPROTO, "%s", rows[i]);
        nf_ranges_clear(&held);
    }
}

TEST(a_refusal_is_told_from_what_may_pass)
{
    (fail)(&a, NF_DOWN, "LOADING");
    assert_true(a.result == NF_RANGE_DOWN && a.a.outcome == NF_DOWN);
    (fail)(&a, NF_REFUSED, "NOPERM");
    assert_true(a.result == NF_RANGE_REFUSED && a.a.outcome == NF_REFUSED);
    assert_string_equal(a.a.why, "NOPERM");
}

TEST(only_p_and_o_are_owners_of_ranges)
{
    for (int c = 0; c < 256; c++)
        assert_int_equal(nf_range_owner((char)c), c == 'p' || c == 'o');
}

UNIT_MAIN(UNIT(an_offset_is_sixteen_hex_digits), UNIT(each_answer_to_a_request_is_understood), UNIT(no_other_reply_to_a_request_is_taken),
          UNIT(each_busy_reply_with_one_thing_wrong_is_refused), UNIT(a_range_that_is_none_is_refused),
          UNIT(what_is_to_be_adopted_is_whole_or_refused), UNIT(a_test_says_who_is_in_the_way_or_nobody),
          UNIT(a_list_of_ranges_is_read_whole_or_refused), UNIT(a_refusal_is_told_from_what_may_pass),
          UNIT(only_p_and_o_are_owners_of_ranges))
