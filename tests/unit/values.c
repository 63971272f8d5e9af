/*
 * shim/base/values.c: what each setting allows, and what becomes of it.
 */
#include "base/config.h"

#include "support/unit.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

TEST(a_duration_is_a_number_and_a_unit)
{
    static const struct {
        const char *text;
        int ms;
    } rows[] = {
        {"1ms", 1},
        {"500ms", 500},
        {"1s", 1000},
        {"030s", 30000},
        {"5m", 300000},
        {"1h", 3600000},
        {"24h", 86400000},
        {"0ms", 0},
        {"0h", 0},
        {"86400000ms", 86400000},
        {"000000001s", 1000},
        /* none */
        {"", -EINVAL},
        {"s", -EINVAL},
        {"30", -EINVAL},
        {"30 s", -EINVAL},
        {" 30s", -EINVAL},
        {"30s ", -EINVAL},
        {"30S", -EINVAL},
        {"30sec", -EINVAL},
        {"30us", -EINVAL},
        {"1d", -EINVAL},
        {"-1s", -EINVAL},
        {"+1s", -EINVAL},
        {"1.5s", -EINVAL},
        {"1e3ms", -EINVAL},
        {"0x10s", -EINVAL},
        {"1m30s", -EINVAL},
        {"30s\n", -EINVAL},
        /* too much */
        {"86400001ms", -EINVAL},
        {"25h", -EINVAL},
        {"0000000001s", -EINVAL},
        {"999999999h", -EINVAL},
        {"99999999999999999999ms", -EINVAL},
        {"4294967297ms", -EINVAL},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        int ms = nf_parse_duration(rows[i].text, 0, 86400000);
        expect(ms == rows[i].ms, "\"%s\" is %d", rows[i].text, ms);
    }
}

TEST(both_bounds_of_a_duration_are_allowed)
{
    assert_int_equal(nf_parse_duration("99ms", 100, 2000), -EINVAL);
    assert_int_equal(nf_parse_duration("100ms", 100, 2000), 100);
    assert_int_equal(nf_parse_duration("2s", 100, 2000), 2000);
    assert_int_equal(nf_parse_duration("2001ms", 100, 2000), -EINVAL);
    assert_int_equal(nf_parse_duration("999999999ms", 0, INT_MAX), 999999999);
}

TEST(a_duration_is_shown_as_people_write_it)
{
    static const struct {
        long ms;
        const char *text;
    } rows[] = {
        {0, "0s"},           {1, "1ms"},           {999, "999ms"},     {1000, "1s"},         {1500, "1500ms"},
        {9999, "9999ms"},    {10001, "10s"},       {119999, "119s"},   {120000, "2m00s"},    {3599999, "59m59s"},
        {3661000, "61m01s"}, {7199999, "119m59s"}, {7200000, "2h00m"}, {86399999, "23h59m"}, {360000000, "100h00m"},
    };
    char buf[32];
    for (size_t i = 0; i < COUNT(rows); i++) {
        nf_format_duration(rows[i].ms, buf, sizeof buf);
        expect(strcmp(buf, rows[i].text) == 0, "%ld ms is %s", rows[i].ms, buf);
    }
}

TEST(a_signal_has_a_name_or_a_number)
{
    static const struct {
        const char *text;
        int sig;
    } rows[] = {
        {"term", SIGTERM},
        {"TERM", SIGTERM},
        {"SIGTERM", SIGTERM},
        {"sigterm", SIGTERM},
        {"15", 15},
        {"USR1", SIGUSR1},
        {"kill", SIGKILL},
        {"64", 64},
        {"1", 1},
        {"io", SIGIO},
        {"0", -EINVAL},
        {"65", -EINVAL},
        {"-15", -EINVAL},
        {"", -EINVAL},
        {"SIG", -EINVAL},
        {"SIG15", -EINVAL},
        {"15 ", -EINVAL},
        {"15x", -EINVAL},
        {"TERM ", -EINVAL},
        {"SIGSIGTERM", -EINVAL},
        {"none", -EINVAL},
        {"4294967311", -EINVAL},
        {"99999999999999999999", -EINVAL},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        int sig = nf_parse_signal(rows[i].text);
        expect(sig == rows[i].sig, "\"%s\" is %d", rows[i].text, sig);
    }
}

