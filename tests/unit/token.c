/*
 * shim/base/identity.c: tokens as they are made, and as they come back from Redis, where anybody may have put them.
 */
#include "base/identity.c"

#include "support/unit.h"

#include <ctype.h>

static const char *host = "web-1";

/* Stands for the C library's: the name of a host is anybody's choice. */
int uname(struct utsname *out)
{
    if (!host)
        return -1;
    memset(out, 0, sizeof *out);
    (void)strlcpy(out->nodename, host, sizeof out->nodename);
    return 0;
}

static pid_t largest_pid(void)
{
    return 4194304;
}

static void call_me(const char *name)
{
    assert_int_equal(prctl(PR_SET_NAME, name, 0, 0, 0), 0);
}

static void check_printable(const char *token)
{
    for (const char *p = token; *p; p++)
        expect((unsigned char)*p > ' ' && (unsigned char)*p < 0x7f && *p != '"' && *p != '\\', "byte %d in %s", *p, token);
}

TEST(a_token_tells_who_made_it)
{
    char token[NF_TOKEN_MAX];
    struct nf_token_info info;
    host = "web-1";
    call_me("backup");
    int64_t before = nf_wall_ms();
    int n = nf_token_make(token, "", 0xfd01, 0x123456789a);
    assert_int_equal(n, 4 + 32 + 1 + 4 + 1 + 10 + 1);
    assert_memory_equal(token + n - 17, ":fd01:123456789a:", 17);
    assert_int_equal(nf_token_parse(token, &info), 0);
    assert_int_equal(info.identity_len, n);
    assert_string_equal(info.host, "web-1");
    assert_string_equal(info.command, "backup");
    assert_int_equal(info.pid, getpid());
    assert_true(info.start_ms >= before && info.start_ms <= nf_wall_ms());
}

TEST(two_tokens_of_one_file_have_the_same_identity_and_are_not_the_same)
{
    char a[NF_TOKEN_MAX];
    char b[NF_TOKEN_MAX];
    int n = nf_token_make(a, "", 1, 2);
    assert_int_equal(nf_token_make(b, "", 1, 2), n);
    assert_memory_equal(a, b, (size_t)n);
    assert_string_not_equal(a, b);
    assert_true(memcmp(a + n, b + n, 32) != 0);
    assert_int_equal(strcspn(a + n, ":"), 32);
}

TEST(files_hosts_and_the_extra_name_make_other_identities)
{
    char a[NF_TOKEN_MAX];
    char b[NF_TOKEN_MAX];
    int n = nf_token_make(a, "", 1, 0x23);
    static const struct {
        const char *extra;
        dev_t dev;
        ino_t ino;
    } rows[] = {{"", 1, 0x24}, {"", 2, 0x23}, {"", 0x12, 3}, {"x", 1, 0x23}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        int m = nf_token_make(b, rows[i].extra, rows[i].dev, rows[i].ino);
        expect(m != n || memcmp(a, b, (size_t)n) != 0, "row %zu", i);
        /* One may not be the beginning of the other either. */
        expect(memcmp(a, b, (size_t)(m < n ? m : n)) != 0, "row %zu", i);
    }
    assert_non_null(strstr(b, "-x:1:23:"));
}

TEST(the_longest_token_is_whole)
{
    char token[NF_TOKEN_MAX];
    struct nf_token_info info;
    pid_t (*getpid_before)(void) = nf_sys.getpid;
    nf_sys.getpid = largest_pid;
    host = unit_fill(64, 'h');
    call_me("fifteen-letters");
    int n = nf_token_make_as(token, unit_fill(64, 'e'), UINT64_MAX, UINT64_MAX, unit_fill(80, 'n'));
    nf_sys.getpid = getpid_before;
    assert_int_equal(strlen(token), NF_TOKEN_MAX - 1);
    assert_int_equal(nf_token_parse(token, &info), 0);
    assert_int_equal(info.identity_len, n);
    assert_string_equal(info.host, host);
    assert_string_equal(info.command, "fifteen-letters");
    assert_int_equal(info.pid, 4194304);
    assert_true(info.start_ms > 0 && nf_wall_ms() - info.start_ms < 60000);
}

TEST(hostile_names_of_hosts_and_programs_stay_within_their_fields)
{
    static const char *const names[] = {
        "", ":", "a:b:c", "\n", "a b", "\"quoted\"", "back\\slash", "\x1b[31mred", "\x7f\xff\xc3\xa4", "::::::::::"};
    char token[NF_TOKEN_MAX] = "";
    struct nf_token_info info;
    for (size_t i = 0; i < COUNT(names); i++)
        for (int which = 0; which < 2; which++) {
            host = which ? names[i] : "h";
            call_me(which ? "c" : names[i]);
            int n = nf_token_make(token, "", 1, 2);
            check_printable(token);
            expect(nf_token_parse(token, &info) == 0 && info.identity_len == n, "%s", token);
            expect(info.host[0] && info.command[0], "an empty field in %s", token);
            expect(info.pid == getpid(), "%s", token);
        }
    host = NULL;
    (void)nf_token_make(token, "", 1, 2);
    assert_int_equal(nf_token_parse(token, &info), 0);
    assert_string_equal(info.host, "_");
}

TEST(a_token_comes_apart_again)
{
    struct nf_token_info info;
    assert_int_equal(nf_token_parse("nf1:b:1:2:n:h:7:c:1000", &info), 0);
    assert_string_equal(info.host, "h");
    assert_string_equal(info.command, "c");
    assert_int_equal(info.pid, 7);
    assert_int_equal(info.start_ms, 1000);
    assert_int_equal(info.identity_len, strlen("nf1:b:1:2:"));
}

