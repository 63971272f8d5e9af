/*
 * shim/redis/reply.c: what a reply may be, whoever has sent it. The replies are real ones of hiredis.
 */
#include "redis/reply.h"

#include "support/unit.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

TEST(an_error_means_not_now_or_not_at_all)
{
    static const struct {
        const char *error;
        enum nf_outcome outcome;
    } rows[] = {
        {"LOADING Redis is loading the dataset in memory", NF_DOWN},
        {"BUSY Redis is busy running a script.", NF_DOWN},
        {"MASTERDOWN Link with MASTER is down", NF_DOWN},
        {"READONLY You can't write against a read only replica.", NF_DOWN},
        {"OOM command not allowed when used memory > 'maxmemory'.", NF_DOWN},
        {"NOREPLICAS Not enough good replicas to write.", NF_DOWN},
        {"MISCONF Redis is configured to save RDB snapshots", NF_DOWN},
        {"TRYAGAIN Multiple keys request during rehashing of slot", NF_DOWN},
        {"CLUSTERDOWN The cluster is down", NF_DOWN},
        {"ERR max number of clients reached", NF_DOWN},
        {"ERR Error running script (call to f_1): @user_script:7: @user_script: 7: -OOM command not allowed", NF_DOWN},
        {"ERR Error running script (call to f_1): @user_script: 7: -READONLY You can't write", NF_DOWN},
        {"ERR Error running script (call to f_1): @user_script: 7: -NOREPLICAS Not enough", NF_DOWN},
        {"NOPERM this user has no permissions", NF_REFUSED},
        {"WRONGTYPE Operation against a key", NF_REFUSED},
        {"NOAUTH Authentication required.", NF_REFUSED},
        {"WRONGPASS invalid username-password pair", NF_REFUSED},
        {"ERR unknown command 'EVALSHA'", NF_REFUSED},
        {"NOSCRIPT No matching script.", NF_REFUSED},
        {"MOVED 1 192.0.2.1:6379", NF_REFUSED},
        {"ERR OOM is not the first word", NF_REFUSED},
        {"loading", NF_REFUSED},
        {"", NF_REFUSED},
        {"-", NF_REFUSED},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        expect(nf_reply_outcome(rows[i].error) == rows[i].outcome, "%s", rows[i].error);
}

TEST(an_error_is_noted_whole_or_cut)
{
    struct nf_answer a = {0};
    nf_reply_error(&a, NF_DOWN, "LOADING x");
    assert_int_equal(a.outcome, NF_DOWN);
    assert_string_equal(a.why, "LOADING x");
    nf_reply_error(&a, NF_REFUSED, unit_fill(1000, 'e'));
    assert_int_equal(strlen(a.why), sizeof a.why - 1);
}

TEST(where_a_password_is_wanted_that_is_said)
{
    static const char *const rows[] = {"NOAUTH Authentication required.", "ERR Protocol error: unauthenticated multibulk length",
                                       "ERR Protocol error: unauthenticated bulk length"};
    struct nf_answer a = {0};
    for (size_t i = 0; i < COUNT(rows); i++) {
        nf_reply_error(&a, NF_REFUSED, rows[i]);
        assert_string_equal(a.why, NF_NOAUTH);
    }
}

/* Any reply, asked for any element as any type: what comes back is of that type, or nothing. */
TEST(an_element_is_only_there_if_it_is_and_is_of_its_type)
{
    static const char *const replies[] = {"7", "'x'", "''", "nil", "+OK", "-ERR x", "[ ]", "[nil]", "[ 7 'x' nil +OK [ 1 ] [nil] ]"};
    static const int types[] = {REDIS_REPLY_STRING, REDIS_REPLY_ARRAY,  REDIS_REPLY_INTEGER,
                                REDIS_REPLY_NIL,    REDIS_REPLY_STATUS, REDIS_REPLY_ERROR};
    static const size_t indices[] = {0, 1, 2, 3, 4, 5, 6, 7, 100, INT_MAX, SIZE_MAX};
    size_t there = 0;
    for (size_t r = 0; r < COUNT(replies); r++)
        for (size_t t = 0; t < COUNT(types); t++)
            for (size_t i = 0; i < COUNT(indices); i++) {
                const redisReply *e = nf_reply_element(unit_reply(replies[r]), indices[i], types[t]);
                expect(!e || e->type == types[t], "element %zu of %s", indices[i], replies[r]);
                expect(!e || r == COUNT(replies) - 1, "element %zu of %s", indices[i], replies[r]);
                there += e != NULL;
            }
    assert_int_equal(there, 6);
    const redisReply *all = unit_reply(replies[COUNT(replies) - 1]);
    assert_int_equal(nf_reply_element(all, 0, REDIS_REPLY_INTEGER)->integer, 7);
    assert_string_equal(nf_reply_element(all, 1, REDIS_REPLY_STRING)->str, "x");
    assert_non_null(nf_reply_element(all, 4, REDIS_REPLY_ARRAY));
}

TEST(a_string_is_copied_up_to_the_end_of_its_buffer)
{
    char buf[8];
    for (size_t n = 0; n < 12; n++) {
        char word[32];
        (void)snprintf(word, sizeof word, "'%s'", unit_fill(n, 's'));
        memset(buf, 'z', sizeof buf);
        nf_reply_copy(buf, sizeof buf - 1, unit_reply(word));
        expect(strlen(buf) == (n < 6 ? n : 6) && buf[7] == 'z', "of %zu bytes", n);
    }
    static const char binary[] = "$5\r\na\0b\n\x1b\r\n";
    memset(buf, 'z', sizeof buf);
    nf_reply_copy(buf, sizeof buf, unit_reply_bytes(binary, sizeof binary - 1));
    assert_memory_equal(buf, "a\0b\n\x1b\0", 6);
    nf_reply_copy(buf, 1, unit_reply("'x'"));
    assert_string_equal(buf, "");
}

TEST(what_failed_before_a_connection_was_there_sent_nothing)
{
    static const int unsent[] = {ECONNREFUSED, ENOENT, EACCES, ENXIO, EMFILE, ENFILE, EHOSTUNREACH, ENETUNREACH};
    for (size_t i = 0; i < COUNT(unsent); i++) {
        assert_true(nf_reply_unsent(-unsent[i]));
        assert_false(nf_reply_unsent(unsent[i]));
    }
    /* Of these nobody knows: the request may have arrived. */
    static const int perhaps[] = {0, ETIMEDOUT, EPIPE, ECONNRESET, EPROTO, EAGAIN, EINTR, EIO, ENOMEM};
    for (size_t i = 0; i < COUNT(perhaps); i++)
        assert_false(nf_reply_unsent(-perhaps[i]));
}

UNIT_MAIN(UNIT(an_error_means_not_now_or_not_at_all), UNIT(an_error_is_noted_whole_or_cut), UNIT(where_a_password_is_wanted_that_is_said),
          UNIT(an_element_is_only_there_if_it_is_and_is_of_its_type), UNIT(a_string_is_copied_up_to_the_end_of_its_buffer),
          UNIT(what_failed_before_a_connection_was_there_sent_nothing))
