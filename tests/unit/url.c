/*
 * shim/base/url.c: where Redis is.
 */
#include "base/url.h"

#include "support/unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct nf_redis_opts parsed(const char *url)
{
    struct nf_redis_opts o = {.timeout_ms = 1234, .grace = 2, .check = 1};
    expect(nf_url_parse(url, &o) == 0, "%s is refused", url);
    expect(o.timeout_ms == 1234 && o.grace == 2 && o.check == 1, "%s changes what no URL tells", url);
    return o;
}

static void refused(const char *url)
{
    struct nf_redis_opts before;
    memset(&before, 0x5a, sizeof before);
    struct nf_redis_opts o = before;
    expect(nf_url_parse(url, &o) == -EINVAL, "%s is taken", url);
    expect(memcmp(&o, &before, sizeof o) == 0, "%s is refused, and changes something", url);
}

TEST(each_part_of_a_URL_is_found)
{
    static const struct {
        const char *url, *host;
        int port, db;
        const char *user, *password;
    } rows[] = {
        {"redis://h", "h", 6379, 0, "", ""},
        {"redis://h/", "h", 6379, 0, "", ""},
        {"redis://h:1", "h", 1, 0, "", ""},
        {"redis://h:65535/65535", "h", 65535, 65535, "", ""},
        {"redis://h:00080/00015", "h", 80, 15, "", ""},
        {"redis://redis.example.org:6380/15", "redis.example.org", 6380, 15, "", ""},
        {"redis://192.0.2.1:7/0", "192.0.2.1", 7, 0, "", ""},
        {"redis://[2001:db8::1]", "2001:db8::1", 6379, 0, "", ""},
        {"redis://[2001:db8::1]:7/3", "2001:db8::1", 7, 3, "", ""},
        {"redis://[fe80::1%eth0]:7", "fe80::1%eth0", 7, 0, "", ""},
        {"redis://me@h", "h", 6379, 0, "me", ""},
        {"redis://me:secret@h:7/3", "h", 7, 3, "me", "secret"},
        {"redis://:secret@h", "h", 6379, 0, "", "secret"},
        {"redis://me:@h", "h", 6379, 0, "me", ""},
        {"redis://me:a:b@h", "h", 6379, 0, "me", "a:b"},
        {"redis://me:a@b@h", "h", 6379, 0, "me", "a@b"},
        {"redis://m%65:%40%3a%2F%25%c3%A9%01@h", "h", 6379, 0, "me", "@:/%\xc3\xa9\x01"},
        {"redis://me:secret@[::1]:7", "::1", 7, 0, "me", "secret"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct nf_redis_opts o = parsed(rows[i].url);
        expect(strcmp(o.host, rows[i].host) == 0, "%s: host %s", rows[i].url, o.host);
        expect(o.port == rows[i].port && o.db == rows[i].db, "%s: port %d, database %d", rows[i].url, o.port, o.db);
        expect(strcmp(o.user, rows[i].user) == 0, "%s: user %s", rows[i].url, o.user);
        expect(strcmp(o.password, rows[i].password) == 0, "%s: password %s", rows[i].url, o.password);
        expect(!o.unix_path[0], "%s: a socket, %s", rows[i].url, o.unix_path);
    }
}

TEST(a_unix_socket_has_a_path_and_perhaps_a_database)
{
    struct nf_redis_opts o = parsed("unix:///run/redis.sock");
    assert_string_equal(o.unix_path, "/run/redis.sock");
    assert_int_equal(o.db, 0);
    o = parsed("unix:///run/a%20b@c:d?db=65535");
    assert_string_equal(o.unix_path, "/run/a%20b@c:d");
    assert_int_equal(o.db, 65535);
    assert_string_equal(o.host, "");
}

TEST(what_is_no_such_URL_is_refused_and_changes_nothing)
{
    static const char *const rows[] = {
        "",
        "redis",
        "redis:",
        "redis:/h",
        "redis://",
        "rediss://h",
        "REDIS://h",
        " redis://h",
        "http://h",
        "h:6379",
        "redis:///0",
        "redis://:7",
        "redis://@",
        "redis://me@",
        "redis://me:secret@/0",
        /* ports */
        "redis://h:",
        "redis://h:0",
        "redis://h:65536",
        "redis://h:99999",
        "redis://h:000080",
        "redis://h:-1",
        "redis://h:+1",
        "redis://h: 1",
        "redis://h:0x10",
        "redis://h:1:2",
        "redis://::1",
        "redis://h:99999999999999999999",
        /* databases */
        "redis://h/x",
        "redis://h/-1",
        "redis://h/65536",
        "redis://h/000001",
        "redis://h/1/2",
        "redis://h/1?x",
        "redis://h//",
        /* hosts */
        "redis://h h",
        "redis://h\n",
        "redis://\th",
        "redis://h?x",
        "redis://h#x",
        "redis://h\"",
        "redis://h\\",
        "redis://[",
        "redis://[]",
        "redis://[::1",
        "redis://[::1]7",
        "redis://[::1]:",
        "redis://[[::1]]",
        "redis://a]",
        /* what %XX may stand for */
        "redis://%@h",
        "redis://%4@h",
        "redis://%4g@h",
        "redis://%g4@h",
        "redis://a%00b@h",
        "redis://me:%00@h",
        "redis://me:%@h",
        "redis://me:%%41@h",
        /* sockets */
        "unix://",
        "unix:///",
        "unix://relative",
        "unix:/run/redis.sock",
        "unix:///s?",
        "unix:///s?db",
        "unix:///s?db=",
        "unix:///s?db=x",
        "unix:///s?db=-1",
        "unix:///s?db=65536",
        "unix:///s?DB=1",
        "unix:///s?db=1&x=2",
        "unix:///s?db=1?db=2",
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        refused(rows[i]);
}

/* Each length is either kept whole or refused, never cut. */
TEST(what_does_not_fit_is_refused_and_not_cut)
{
    static const struct {
        const char *before, *after;
        size_t most;
    } rows[] = {
        {"redis://", "", 255}, {"redis://", "@h", 255},    {"redis://me:", "@h", 1023},     {"redis://:", "@h:7/1", 1023},
        {"unix:///", "", 106}, {"unix:///", "?db=1", 106}, {"redis://[", "]:6379/15", 255},
    };
    char url[2048];
    for (size_t i = 0; i < COUNT(rows); i++)
        for (size_t n = rows[i].most - 1; n <= rows[i].most + 2; n++) {
            (void)snprintf(url, sizeof url, "%s%s%s", rows[i].before, unit_fill(n, 'a'), rows[i].after);
            if (n > rows[i].most) {
                refused(url);
                continue;
            }
            struct nf_redis_opts o = parsed(url);
            size_t longest = strlen(o.host);
            longest = strlen(o.user) > longest ? strlen(o.user) : longest;
            longest = strlen(o.password) > longest ? strlen(o.password) : longest;
            longest = o.unix_path[0] ? strlen(o.unix_path) - 1 : longest;
            expect(longest == n, "%zu of %s...%s are kept as %zu", n, rows[i].before, rows[i].after, longest);
        }
}

TEST(a_password_of_escapes_alone_may_be_as_long_as_any)
{
    char url[4096] = "redis://:";
    for (int i = 0; i < 1023; i++)
        (void)strcat(url, "%41");
    (void)strcat(url, "@h");
    assert_string_equal(parsed(url).password, unit_fill(1023, 'A'));
}

TEST(a_masked_URL_shows_no_password)
{
    static const struct {
        const char *url, *shown;
    } rows[] = {
        {"redis://me:secret@h:7/3", "redis://***@h:7/3"},
        {"redis://:secret@h", "redis://***@h"},
        {"redis://secret@h", "redis://***@h"},
        {"redis://me:sec@ret@h", "redis://***@h"},
        {"redis://me:sec/ret@h", "redis://***@h"},
        {"redis://me:secret@", "redis://***@"},
        {"me:secret@h", "***@h"},
        /* the @ was forgotten, or what follows it */
        {"redis://:secret", "redis://:***"},
        {"redis://me:secret", "redis://me:***"},
        {"redis://me:123456secret", "redis://me:***"},
        {"redis://me:12secret", "redis://me:***"},
        {"redis:secret", "redis:***"},
        {"me:secret", "me:***"},
        {"redis://me:secret/0", "redis://me:***"},
        /* nothing to hide */
        {"redis://h", "redis://h"},
        {"redis://h:6379/0", "redis://h:6379/0"},
        {"redis://[::1]:7", "redis://[::1]:7"},
        {"unix:///run/redis:1.sock", "unix:///run/redis:1.sock"},
        {"", ""},
    };
    char buf[256];
    for (size_t i = 0; i < COUNT(rows); i++) {
        nf_url_mask(rows[i].url, buf, sizeof buf);
        expect(strcmp(buf, rows[i].shown) == 0, "%s is shown as %s", rows[i].url, buf);
        expect(!strstr(buf, "secret") && !strstr(buf, "sec") && !strstr(buf, "ret"), "%s shows as %s", rows[i].url, buf);
    }
}

TEST(a_masked_URL_stays_within_its_buffer)
{
    char buf[9] = "12345678";
    nf_url_mask("redis://me:secret@h", buf, 8);
    assert_string_equal(buf, "redis:/");
    nf_url_mask("redis://a-long-name", buf, 8);
    assert_string_equal(buf, "redis:/");
    nf_url_mask("x:secret", buf, 4);
    assert_string_equal(buf, "x:*");
}

TEST(a_server_is_named_by_its_address_or_its_socket)
{
    static const struct {
        const char *url, *name;
    } rows[] = {
        {"redis://me:secret@h/3", "h:6379"},
        {"redis://[2001:db8::1]:7", "[2001:db8::1]:7"},
        {"unix:///run/redis.sock?db=1", "unix:///run/redis.sock"},
    };
    char buf[400];
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct nf_redis_opts o = parsed(rows[i].url);
        nf_redis_name(&o, buf, sizeof buf);
        assert_string_equal(buf, rows[i].name);
    }
}

UNIT_MAIN(UNIT(each_part_of_a_URL_is_found), UNIT(a_unix_socket_has_a_path_and_perhaps_a_database),
          UNIT(what_is_no_such_URL_is_refused_and_changes_nothing), UNIT(what_does_not_fit_is_refused_and_not_cut),
          UNIT(a_password_of_escapes_alone_may_be_as_long_as_any), UNIT(a_masked_URL_shows_no_password),
          UNIT(a_masked_URL_stays_within_its_buffer), UNIT(a_server_is_named_by_its_address_or_its_socket))
