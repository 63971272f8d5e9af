/*
 * shim/cli/text.c: bytes that anybody may have chosen, on a terminal and in JSON.
 */
#include "cli/text.h"

#include "support/unit.h"

#include <stdio.h>
#include <string.h>

static struct text out;

static const char *safe(const char *s, size_t len)
{
    text_clear(&out);
    text_safe(&out, s, len);
    assert_int_equal(strlen(out.s), out.len);
    return out.s;
}

static char *json(const char *s, size_t len)
{
    static char *bytes;
    size_t n = 0;
    free(bytes);
    bytes = NULL;
    FILE *to = open_memstream(&bytes, &n);
    assert_non_null(to);
    json_string(to, s, len);
    assert_int_equal(fclose(to), 0);
    assert_int_equal(strlen(bytes), n);
    return bytes;
}

static size_t utf8(char *s, uint32_t cp)
{
    size_t n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; i-- > 1; cp >>= 6)
        s[i] = (char)(0x80 | (cp & 0x3f));
    s[0] = (char)(first[n] | cp);
    s[n] = 0;
    return n;
}

TEST(text_is_shown_as_it_is_unless_a_terminal_would_obey_it)
{
    static const struct {
        const char *bytes;
        size_t len;
        const char *shown;
    } rows[] = {
        {"", 0, ""},
        {"plain text.", 11, "plain text."},
        {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x94\x92", 9, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x94\x92"},
        {"a\nb\tc\r", 6, "a\\x0ab\\x09c\\x0d"},
        {"\x1b[31m", 5, "\\x1b[31m"},
        {"a\0b", 3, "a\\x00b"},
        {"\x7f", 1, "\\x7f"},
        {"\xc2\x9b", 2, "\\xc2\\x9b"},          /* CSI in one character */
        {"\xe2\x80\xae", 3, "\\xe2\\x80\\xae"}, /* right to left */
        {"\xe2\x80\xa8", 3, "\\xe2\\x80\\xa8"}, /* line separator */
        {"\xef\xbb\xbf", 3, "\\xef\\xbb\\xbf"},
        {"a\\b", 3, "a\\\\b"},
        {"\\x1b", 4, "\\\\x1b"},
        /* no UTF-8 */
        {"\xff", 1, "\\xff"},
        {"\x80", 1, "\\x80"},
        {"\xc3", 1, "\\xc3"},
        {"\xc3(", 2, "\\xc3("},
        {"\xe2\x82", 2, "\\xe2\\x82"},
        {"\xc0\x80", 2, "\\xc0\\x80"}, /* overlong */
        {"\xe0\x80\xaf", 3, "\\xe0\\x80\\xaf"},
        {"\xed\xa0\x80", 3, "\\xed\\xa0\\x80"},          /* a surrogate */
        {"\xf4\x90\x80\x80", 4, "\\xf4\\x90\\x80\\x80"}, /* beyond Unicode */
        {"\xf8\x88\x80\x80\x80", 5, "\\xf8\\x88\\x80\\x80\\x80"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *shown = safe(rows[i].bytes, rows[i].len);
        expect(strcmp(shown, rows[i].shown) == 0, "row %zu is shown as %s", i, shown);
    }
    text_free(&out);
}

/* Takes the escapes out again; -1 for what is none. */
static ssize_t unescape(const char *s, char *to)
{
    size_t n = 0;
    while (*s) {
        unsigned c;
        if (*s != '\\') {
            to[n++] = *s++;
        } else if (s[1] == '\\') {
            to[n++] = '\\';
            s += 2;
        } else if (sscanf(s, "\\x%2x", &c) == 1) {
            to[n++] = (char)c;
            s += 4;
        } else {
            return -1;
        }
    }
    return (ssize_t)n;
}

TEST(every_character_is_shown_or_escaped_and_comes_back)
{
    char bytes[8];
    char back[64];
    size_t escaped = 0;
    for (uint32_t cp = 1; cp < 0x30000; cp++) {
        if (cp >= 0xd800 && cp < 0xe000)
            continue;
        size_t n = utf8(bytes, cp);
        const char *shown = safe(bytes, n);
        expect(unescape(shown, back) == (ssize_t)n && memcmp(back, bytes, n) == 0, "U+%04X is shown as %s", cp, shown);
        escaped += cp != '\\' && shown[0] == '\\';
        if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == 0x202e || cp == 0x2066)
            expect(shown[0] == '\\', "U+%04X is shown as it is", cp);
        if (cp >= 0x20 && cp < 0x7f)
            expect(shown[0] == (char)cp, "%c is escaped", (int)cp);
    }
    assert_in_range(escaped, 31 + 33 + 9, 100);
    text_free(&out);
}

