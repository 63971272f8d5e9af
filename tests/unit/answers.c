/*
 * shim/redis/ops.c: the answers to what is asked about flock()'s locks. A lock is granted only by a reply of exactly
 * that form; whatever else a server says, the call does not get it.
 */
#include "redis/ops.c"

#include "support/unit.h"

static struct nf_answer a;

static enum nf_outcome acquired(const char *reply)
{
    memset(&a, 0x5a, sizeof a);
    a.outcome = NF_DOWN;
    read_acquire(unit_reply(reply), &a);
    return a.outcome;
}

TEST(a_granted_lock_has_its_fencing_token)
{
    assert_int_equal(acquired("[ 1 '17000000000000001' ]"), NF_GRANTED);
    assert_string_equal(a.fence, "17000000000000001");
    assert_int_equal(acquired("[ 1 '' ]"), NF_GRANTED);
    assert_string_equal(a.fence, "");
    assert_int_equal(acquired("[ 1 '12345678901234567890123' ]"), NF_GRANTED);
    assert_int_equal(strlen(a.fence), NF_FENCE_MAX - 1);
    assert_int_equal(acquired("[ 1 '123456789012345678901234' ]"), NF_REFUSED); /* never cut */
}

TEST(a_busy_lock_has_its_holder_and_a_place_in_the_queue)
{
    assert_int_equal(acquired("[ 0 's' 'the holder' 1500 3 1700000000000 150 ]"), NF_BUSY);
    assert_string_equal(a.holder, "the holder");
    assert_int_equal(a.holder_mode, 's');
    assert_int_equal(a.left_ms, 1500);
    assert_int_equal(a.before_me, 3);
    assert_true(a.redis_ms == 1700000000000);
    assert_int_equal(a.unfetched_ms, 150);
    /* What is not plainly shared is exclusive. */
    static const char *const modes[] = {"'x'", "''", "'ss'", "'S'", "'?'"};
    for (size_t i = 0; i < COUNT(modes); i++) {
        char reply[64];
        (void)snprintf(reply, sizeof reply, "[ 0 %s '' -1 -1 0 0 ]", modes[i]);
        assert_int_equal(acquired(reply), NF_BUSY);
        assert_int_equal(a.holder_mode, 'x');
        assert_true(a.left_ms == -1 && a.before_me == -1);
    }
}

TEST(a_foreign_holder_that_is_too_long_is_cut)
{
    char reply[2048];
    (void)snprintf(reply, sizeof reply, "[ 0 'x' '%s' 1 0 1 0 ]", unit_fill(1000, 'h'));
    assert_int_equal(acquired(reply), NF_BUSY);
    assert_int_equal(strlen(a.holder), NF_TOKEN_MAX - 1);
}

TEST(a_grace_period_has_its_length)
{
    assert_int_equal(acquired("[ -1 30000 ]"), NF_GRACE);
    assert_int_equal(a.left_ms, 30000);
}

TEST(no_other_reply_grants_a_lock)
{
    static const char *const rows[] = {
        "1",
        "'1'",
        "+OK",
        "nil",
        "[ ]",
        "[nil]",
        "[ 1 ]",
        "[ 1 nil ]",
        "[ 1 5 ]",
        "[ 1 +OK ]",
        "[ '1' '5' ]",
        "[ 2 '5' ]",
        "[ -2 5 ]",
        "[ -1 ]",
        "[ -1 '5' ]",
        "[ 0 ]",
        "[ 0 'x' ]",
        "[ [ 1 ] '5' ]",
        "[ nil '5' ]",
        "[ 9223372036854775807 '5' ]",
        "[ 4294967297 '5' ]",
        "[ 1 [ '5' ] ]",
        "[ '5' 1 ]",
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        expect(acquired(rows[i]) == NF_REFUSED, "%s", rows[i]);
        expect(strstr(a.why, "unknown form"), "%s: %s", rows[i], a.why);
    }
}

