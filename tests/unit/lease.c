/*
 * The arithmetic of leases in shim/lease/tenure.h: Redis lets others in at sent + TTL at the earliest, for it got the
 * request after it was sent. Whatever we do must be over before.
 */
#include "lease/tenure.h"

#include "support/unit.h"

#include <inttypes.h>

#define TTL_MIN 100
#define TTL_MAX 86400000

/* All short ones, then in growing steps up to a day. */
static int next_ttl(int ttl)
{
    return ttl < 3000 ? ttl + 1 : ttl < 100000 ? ttl + 37 : ttl + 99991;
}

#define EACH_TTL(ttl) for (int ttl = TTL_MIN; ttl <= TTL_MAX; ttl = next_ttl(ttl))

static const int64_t sents[] = {0, 1, 12345, INT64_C(1) << 40};

TEST(the_deadline_lies_before_the_end_of_the_lease_in_Redis)
{
    EACH_TTL(ttl)
    for (size_t i = 0; i < COUNT(sents); i++) {
        int64_t left = sents[i] + ttl - nf_lease_deadline(sents[i], ttl);
        expect(left >= 15, "TTL %d: only %" PRId64 " ms before", ttl, left);
        expect(left <= 1000 && left * 6 < ttl, "TTL %d: %" PRId64 " ms are given away", ttl, left);
    }
}

TEST(the_margin_is_a_twentieth_from_15_ms_to_1_s)
{
    static const struct {
        int ttl, margin;
    } rows[] = {{100, 15}, {300, 15}, {319, 15}, {320, 16}, {1000, 50}, {19999, 999}, {20000, 1000}, {30000, 1000}, {TTL_MAX, 1000}};
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_int_equal(1000 + rows[i].ttl - nf_lease_deadline(1000, rows[i].ttl), rows[i].margin);
}

TEST(a_longer_lease_has_no_earlier_deadline)
{
    int64_t before = 0;
    EACH_TTL(ttl)
    {
        int64_t deadline = nf_lease_deadline(0, ttl);
        expect(deadline >= before, "TTL %d", ttl);
        before = deadline;
    }
}

/* Renewals that fail at once, from one third of the lease on: how many are tried before the deadline? */
TEST(a_renewal_that_fails_is_tried_often_before_the_deadline)
{
    EACH_TTL(ttl)
    {
        int64_t deadline = nf_lease_deadline(0, ttl);
        int64_t now = ttl / 3;
        int tries = 0;
        int64_t last = now;
        for (; now < deadline && tries < 100; tries++) {
            last = now;
            int64_t retry = nf_lease_retry(now, deadline, ttl);
            expect(retry > 0 && retry <= 1000, "TTL %d: the next try in %" PRId64 " ms", ttl, retry);
            now += retry;
        }
        expect(tries >= 8, "TTL %d: only %d tries", ttl, tries);
        expect(tries == 100 || deadline - last <= 20, "TTL %d: the last try is %" PRId64 " ms before the deadline", ttl, deadline - last);
    }
}

TEST(no_try_follows_the_one_before_in_less_than_a_moment)
{
    EACH_TTL(ttl)
    {
        int64_t deadline = nf_lease_deadline(0, ttl);
        int least = ttl / 20 < 20 ? ttl / 20 : 20;
        for (int part = 0; part <= 24; part++) { /* beyond the deadline too */
            int64_t retry = nf_lease_retry(deadline * part / 20, deadline, ttl);
            expect(retry >= least, "TTL %d, %d/20: %" PRId64 " ms", ttl, part, retry);
        }
    }
}

TEST(no_answer_is_waited_for_beyond_a_deadline_that_is_ahead)
{
    static const int timeouts[] = {10, 100, 2000, 300000};
    EACH_TTL(ttl)
    for (size_t k = 0; k < COUNT(timeouts); k++)
        for (int part = 0; part < 20; part++) {
            int64_t deadline = 1000 + nf_lease_deadline(0, ttl);
            int64_t sent = 1000 + (deadline - 1000) * part / 20;
            int64_t until = nf_lease_patience(sent, deadline, timeouts[k], ttl);
            expect(until <= deadline, "TTL %d, time-out %d: %" PRId64 " ms too long", ttl, timeouts[k], until - deadline);
            expect(until <= sent + timeouts[k], "TTL %d, time-out %d: longer than that", ttl, timeouts[k]);
            expect(until == deadline || until == sent + timeouts[k], "TTL %d, time-out %d: less than could be", ttl, timeouts[k]);
            expect(until > sent, "TTL %d, time-out %d: no time for an answer", ttl, timeouts[k]);
        }
}

TEST(past_the_deadline_an_answer_is_waited_for_while_Redis_keeps_others_out)
{
    EACH_TTL(ttl)
    {
        int64_t deadline = nf_lease_deadline(0, ttl);
        for (int64_t sent = deadline; sent < ttl; sent += (ttl - deadline) / 15)
            expect(nf_lease_patience(sent, deadline, 2000, ttl) == ttl, "TTL %d, sent at %" PRId64, ttl, sent);
    }
}

TEST(long_past_the_lease_an_answer_is_waited_for_half_a_second)
{
    EACH_TTL(ttl)
    {
        int64_t deadline = nf_lease_deadline(0, ttl);
        for (int64_t late = 0; late < 100000; late = late * 2 + 1)
            expect(nf_lease_patience(ttl + late, deadline, 2000, ttl) == ttl + late + 500, "TTL %d, %" PRId64 " ms late", ttl, late);
        expect(nf_lease_patience(ttl, deadline, 100, ttl) == ttl + 100, "TTL %d: the time-out is shorter", ttl);
    }
}

TEST(a_tenure_is_with_a_keeper_when_it_has_it_or_is_given_it)
{
    struct nf_tenure t = {0};
    assert_false(TABLE(nf_tenure_with_keeper(&t)));
    t.giving = true;
    assert_true(TABLE(nf_tenure_with_keeper(&t)));
    t.kept = true, t.giving = false;
    assert_true(TABLE(nf_tenure_with_keeper(&t)));
}

UNIT_MAIN(UNIT(the_deadline_lies_before_the_end_of_the_lease_in_Redis), UNIT(the_margin_is_a_twentieth_from_15_ms_to_1_s),
          UNIT(a_longer_lease_has_no_earlier_deadline), UNIT(a_renewal_that_fails_is_tried_often_before_the_deadline),
          UNIT(no_try_follows_the_one_before_in_less_than_a_moment), UNIT(no_answer_is_waited_for_beyond_a_deadline_that_is_ahead),
          UNIT(past_the_deadline_an_answer_is_waited_for_while_Redis_keeps_others_out),
          UNIT(long_past_the_lease_an_answer_is_waited_for_half_a_second), UNIT(a_tenure_is_with_a_keeper_when_it_has_it_or_is_given_it))
