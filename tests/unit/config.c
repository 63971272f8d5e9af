/*
 * shim/base/config.c: the lines of the file, and who wins over whom. The file is one in memory.
 */
#include "base/config.c"

#include "support/unit.h"

static void forget(void)
{
    for (size_t i = 0; i < config.n_prefix; i++) {
        free(config.prefix[i].path);
        free(config.prefix[i].name);
    }
    free(config.prefix);
    config = (struct nf_config){.redis = {.host = "127.0.0.1", .port = 6379, .timeout_ms = 2000, .grace = NF_GRACE_AUTO},
                                .policy = {.ttl_ms = 30000, .common_ttl_ms = 30000, .container_ttl_ms = 10000, .on_lost_signal = SIGTERM},
                                .log = {.level = NF_LOG_WARN, .where = 's'}};
    nf_log_configure(&config.log);
    atomic_store(&stage, 0);
    unit_log_clear();
}

/* What a process that starts now has, with this file. */
static const struct nf_config *with_file(const char *text, size_t len)
{
    forget();
    assert_int_equal(setenv("NETFLOCK_CONF", unit_file(text, len), 1), 0);
    return nf_config();
}

static const struct nf_config *with(const char *text)
{
    return with_file(text, strlen(text));
}

TEST(a_line_is_read_whatever_blanks_and_capitals_it_has)
{
    static const char *const rows[] = {
        "ttl=5s",           "ttl = 5s",        "  ttl\t=\t5s \t",        "ttl=5s\n",    "ttl=5s\r\n",         "TTL = 5s",
        "NETFLOCK_TTL=5s",  "netflock_ttl=5s", "\n\n\nttl=5s\n\n",       "# x\nttl=5s", "  # ttl=9s\nttl=5s", "#\n#ttl\n\r\n \t\nttl=5s",
        "ttl=9s\nttl = 5s", "host=h\nttl=5s",  "ttl=5s\nlog_level=warn",
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct nf_config *c = with(rows[i]);
        expect(c->policy.common_ttl_ms == 5000 && !c->broken, "\"%s\": %d, %s", rows[i], c->policy.common_ttl_ms, unit_log());
    }
    forget();
}

TEST(a_value_may_have_blanks_and_signs_of_equality)
{
    const struct nf_config *c = with("url = redis://me:a=b#c d@h\nlog = /var/log/a = b\n");
    assert_string_equal(c->redis.password, "a=b#c d");
    assert_string_equal(c->log.path, "/var/log/a = b");
    assert_false(c->broken);
    forget();
}

TEST(a_wrong_line_breaks_the_configuration_and_is_told_with_its_number)
{
    static const struct {
        const char *text, *where;
    } rows[] = {
        {"ttl", ":1: \"key = value\" expected"},
        {"ttl 5s", ":1: \"key = value\" expected"},
        {"\n#\nttl: 5s\n", ":3: \"key = value\" expected"},
        {"ttl=5s\nttl=", ":2: NETFLOCK_TTL=\"\" is not allowed"},
        {"ttl = 5s # short", ":1: NETFLOCK_TTL=\"5s # short\" is not allowed"},
        {"= 5s", ":1: unknown setting \"\""},
        {"colour = red", ":1: unknown setting \"colour\""},
        {"netflock_netflock_ttl = 5s", ":1: unknown setting \"netflock_ttl\""},
        {"\nprefix = relative", ":2: NETFLOCK_PREFIX=\"relative\" is not allowed"},
        {"t\001tl = 5s", ":1: unknown setting \"t\\x01tl\""},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct nf_config *c = with(rows[i].text);
        expect(c->broken && !c->short_of_resources, "\"%s\" is taken", rows[i].text);
        expect(strstr(unit_log(), rows[i].where), "\"%s\" is told as %s", rows[i].text, unit_log());
        assert_int_equal(c->prefix_broken, i == 8);
    }
    forget();
}

TEST(the_longest_line_is_read_and_a_longer_one_is_an_error)
{
    char text[8300];
    for (size_t n = 8190; n <= 8193; n++) {
        (void)snprintf(text, sizeof text, "ttl=5s\n#%s\nconnect_timeout=3s\n", unit_fill(n - 1, 'x'));
        const struct nf_config *c = with(text);
        expect(c->broken == (n > 8191), "a line of %zu bytes", n);
        expect(c->policy.common_ttl_ms == 5000 && c->redis.timeout_ms == 3000, "a line of %zu bytes: the others", n);
    }
    forget();
}

TEST(a_file_of_64_KB_is_too_long)
{
    for (size_t n = CONF_MAX - 3; n <= CONF_MAX + 1; n++) {
        char *text = unit_fill(n, '\n');
        memcpy(text, "ttl=5s", 6);
        const struct nf_config *c = with_file(text, n);
        expect(c->broken == (n >= CONF_MAX - 1), "%zu bytes", n);
    }
    forget();
}