TEST(each_reply_with_one_thing_wrong_is_refused)
{
    static const char *const rows[] = {"[ 1 '5' ]", "[ 0 'x' 'h' 1500 3 1700000000000 0 ]", "[ -1 30000 ]"};
    const char *spoilt;
    size_t tried = 0;
    for (size_t i = 0; i < COUNT(rows); i++)
        for (size_t round = 0; (spoilt = unit_spoil(rows[i], round)); round++, tried++)
            expect(acquired(spoilt) == NF_REFUSED, "%s", spoilt);
    assert_int_equal(tried, (2 + 7 + 2) * 9);
}

static int renewed(const char *reply)
{
    static struct nf_renewal r;
    memset(&r, 0, sizeof r);
    r.result = NF_UNKNOWN;
    read_renewal(unit_reply(reply), &r);
    if (r.result == NF_GONE)
        (void)strlcpy(a.holder, r.holder, sizeof a.holder);
    return (int)r.result;
}

TEST(a_renewal_is_one_of_four_things_or_unknown)
{
    assert_int_equal(renewed("[ 1 ]"), NF_RENEWED);
    assert_int_equal(renewed("[ 1 'x' ]"), NF_RENEWED);
    assert_int_equal(renewed("[ 2 ]"), NF_RECLAIMED);
    assert_int_equal(renewed("[ 3 ]"), NF_MISSING);
    assert_int_equal(renewed("[ 0 'who' ]"), NF_GONE);
    assert_string_equal(a.holder, "who");
    assert_int_equal(renewed("[ 0 '' ]"), NF_GONE);
    assert_string_equal(a.holder, "");
    static const char *const unknown[] = {"1",       "'1'",       "+OK",     "nil",          "-ERR x", "[ ]",       "[nil]",
                                          "[ '1' ]", "[ nil ]",   "[ +OK ]", "[ 4 ]",        "[ -1 ]", "[ [ 1 ] ]", "[ 4294967297 ]",
                                          "[ 0 ]",   "[ 0 nil ]", "[ 0 7 ]", "[ 0 [ 'w' ] ]"};
    for (size_t i = 0; i < COUNT(unknown); i++)
        expect(renewed(unknown[i]) == NF_UNKNOWN, "%s", unknown[i]);
}

TEST(a_message_to_a_waiter_is_a_grant_or_a_call_to_ask_again)
{
    static const struct {
        const char *reply;
        bool told;
        int ms;
    } rows[] = {
        {"[ 'list' '17 1700000000000 1500' ]", true, 1500},
        {"[ 'list' '1 1 1' ]", true, 1},
        {"[ 'list' '12345678901234567890123 1 2147483647' ]", true, INT_MAX},
        /* told, without a grant */
        {"[ 'list' '' ]", true, 0},
        {"[ 'list' '17' ]", true, 0},
        {"[ 'list' ' 17 1' ]", true, 0},
        {"[ 'list' '17 ' ]", true, 0},
        {"[ 'list' '17 1700000000000' ]", true, 0},
        {"[ 'list' '17 1700000000000 ' ]", true, 0},
        {"[ 'list' '17 0 1500' ]", true, 0},
        {"[ 'list' '17 -1 1500' ]", true, 0},
        {"[ 'list' '17 1 0' ]", true, 0},
        {"[ 'list' '17 1 -1' ]", true, 0},
        {"[ 'list' '17 1 2147483648' ]", true, 0},
        {"[ 'list' '17 1 99999999999999999999' ]", true, 0},
        {"[ 'list' '17 1 1500x' ]", true, 0},
        {"[ 'list' '17 1 1500 2' ]", true, 0},
        {"[ 'list' '17 1x 1500' ]", true, 0},
        {"[ 'list' '17x 1 1500' ]", true, 0},
        {"[ 'list' '-17 1 1500' ]", true, 0},
        {"[ 'list' '123456789012345678901234 1 1500' ]", true, 0},
        /* the end of the time, or nonsense */
        {"[nil]", false, 0},
        {"nil", false, 0},
        {"[ ]", false, 0},
        {"[ '17 1 1500' ]", false, 0},
        {"[ 'list' 17 ]", false, 0},
        {"[ 'list' nil ]", false, 0},
        {"[ 'list' [ '17 1 1500' ] ]", false, 0},
        {"'17 1 1500'", false, 0},
        {"+OK", false, 0},
        {"1", false, 0},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        memset(&a, 0x5a, sizeof a);
        read_grant(unit_reply(rows[i].reply), &a);
        expect(a.told == rows[i].told && a.grant_ms == rows[i].ms, "%s: told %d, %d ms", rows[i].reply, a.told, a.grant_ms);
    }
    read_grant(unit_reply(rows[0].reply), &a);
    assert_string_equal(a.fence, "17");
    assert_true(a.grant_at_ms == 1700000000000);
}

