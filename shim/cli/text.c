/*
 * Escaping: see text.h.
 */
#include "cli/text.h"

#include "cli/cli.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

/* The length of the valid UTF-8 sequence at s (RFC 3629: nothing overlong, no surrogates), 0 if there is none. */
static size_t utf8_next(const char *s, size_t len, uint32_t *cp)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char c = (unsigned char)s[0];
    size_t n = c < 0x80 ? 1 : c >> 5 == 6 ? 2 : c >> 4 == 14 ? 3 : c >> 3 == 30 ? 4 : 0;
    if (n == 0 || n > len)
        return 0;
    *cp = n == 1 ? c : c & (0x7fU >> n);
    for (size_t i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 0;
        *cp = *cp << 6 | ((unsigned char)s[i] & 0x3f);
    }
    return *cp < least[n] || *cp > 0x10ffff || (*cp >= 0xd800 && *cp < 0xe000) ? 0 : n;
}

/* What a terminal acts on: C0, C1, line and paragraph separators, and the marks that turn text around. */
static bool acts(uint32_t cp)
{
    return cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || (cp >= 0x200b && cp <= 0x200f) || (cp >= 0x2028 && cp <= 0x202e) ||
           (cp >= 0x2060 && cp <= 0x206f) || cp == 0xfeff;
}

static void add(struct text *t, const char *s, size_t len, int width)
{
    if (t->len + len + 1 > t->room) {
        t->room = (t->len + len + 1) * 2;
        t->s = need(realloc(t->s, t->room));
    }
    memcpy(t->s + t->len, s, len);
    t->len += len;
    t->s[t->len] = 0;
    t->width += width;
}

void text_clear(struct text *t)
{
    t->len = 0;
    t->width = 0;
    add(t, "", 0, 0);
}

void text_free(struct text *t)
{
    free(t->s);
    *t = (struct text){0};
}

void text_raw(struct text *t, const char *s)
{
    size_t len = strlen(s);
    add(t, s, len, (int)len);
}

static void add_hex(struct text *t, unsigned char c)
{
    char hex[5];
    (void)snprintf(hex, sizeof hex, "\\x%02x", c);
    add(t, hex, 4, 4);
}

static void escape(struct text *t, const char *s, size_t len, bool backslash)
{
    while (len > 0) {
        uint32_t cp = 0;
        size_t n = utf8_next(s, len, &cp);
        if (n == 0 || acts(cp)) {
            n = n ? n : 1;
            for (size_t i = 0; i < n; i++)
                add_hex(t, (unsigned char)s[i]);
        } else if (cp == '\\' && backslash) {
            add(t, "\\\\", 2, 2);
        } else {
            int width = cp < 0x80 ? 1 : wcwidth((wchar_t)cp);
            add(t, s, n, width < 0 ? 1 : width);
        }
        s += n;
        len -= n;
    }
}

void text_safe(struct text *t, const char *s, size_t len)
{
    escape(t, s, len, true);
}

void text_line(struct text *t, const char *s)
{
    escape(t, s, strlen(s), false);
}

void json_string(FILE *to, const char *s, size_t len)
{
    putc('"', to);
    while (len > 0) {
        uint32_t cp = 0;
        size_t n = utf8_next(s, len, &cp);
        if (n == 0 || cp < 0x20 || cp == 0x7f)
            (void)fprintf(to, "\\u%04x", (unsigned char)*s);
        else if (cp == '"' || cp == '\\')
            (void)fprintf(to, "\\%c", (char)cp);
        else
            (void)fwrite(s, 1, n, to);
        n = n ? n : 1;
        s += n;
        len -= n;
    }
    putc('"', to);
}