static struct nf_config start(void)
{
    return (struct nf_config){.redis = {.host = "127.0.0.1", .port = 6379, .timeout_ms = 2000, .grace = NF_GRACE_AUTO},
                              .policy = {.ttl_ms = 30000, .common_ttl_ms = 30000, .container_ttl_ms = 10000, .on_lost_signal = SIGTERM},
                              .log = {.level = NF_LOG_WARN, .where = 's'}};
}

TEST(each_setting_takes_what_it_allows)
{
    struct nf_config c = start();
#define TAKES(name, value, field, is)                                                       \
    do {                                                                                    \
        expect(nf_config_set(&c, name, value, NULL) == 0, "%s=%s is refused", name, value); \
        expect((int)c.field == (int)(is), "%s=%s: %d", name, value, (int)c.field);          \
    } while (0)
    TAKES("ttl", "100ms", policy.common_ttl_ms, 100);
    TAKES("ttl", "24h", policy.common_ttl_ms, 86400000);
    TAKES("container_ttl", "100ms", policy.container_ttl_ms, 100);
    TAKES("container_ttl", "off", policy.container_ttl_ms, INT_MAX);
    TAKES("connect_timeout", "10ms", redis.timeout_ms, 10);
    TAKES("connect_timeout", "5m", redis.timeout_ms, 300000);
    TAKES("on_outage", "error", policy.on_outage, NF_OUTAGE_ERROR);
    TAKES("on_outage", "local", policy.on_outage, NF_OUTAGE_LOCAL);
    TAKES("on_outage", "block", policy.on_outage, NF_OUTAGE_BLOCK);
    TAKES("grace", "always", redis.grace, NF_GRACE_ALWAYS);
    TAKES("grace", "off", redis.grace, NF_GRACE_OFF);
    TAKES("grace", "auto", redis.grace, NF_GRACE_AUTO);
    TAKES("check", "strict", redis.check, NF_CHECK_STRICT);
    TAKES("check", "off", redis.check, NF_CHECK_OFF);
    TAKES("check", "warn", redis.check, NF_CHECK_WARN);
    TAKES("on_lost", "log", policy.on_lost_signal, 0);
    TAKES("on_lost", "kill", policy.on_lost_signal, SIGKILL);
    TAKES("on_lost", "USR1", policy.on_lost_signal, SIGUSR1);
    TAKES("keeper", "never", policy.keeper, NF_KEEPER_NEVER);
    TAKES("keeper", "always", policy.keeper, NF_KEEPER_ALWAYS);
    TAKES("keeper", "auto", policy.keeper, NF_KEEPER_AUTO);
    TAKES("local", "require", policy.local, NF_LOCAL_REQUIRE);
    TAKES("local", "off", policy.local, NF_LOCAL_OFF);
    TAKES("local", "/run/lock", policy.local, NF_LOCAL_DIR);
    assert_string_equal(c.local_dir, "/run/lock");
    TAKES("local", "auto", policy.local, NF_LOCAL_AUTO);
    TAKES("log", "syslog", log.where, 'y');
    TAKES("log", "stderr", log.where, 's');
    TAKES("log", "/var/log/netflock", log.where, 'f');
    assert_string_equal(c.log.path, "/var/log/netflock");
    TAKES("log_level", "error", log.level, NF_LOG_ERROR);
    TAKES("log_level", "debug", log.level, NF_LOG_DEBUG);
    TAKES("log_level", "info", log.level, NF_LOG_INFO);
    TAKES("log_level", "warn", log.level, NF_LOG_WARN);
    TAKES("disable", "yes", disabled, 1);
    TAKES("disable", "no", disabled, 0);
    TAKES("disable", "1", disabled, 1);
    TAKES("disable", "0", disabled, 0);
    TAKES("url", "redis://h:7/3", redis.port, 7);
    assert_int_equal(nf_config_set(&c, "host", "web-1.example_A", NULL), 0);
    assert_string_equal(c.policy.host_extra, "web-1.example_A");
    assert_int_equal(nf_config_set(&c, "host", unit_fill(64, 'h'), NULL), 0);
    assert_false(c.broken);
    assert_string_equal(unit_log(), "");
}