TEST(what_is_no_token_is_refused_and_changes_nothing)
{
    static const char *const rows[] = {
        "",
        "nf1",
        "nf1:",
        "nf2:b:1:2:n:h:7:c:1000",
        "NF1:b:1:2:n:h:7:c:1000",
        " nf1:b:1:2:n:h:7:c:1000",
        "nf1::::::::",
        "nf1:b:1:2:n:h:7:c",
        "nf1:b:1:2:n:h:7:c:",
        "nf1:b:1:2:n:h::c:1000",
        "nf1:b:1:2:n:h:x:c:1000",
        "nf1:b:1:2:n:h:7x:c:1000",
        "nf1:b:1:2:n:h:7 :c:1000",
        "nf1:b:1:2:n:h:7:c:x",
        "nf1:b:1:2:n:h:7:c:1000x",
        "nf1:b:1:2:n:h:7:c:1000 ",
        "nf1:b:1:2:n:h:7:c:1000\n",
        "nf1:b:1:2:n:h:7:c:1000:",
        "nf1:b:1:2:n:h:7:c:1000:more",
        "nf1:b:1:2:n:h:7:c:d:1000",
        "nf1:b:1:2:n:h:c:7:1000",
        "8f14e45fceea167a5a36dedd4bea2543",
        "{\"owner\":\"x\"}",
    };
    struct nf_token_info before;
    memset(&before, 0x5a, sizeof before);
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct nf_token_info info = before;
        expect(nf_token_parse(rows[i], &info) == -EINVAL, "%s is taken", rows[i]);
        expect(memcmp(&info, &before, sizeof info) == 0, "%s changes something", rows[i]);
    }
}

TEST(a_token_with_fields_that_are_too_long_is_refused)
{
    char token[1024];
    struct nf_token_info info;
    for (size_t n = 63; n <= 66; n++) {
        (void)snprintf(token, sizeof token, "nf1:b:1:2:n:%s:7:c:1000", unit_fill(n, 'h'));
        expect(nf_token_parse(token, &info) == (n <= 64 ? 0 : -EINVAL), "a host of %zu", n);
        (void)snprintf(token, sizeof token, "nf1:b:1:2:n:h:7:%s:1000", unit_fill(n, 'c'));
        expect(nf_token_parse(token, &info) == (n <= 64 ? 0 : -EINVAL), "a command of %zu", n);
    }
    for (size_t n = NF_TOKEN_MAX - 2; n <= NF_TOKEN_MAX + 1; n++) {
        (void)snprintf(token, sizeof token, "nf1:b:1:2:%s:h:7:c:1000", unit_fill(n - 21, 'n'));
        assert_int_equal(strlen(token), n);
        expect(nf_token_parse(token, &info) == (n < NF_TOKEN_MAX ? 0 : -EINVAL), "a token of %zu", n);
    }
}

/* Every prefix of a token, and every token with one byte changed, is taken apart or refused: nothing is read beyond its end. */
TEST(a_token_that_is_cut_or_garbled_does_no_harm)
{
    static const char good[] = "nf1:8f14e45fceea167a5a36dedd4bea2543:fd01:1234:nonce:host:7:command:1700000000000";
    static const char bytes[] = {':', '\n', '\x1b', '\xff', '-', '9', ' ', 'e'};
    struct nf_token_info info;
    size_t refused = 0;
    for (size_t n = 0; n < sizeof good - 1; n++) {
        char *copy = strndup(good, n); /* its end is one for a sanitizer */
        refused += nf_token_parse(copy, &info) < 0;
        free(copy);
        for (size_t k = 0; k < COUNT(bytes); k++) {
            copy = strdup(good);
            copy[n] = bytes[k];
            if (nf_token_parse(copy, &info) == 0)
                expect(strlen(info.host) < NF_FIELD_MAX && info.identity_len <= (int)strlen(copy), "%s", copy);
            else
                refused++;
            free(copy);
        }
    }
    assert_in_range(refused, sizeof good - 1 - 13, 8 * sizeof good); /* at least all those that lack a field */
}

TEST(numbers_beyond_all_bounds_are_taken_as_the_largest)
{
    struct nf_token_info info = {0};
    assert_int_equal(nf_token_parse("nf1:b:1:2:n:h:99999999999999999999:c:99999999999999999999", &info), 0);
    assert_true(info.pid == INT64_MAX && info.start_ms == INT64_MAX);
    assert_int_equal(nf_token_parse("nf1:b:1:2:n:h:-99999999999999999999:c:-1", &info), 0);
    assert_true(info.pid == INT64_MIN && info.start_ms == -1);
}

UNIT_MAIN(UNIT(a_token_tells_who_made_it), UNIT(two_tokens_of_one_file_have_the_same_identity_and_are_not_the_same),
          UNIT(files_hosts_and_the_extra_name_make_other_identities), UNIT(the_longest_token_is_whole),
          UNIT(hostile_names_of_hosts_and_programs_stay_within_their_fields), UNIT(a_token_comes_apart_again),
          UNIT(what_is_no_token_is_refused_and_changes_nothing), UNIT(a_token_with_fields_that_are_too_long_is_refused),
          UNIT(a_token_that_is_cut_or_garbled_does_no_harm), UNIT(numbers_beyond_all_bounds_are_taken_as_the_largest))