TEST(bytes_at_random_come_back_and_never_reach_a_terminal)
{
    char bytes[24];
    char back[200];
    for (int round = 0; round < 30000; round++) {
        size_t n = unit_below(sizeof bytes);
        char *copy = malloc(n + 1);
        for (size_t i = 0; i < n; i++)
            bytes[i] = copy[i] = unit_below(3) ? (char)unit_random() : "\x1b\xe2\x80\xc2\\"[unit_below(5)];
        copy = realloc(copy, n ? n : 1); /* not ended by NUL: a sanitizer sees what reads on */
        const char *shown = safe(copy, n);
        expect(unescape(shown, back) == (ssize_t)n && memcmp(back, bytes, n) == 0, "round %d: %s", round, shown);
        for (const char *p = shown; *p; p++)
            expect((unsigned char)*p >= ' ' && *p != 0x7f, "round %d: byte %d", round, *p);
        for (const char *p = json(copy, n); *p; p++)
            expect((unsigned char)*p >= ' ' && *p != 0x7f, "round %d: byte %d in JSON", round, *p);
        free(copy);
    }
    text_free(&out);
}

TEST(a_line_keeps_its_backslashes)
{
    text_clear(&out);
    text_line(&out, "a\\b\n\x1b");
    assert_string_equal(out.s, "a\\b\\x0a\\x1b");
    text_free(&out);
}

TEST(the_width_is_counted_as_text_grows)
{
    text_clear(&out);
    assert_string_equal(out.s, "");
    text_raw(&out, "abc");
    text_safe(&out, "\x1b", 1);
    text_safe(&out, "\\", 1);
    assert_string_equal(out.s, "abc\\x1b\\\\");
    assert_int_equal(out.width, 9);
    for (int i = 0; i < 1000; i++)
        text_raw(&out, "0123456789");
    assert_int_equal(out.len, 10009);
    assert_int_equal(out.width, 10009);
    text_clear(&out);
    assert_true(out.len == 0 && out.width == 0 && out.s[0] == 0);
    text_free(&out);
    assert_null(out.s);
}

TEST(a_string_in_JSON_is_one)
{
    static const struct {
        const char *bytes;
        size_t len;
        const char *json;
    } rows[] = {
        {"", 0, "\"\""},
        {"plain", 5, "\"plain\""},
        {"\"\\/", 3, "\"\\\"\\\\/\""},
        {"\n\t\x1f\x7f", 4, "\"\\u000a\\u0009\\u001f\\u007f\""},
        {"a\0b", 3, "\"a\\u0000b\""},
        {"\xc3\xa4\xf0\x9f\x94\x92", 6, "\"\xc3\xa4\xf0\x9f\x94\x92\""},
        {"\xff\xc3", 2, "\"\\u00ff\\u00c3\""},
        {"\xed\xa0\x80", 3, "\"\\u00ed\\u00a0\\u0080\""},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *is = json(rows[i].bytes, rows[i].len);
        expect(strcmp(is, rows[i].json) == 0, "row %zu is %s", i, is);
    }
}

UNIT_MAIN(UNIT(text_is_shown_as_it_is_unless_a_terminal_would_obey_it), UNIT(every_character_is_shown_or_escaped_and_comes_back),
          UNIT(bytes_at_random_come_back_and_never_reach_a_terminal), UNIT(a_line_keeps_its_backslashes),
          UNIT(the_width_is_counted_as_text_grows), UNIT(a_string_in_JSON_is_one))