TEST(a_wrong_value_is_refused_changes_nothing_and_breaks_the_configuration)
{
    static const struct {
        const char *name, *value;
    } rows[] = {
        {"ttl", ""},
        {"ttl", "99ms"},
        {"ttl", "25h"},
        {"ttl", "30"},
        {"ttl", "forever"},
        {"connect_timeout", "9ms"},
        {"connect_timeout", "6m"},
        {"on_outage", "Block"},
        {"on_outage", "block "},
        {"on_outage", ""},
        {"grace", "yes"},
        {"check", "on"},
        {"on_lost", "nothing"},
        {"on_lost", "0"},
        {"keeper", "no"},
        {"local", "tmp"},
        {"local", ""},
        {"log", "stdout"},
        {"log", "relative.log"},
        {"log_level", "3"},
        {"log_level", "WARN"},
        {"disable", "true"},
        {"disable", "2"},
        {"disable", ""},
        {"host", ""},
        {"host", "a b"},
        {"host", "a:b"},
        {"host", "a\n"},
        {"host", "\xc3\xa4"},
        {"url", "redis:/h"},
        {"url", ""},
        {"password_file", "relative"},
        {"password_file", "/nonexistent/password"},
        {"password_file", "/"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct nf_config c = start();
        struct nf_config before = c;
        unit_log_clear();
        expect(nf_config_set(&c, rows[i].name, rows[i].value, "f:3: ") == -EINVAL, "%s=%s is taken", rows[i].name, rows[i].value);
        expect(c.broken && !c.short_of_resources, "%s=%s breaks nothing", rows[i].name, rows[i].value);
        c.broken = false;
        expect(memcmp(&c, &before, sizeof c) == 0, "%s=%s changes something", rows[i].name, rows[i].value);
        expect(strstr(unit_log(), ": error: f:3: NETFLOCK_") && strstr(unit_log(), "; allowed: ") &&
                   strchr(unit_log(), '\n') == unit_log() + strlen(unit_log()) - 1,
               "%s=%s is told as %s", rows[i].name, rows[i].value, unit_log());
    }
}

TEST(what_is_too_long_is_refused)
{
    struct nf_config c = start();
    char path[2000];
    assert_int_equal(nf_config_set(&c, "host", unit_fill(65, 'h'), NULL), -EINVAL);
    for (size_t n = NF_LOG_PATH_MAX - 3; n < NF_LOG_PATH_MAX + 3; n++) {
        int r = n < NF_LOG_PATH_MAX ? 0 : -EINVAL;
        (void)snprintf(path, sizeof path, "/%s", unit_fill(n - 1, 'p'));
        assert_int_equal(nf_config_set(&c, "log", path, NULL), r);
        assert_int_equal(nf_config_set(&c, "local", path, NULL), r);
    }
}

TEST(an_unknown_setting_is_refused)
{
    static const char *const rows[] = {"", "tt", "ttll", "TTL", "netflock_ttl", "ttl ", "password"};
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct nf_config c = start();
        unit_log_clear();
        expect(nf_config_set(&c, rows[i], "30s", NULL) == -EINVAL && c.broken, "\"%s\" is a setting", rows[i]);
        expect(strstr(unit_log(), "unknown setting"), "\"%s\" is told as %s", rows[i], unit_log());
    }
}

TEST(each_setting_that_has_a_name_can_be_set)
{
    const char *allowed;
    const char *name;
    size_t n = 0;
    for (; (name = nf_config_var(n, &allowed)); n++) {
        struct nf_config c = start();
        unit_log_clear();
        (void)nf_config_set(&c, name, "", NULL);
        expect(allowed[0] && !strstr(unit_log(), "unknown"), "%s is not known", name);
    }
    assert_int_equal(n, 16);
    assert_null(nf_config_var(SIZE_MAX, &allowed));
}

TEST(no_password_gets_into_the_log)
{
    static const char *const rows[] = {"redis://me:secret@", "redis://me:secret@h:x", "redis:me:secret",
                                       "me:secret@h",        "redis://:secret@@",     "redis://me:secret@h/x"};
    struct nf_config c = start();
    for (size_t i = 0; i < COUNT(rows); i++)
        expect(nf_config_set(&c, "url", rows[i], NULL) == -EINVAL, "%s is taken", rows[i]);
    assert_int_equal(nf_config_set(&c, "password_file", "secret", NULL), -EINVAL);
    assert_non_null(strstr(unit_log(), "***"));
    expect(!strstr(unit_log(), "secret"), "%s", unit_log());
}