TEST(a_NUL_byte_ends_its_line)
{
    static const char text[] = "ttl=5s\0x\nconnect_timeout=3s\n";
    const struct nf_config *c = with_file(text, sizeof text - 1);
    assert_int_equal(c->policy.common_ttl_ms, 5000);
    assert_int_equal(c->redis.timeout_ms, 3000);
    forget();
}

TEST(an_empty_file_is_all_right)
{
    assert_false(with("")->broken);
    assert_false(with("\n")->broken);
    assert_int_equal(with("# nothing")->policy.common_ttl_ms, 30000);
    forget();
}

TEST(a_file_that_was_named_must_be_there)
{
    forget();
    assert_int_equal(setenv("NETFLOCK_CONF", "/nonexistent/netflock.conf", 1), 0);
    assert_true(nf_config()->broken);
    assert_non_null(strstr(unit_log(), "cannot be read"));
    forget();
}

TEST(the_environment_wins_over_the_file)
{
    assert_int_equal(setenv("NETFLOCK_TTL", "7s", 1), 0);
    const struct nf_config *c = with("ttl=5s\nconnect_timeout=3s\n");
    assert_int_equal(c->policy.common_ttl_ms, 7000);
    assert_int_equal(c->redis.timeout_ms, 3000);
    assert_int_equal(with("ttl=nonsense")->policy.common_ttl_ms, 7000); /* what is not used may be wrong */
    assert_false(config.broken);
    assert_int_equal(setenv("NETFLOCK_TTL", "", 1), 0); /* empty: unset */
    assert_int_equal(with("ttl=5s")->policy.common_ttl_ms, 5000);
    assert_int_equal(setenv("NETFLOCK_TTL", "nonsense", 1), 0);
    assert_true(with("ttl=5s")->broken);
    assert_non_null(strstr(unit_log(), "error: NETFLOCK_TTL=\"nonsense\""));
    assert_int_equal(unsetenv("NETFLOCK_TTL"), 0);
    forget();
}

TEST(prefixes_come_from_the_environment_or_else_from_the_file)
{
    struct nf_config *c;
    (void)with("prefix = /a=N:/b\nprefix = /c\n");
    assert_int_equal(config.n_prefix, 3);
    assert_string_equal(config.prefix[0].name, "N");
    assert_string_equal(config.prefix[2].path, "/c");
    assert_int_equal(setenv("NETFLOCK_PREFIX", "/e", 1), 0);
    (void)with("prefix = /a=N:/b\nttl=5s\n");
    assert_int_equal(config.n_prefix, 1);
    assert_string_equal(config.prefix[0].path, "/e");
    /* As the library asks: first the prefixes alone, without a look at the file. */
    forget();
    assert_int_equal(setenv("NETFLOCK_CONF", "/nonexistent/netflock.conf", 1), 0);
    assert_int_equal(nf_config_prefixes(&c), NF_KNOWN_SOME);
    assert_false(c->broken);
    assert_int_equal(c->n_prefix, 1);
    assert_true(nf_config()->broken);
    assert_int_equal(c->n_prefix, 1);
    assert_int_equal(unsetenv("NETFLOCK_PREFIX"), 0);
    forget();
}

TEST(disabling_it_leaves_no_prefix_to_look_at)
{
    struct nf_config *c;
    (void)with("prefix = /a\ndisable = yes\n");
    assert_int_equal(nf_config_prefixes(&c), NF_KNOWN_NONE);
    (void)with("prefix = /a\ndisable = no\n");
    assert_int_equal(nf_config_prefixes(&c), NF_KNOWN_SOME);
    (void)with("ttl = 5s\n");
    assert_int_equal(nf_config_prefixes(&c), NF_KNOWN_NONE);
    (void)with("prefix = wrong\n"); /* nobody can tell which files were meant */
    assert_int_equal(nf_config_prefixes(&c), NF_KNOWN_SOME);
    forget();
}

UNIT_MAIN(UNIT(a_line_is_read_whatever_blanks_and_capitals_it_has), UNIT(a_value_may_have_blanks_and_signs_of_equality),
          UNIT(a_wrong_line_breaks_the_configuration_and_is_told_with_its_number),
          UNIT(the_longest_line_is_read_and_a_longer_one_is_an_error), UNIT(a_file_of_64_KB_is_too_long), UNIT(a_NUL_byte_ends_its_line),
          UNIT(an_empty_file_is_all_right), UNIT(a_file_that_was_named_must_be_there), UNIT(the_environment_wins_over_the_file),
          UNIT(prefixes_come_from_the_environment_or_else_from_the_file), UNIT(disabling_it_leaves_no_prefix_to_look_at))
