/*
 * What a new connection learns of its server (shim/redis/check.c, handshake.c): what of an error may be shown, and whether the
 * server is fit.
 */
#include "redis/handshake.c"

#include "support/unit.h"

static const char *info(const char *text)
{
    char *reply = unit_fill(strlen(text) + 3, 0);
    (void)sprintf(reply, "'%s'", text);
    return reply;
}

static struct nf_conn conn;
static char why[200];

static const char *run_of(const char *reply, int *r)
{
    memset(&conn, 0, sizeof conn);
    why[0] = 0;
    *r = take_run(&conn, unit_reply(reply), why, sizeof why);
    return conn.run;
}

TEST(a_run_id_is_taken_from_the_answer_and_cut)
{
    static const struct {
        const char *reply, *run;
    } rows[] = {
        {"'run_id:0123456789abcdef0123456789abcdef01234567'", "0123456789abcdef"},
        {"'# Server\nredis_version:7.0.0\nrun_id:abc\ntcp_port:1'", "abc"},
        {"'run_id:0123456789abcdef'", "0123456789abcdef"},
        {"'run_id:'", ""},
        {"'run_id:XYZ'", ""},
        {"'nothing'", ""},
        {"''", ""},
        {"nil", ""},
        {"7", ""},
        {"+OK", ""},
        {"[ ]", ""},
        {"[ 'run_id:abc' ]", ""},
        {"-NOPERM x", ""},
        {"-run_id:abc", ""},
    };
    int r;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *run = run_of(rows[i].reply, &r);
        expect(strcmp(run, rows[i].run) == 0 && r == 0, "%s: %s", rows[i].reply, run);
    }
}

TEST(an_error_in_place_of_the_answer_counts_where_it_matters)
{
    int r;
    (void)run_of("-LOADING x", &r);
    assert_int_equal(r, -EAGAIN);
    assert_string_equal(why, "LOADING x");
    (void)run_of("-NOAUTH Authentication required.", &r);
    assert_int_equal(r, -EACCES);
    assert_string_equal(why, NF_NOAUTH);
    (void)run_of("-NOPERM this user has no permissions", &r);
    assert_int_equal(r, 0);
}

TEST(no_part_of_a_password_is_shown_when_it_is_refused)
{
    static const struct {
        const char *error;
        int shown;
    } rows[] = {
        {"WRONGPASS invalid username-password pair", 40},
        {"ERR unknown command `AUTH`, with args beginning with: `secret`", 20},
        {"ERR unknown command 'AUTH', with args beginning with: 'secret'", 20},
        {"ERR wrong secret", 10},
        {"secret", 0},
        {"ERR \"secret\"", 4},
        {"", 0},
    };
    struct nf_cmd auth = {0};
    nf_cmd_str(&auth, "AUTH");
    nf_cmd_str(&auth, "secret");
    for (size_t i = 0; i < COUNT(rows); i++)
        expect(shown(&auth, rows[i].error) == rows[i].shown, "%s: %d", rows[i].error, shown(&auth, rows[i].error));
    assert_int_equal(shown(&auth, unit_fill(500, 'e')), 100);
    struct nf_cmd select = {0};
    nf_cmd_str(&select, "SELECT");
    nf_cmd_str(&select, "99");
    assert_int_equal(shown(&select, "ERR DB index is out of range"), 100);
}

TEST(a_server_that_hangs_up_may_have_said_why)
{
    assert_int_equal(hear(-EPIPE), 0);
    assert_int_equal(hear(-ECONNRESET), 0);
    assert_int_equal(hear(-ETIMEDOUT), -ETIMEDOUT);
    assert_int_equal(hear(0), 0);
}

TEST(under_strict_only_a_server_that_keeps_its_locks_is_fit)
{
    static const struct {
        const char *server, *memory;
        bool fit;
    } rows[] = {
        {"redis_version:7.0.15", "maxmemory_policy:noeviction", true},
        {"redis_version:6.0.0", "maxmemory_policy:noeviction", true},
        {"redis_version:10.1", "maxmemory_policy:noeviction", true},
        {"# Server\r\nredis_version:7.2\r\n", "# Memory\r\nused:1\r\nmaxmemory_policy:noeviction\r\n", true},
        {"redis_version:5.0.14", "maxmemory_policy:noeviction", false},
        {"redis_version:0.1", "maxmemory_policy:noeviction", false},
        {"redis_version:7.0.15", "maxmemory_policy:allkeys-lru", false},
        {"redis_version:7.0.15", "maxmemory_policy:volatile-ttl\r\n", false},
        {"redis_version:7.0.15", "maxmemory_policy:noevictions", false},
        /* What it does not tell is not held against it. */
        {"redis_version:", "maxmemory_policy:", true},
        {"", "", true},
        {"redis_version:x.y", "other_maxmemory_policy:allkeys-lru", true},
    };
    const struct nf_redis_opts strict = {.check = NF_CHECK_STRICT};
    assert_true(nf_check_due(&strict));
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *unfit = nf_check(&strict, unit_reply(info(rows[i].server)), unit_reply(info(rows[i].memory)));
        expect(!unfit == rows[i].fit, "%s, %s: %s", rows[i].server, rows[i].memory, unfit ? unfit : "fit");
    }
    static const char *const odd[] = {"nil", "7", "+OK", "-NOPERM x", "[ ]", "[nil]"};
    for (size_t i = 0; i < COUNT(odd); i++)
        assert_null(nf_check(&strict, unit_reply(odd[i]), unit_reply(odd[i])));
}

TEST(otherwise_it_is_said_once_and_the_server_is_used)
{
    const struct nf_redis_opts warn = {.host = "h", .port = 7, .check = NF_CHECK_WARN};
    const struct nf_redis_opts off = {.check = NF_CHECK_OFF};
    assert_false(nf_check_due(&off));
    assert_true(nf_check_due(&warn));
    const redisReply *server = unit_reply(info("redis_version:5.0.1"));
    const redisReply *memory = unit_reply(info("maxmemory_policy:allkeys-lru"));
    assert_null(nf_check(&warn, server, memory));
    assert_non_null(strstr(unit_log(), "Redis at h:7 is version 5.0.1"));
    assert_non_null(strstr(unit_log(), "its maxmemory-policy is allkeys-lru"));
    assert_false(nf_check_due(&warn));
    unit_log_clear();
    assert_null(nf_check(&warn, server, memory));
    assert_string_equal(unit_log(), "");
}

UNIT_MAIN(UNIT(a_run_id_is_taken_from_the_answer_and_cut), UNIT(an_error_in_place_of_the_answer_counts_where_it_matters),
          UNIT(no_part_of_a_password_is_shown_when_it_is_refused), UNIT(a_server_that_hangs_up_may_have_said_why),
          UNIT(under_strict_only_a_server_that_keeps_its_locks_is_fit), UNIT(otherwise_it_is_said_once_and_the_server_is_used))