TEST(the_log_shows_no_control_character_of_a_value)
{
    struct nf_config c = start();
    assert_int_equal(nf_config_set(&c, "ttl", "1\n2\x1b[31m\x7f", NULL), -EINVAL);
    assert_non_null(strstr(unit_log(), "1\\x0a2\\x1b[31m\\x7f"));
}

TEST(a_password_file_is_taken_without_the_end_of_its_line)
{
    static const struct {
        const char *text, *password;
    } rows[] = {{"secret", "secret"}, {"secret\n", "secret"}, {"secret\r\n", "secret"}, {"a b \n\n", "a b "}, {"a\nb\n", "a\nb"}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct nf_config c = start();
        assert_int_equal(nf_config_set(&c, "password_file", unit_file(rows[i].text, strlen(rows[i].text)), NULL), 0);
        assert_string_equal(c.redis.password, rows[i].password);
    }
}

TEST(a_password_file_that_is_empty_binary_or_too_long_is_refused)
{
    struct nf_config c = start();
    (void)strcpy(c.redis.password, "old");
    assert_int_equal(nf_config_set(&c, "password_file", unit_file("", 0), NULL), -EINVAL);
    assert_int_equal(nf_config_set(&c, "password_file", unit_file("\r\n\n", 3), NULL), -EINVAL);
    assert_int_equal(nf_config_set(&c, "password_file", unit_file("a\0b", 3), NULL), -EINVAL);
    assert_int_equal(nf_config_set(&c, "password_file", unit_file(unit_fill(1024, 'p'), 1024), NULL), -EINVAL);
    assert_string_equal(c.redis.password, "old");
    assert_non_null(strstr(unit_log(), "the file is too long"));
    assert_non_null(strstr(unit_log(), "the file is empty"));
    assert_int_equal(nf_config_set(&c, "password_file", unit_file(unit_fill(1023, 'p'), 1023), NULL), 0);
    assert_int_equal(strlen(c.redis.password), 1023);
}

TEST(a_URL_without_a_password_leaves_that_of_the_file)
{
    struct nf_config c = start();
    assert_int_equal(nf_config_set(&c, "password_file", unit_file("secret\n", 7), NULL), 0);
    assert_int_equal(nf_config_set(&c, "url", "redis://me@h", NULL), 0);
    assert_string_equal(c.redis.password, "secret");
    assert_string_equal(c.redis.user, "me");
    assert_int_equal(nf_config_set(&c, "url", "redis://:other@h", NULL), 0);
    assert_string_equal(c.redis.password, "other");
    assert_string_equal(c.redis.user, "");
}

TEST(only_a_want_that_may_pass_is_one)
{
    assert_true(nf_config_passing(-EMFILE) && nf_config_passing(-ENFILE) && nf_config_passing(-ENOMEM));
    assert_false(nf_config_passing(0) || nf_config_passing(-ENOENT) || nf_config_passing(EMFILE));
}

UNIT_MAIN(UNIT(a_duration_is_a_number_and_a_unit), UNIT(both_bounds_of_a_duration_are_allowed),
          UNIT(a_duration_is_shown_as_people_write_it), UNIT(a_signal_has_a_name_or_a_number), UNIT(each_setting_takes_what_it_allows),
          UNIT(a_wrong_value_is_refused_changes_nothing_and_breaks_the_configuration), UNIT(what_is_too_long_is_refused),
          UNIT(an_unknown_setting_is_refused), UNIT(each_setting_that_has_a_name_can_be_set), UNIT(no_password_gets_into_the_log),
          UNIT(the_log_shows_no_control_character_of_a_value), UNIT(a_password_file_is_taken_without_the_end_of_its_line),
          UNIT(a_password_file_that_is_empty_binary_or_too_long_is_refused), UNIT(a_URL_without_a_password_leaves_that_of_the_file),
          UNIT(only_a_want_that_may_pass_is_one))
