/*
 * See unit.h.
 */
#include "unit.h"

#include "base/clock.h"
#include "base/sigs.h"
#include "base/log.h"
#include "base/sys.h"
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEPT_MAX 4096

static char log_text[65536];
static size_t log_len;
static int64_t began_ms;
static uint64_t seed;
static void *kept[KEPT_MAX];
static redisReply *replies[KEPT_MAX];
static size_t n_kept, n_replies;
static int files[64];
static size_t n_files;

static void *keep(void *memory)
{
    assert_non_null(memory);
    assert_true(n_kept < KEPT_MAX);
    kept[n_kept++] = memory;
    return memory;
}

static ssize_t note(int fd, const void *buf, size_t len)
{
    if (fd != 2)
        return write(fd, buf, len);
    if (log_len + len < sizeof log_text) {
        memcpy(log_text + log_len, buf, len);
        log_len += len;
        log_text[log_len] = 0;
    }
    return (ssize_t)len;
}

void unit_log_clear(void)
{
    log_len = 0;
    log_text[0] = 0;
}

const char *unit_log(void)
{
    return log_text;
}

int unit_begin(void **state)
{
    (void)state;
    began_ms = nf_now_ms();
    seed = 42;
    unit_log_clear();
    nf_sigs_block(NULL); /* as all callers in the library do who take a mutex */
    nf_log_start();      /* or it takes what descriptor 2 is here for a data file, and writes to syslog */
    nf_sys.write = note;
    return 0;
}

void unit_forget(void)
{
    while (n_kept)
        free(kept[--n_kept]);
    while (n_replies)
        freeReplyObject(replies[--n_replies]);
    while (n_files)
        (void)close(files[--n_files]);
}

int unit_end(void **state)
{
    (void)state;
    unit_forget();
    print_message("#ms %d\n", (int)(nf_now_ms() - began_ms));
    return 0;
}

const char *unit_file(const void *bytes, size_t len)
{
    char *path = keep(malloc(32));
    int fd = memfd_create("unit", MFD_CLOEXEC);
    assert_true(fd >= 0 && n_files < COUNT(files));
    files[n_files++] = fd;
    assert_int_equal(write(fd, bytes, len), len);
    (void)snprintf(path, 32, "/proc/self/fd/%d", fd);
    return path;
}

char *unit_fill(size_t n, char c)
{
    char *s = keep(malloc(n + 1));
    memset(s, c, n);
    s[n] = 0;
    return s;
}

uint64_t unit_random(void)
{
    /* SplitMix64 */
    uint64_t z = (seed += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

unsigned unit_below(unsigned limit)
{
    return (unsigned)(unit_random() % limit);
}

/* The command's own, which stand in its main.c. */
void *need(void *memory)
{
    assert_non_null(memory);
    return memory;
}

void complain(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(log_text, sizeof log_text, fmt, ap);
    va_end(ap);
    log_len = strlen(log_text);
}

redisReply *unit_reply_bytes(const void *bytes, size_t len)
{
    void *reply = NULL;
    redisReader *reader = redisReaderCreate();
    assert_non_null(reader);
    assert_int_equal(redisReaderFeed(reader, bytes, len), REDIS_OK);
    int r = redisReaderGetReply(reader, &reply);
    redisReaderFree(reader);
    if (r != REDIS_OK || !reply)
        return NULL;
    assert_true(n_replies < KEPT_MAX);
    replies[n_replies++] = reply;
    return reply;
}

/* --- the notation of replies ------------------------------------------------------------------------------------------------- */

/* The length of the word at s: an array counts as a whole. */
static size_t word_len(const char *s)
{
    size_t depth = 0;
    const char *p = s;
    if (*s == '-' && (s[1] < '0' || s[1] > '9'))
        return strlen(s);
    do {
        if (*p == '\'') {
            p = strchr(p + 1, '\'');
            assert_non_null(p);
        }
        depth += *p == '[';
        depth -= *p == ']';
        p++;
    } while (*p && (depth || (*p != ' ' && *p != ']')));
    return (size_t)(p - s);
}

static const char *next_word(const char *s)
{
    return s + strspn(s, " ");
}

static void put_word(FILE *to, const char *s)
{
    size_t len = word_len(s);
    if (*s == '\'') {
        (void)fprintf(to, "$%zu\r\n%.*s\r\n", len - 2, (int)(len - 2), s + 1);
    } else if (strncmp(s, "[nil]", 5) == 0) {
        (void)fputs("*-1\r\n", to);
    } else if (*s == '[') {
        size_t n = 0;
        for (const char *p = next_word(s + 1); *p != ']'; p = next_word(p + word_len(p)))
            n++;
        (void)fprintf(to, "*%zu\r\n", n);
        for (const char *p = next_word(s + 1); *p != ']'; p = next_word(p + word_len(p)))
            put_word(to, p);
    } else if (strncmp(s, "nil", 3) == 0) {
        (void)fputs("$-1\r\n", to);
    } else if (*s == '+' || (*s == '-' && (s[1] < '0' || s[1] > '9'))) {
        (void)fprintf(to, "%.*s\r\n", (int)len, s);
    } else {
        (void)fprintf(to, ":%.*s\r\n", (int)len, s);
    }
}

redisReply *unit_reply(const char *text)
{
    char *bytes = NULL;
    size_t len = 0;
    FILE *to = open_memstream(&bytes, &len);
    assert_non_null(to);
    put_word(to, text);
    assert_int_equal(fclose(to), 0);
    redisReply *reply = unit_reply_bytes(bytes, len);
    free(bytes);
    expect(reply, "hiredis refuses %s", text);
    return reply;
}

const char *unit_spoil(const char *text, size_t round)
{
    /* NULL: the array ends before this word. */
    static const char *const other[] = {"nil", "[]", "[ 1 ]", "[nil]", "+OK", "[ 'x' [ [ ] ] ]", NULL, "7", "'?'"};
    char *out = keep(malloc(strlen(text) + 64));
    size_t which = round / COUNT(other);
    const char *with = other[round % COUNT(other)];
    const char *p = next_word(text + 1);
    for (size_t i = 0; *p != ']' && i < which; i++)
        p = next_word(p + word_len(p));
    if (*p == ']')
        return NULL;
    /* An integer may be 7, a string may be '?': a spoilt one is of another type. */
    bool same = with && ((*with == '\'' && *p == '\'') || (*with == '7' && *p != '\'' && *p != '['));
    (void)sprintf(out, "%.*s%s%s", (int)(p - text), text, with ? (same ? "nil" : with) : "]", with ? p + word_len(p) : "");
    return out;
}