TEST(a_message_ends_at_a_NUL_in_it)
{
    static const char bytes[] = "*2\r\n$4\r\nlist\r\n$11\r\n17 1 1500\0x\r\n";
    static const char hidden[] = "*2\r\n$4\r\nlist\r\n$11\r\n17\0 1 1500x\r\n";
    memset(&a, 0, sizeof a);
    read_grant(unit_reply_bytes(hidden, sizeof hidden - 1), &a);
    assert_int_equal(a.grant_ms, 0);
    read_grant(unit_reply_bytes(bytes, sizeof bytes - 1), &a); /* what comes before it counts */
    assert_string_equal(a.fence, "17");
}

TEST(the_names_of_a_files_keys_are_made_of_its_key)
{
    static const char *const keys[] = {"lock:/a/b", "x", "", "lock:/}{:"};
    char is[256];
    for (size_t i = 0; i < COUNT(keys); i++) {
        struct nf_names *n = nf_names_make(keys[i], strlen(keys[i]));
        assert_string_equal(n->key, keys[i]);
        const struct {
            const char *name, *suffix;
            size_t len;
        } others[] = {{n->fence, "fence", n->fence_len}, {n->queue, "queue", n->queue_len}, {n->alive, "alive", n->alive_len}};
        for (size_t k = 0; k < COUNT(others); k++) {
            (void)snprintf(is, sizeof is, "netflock:{%s}:%s", keys[i], others[k].suffix);
            assert_string_equal(others[k].name, is);
            assert_int_equal(others[k].len, strlen(is));
        }
        nf_free(n);
    }
    struct nf_names *n = nf_names_make(unit_fill(8447, 'k'), 8447);
    assert_int_equal(strlen(n->alive), n->alive_len);
    nf_free(n);
}

TEST(a_lock_is_granted_ahead_for_a_lease_at_most)
{
    assert_int_equal(grant_ms(&(struct nf_policy){.ttl_ms = 100}), 100);
    assert_int_equal(grant_ms(&(struct nf_policy){.ttl_ms = 1500}), 1500);
    assert_int_equal(grant_ms(&(struct nf_policy){.ttl_ms = 30000}), 1500);
}

UNIT_MAIN(UNIT(a_granted_lock_has_its_fencing_token), UNIT(a_busy_lock_has_its_holder_and_a_place_in_the_queue),
          UNIT(a_foreign_holder_that_is_too_long_is_cut), UNIT(a_grace_period_has_its_length), UNIT(no_other_reply_grants_a_lock),
          UNIT(each_reply_with_one_thing_wrong_is_refused), UNIT(a_renewal_is_one_of_four_things_or_unknown),
          UNIT(a_message_to_a_waiter_is_a_grant_or_a_call_to_ask_again), UNIT(a_message_ends_at_a_NUL_in_it),
          UNIT(the_names_of_a_files_keys_are_made_of_its_key), UNIT(a_lock_is_granted_ahead_for_a_lease_at_most))
