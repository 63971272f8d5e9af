/*
 * What the unit tests share. A file of tests is: includes (the code under test first: cmocka has macros with short
 * names), TEST(name) { ... }, and in the end UNIT_MAIN with all of them, each as UNIT(name).
 *
 * A name is a sentence about what must hold, for tests/unit/run prints it. Tests are pure: no Redis, no network, no sleep.
 */
#ifndef NF_TESTS_UNIT_H
#define NF_TESTS_UNIT_H

#include <hiredis/hiredis.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#define TEST(name) static void name(void **state __attribute__((unused)))
#define UNIT(name) cmocka_unit_test_setup_teardown(name, unit_begin, unit_end)
#define UNIT_MAIN(...)                                            \
    int main(void)                                                \
    {                                                             \
        const struct CMUnitTest tests[] = {__VA_ARGS__};          \
        return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0; \
    }

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* Like assert_true(), with words: in a loop over a table they say which row it was. */
#define expect(condition, ...)     \
    do {                           \
        if (!(condition))          \
            fail_msg(__VA_ARGS__); \
    } while (0)

/* These do not return, which cmocka's header does not say: a static analyzer would go on. */
void _fail(const char *file, int line) __attribute__((noreturn));
#undef assert_true
#define assert_true(condition) expect(condition, "%s", #condition)
#undef assert_false
#define assert_false(condition) expect(!(condition), "not %s", #condition)
#undef assert_non_null
#define assert_non_null(pointer) expect((pointer) != NULL, "%s is NULL", #pointer)

int unit_begin(void **state);
int unit_end(void **state);

/* The value of something that is only to be looked at with the table locked. */
#define TABLE(what)                  \
    ({                               \
        nf_table_lock();             \
        __typeof__(what) is_ = what; \
        nf_table_unlock();           \
        is_;                         \
    })

/* What nf_log() has written since the test began, or since unit_log_clear(). */
const char *unit_log(void);
void unit_log_clear(void);

/* The path of a file in memory with these bytes; gone when the test ends. */
const char *unit_file(const void *bytes, size_t len);

/* Frees all that was made for this test so far. */
void unit_forget(void);

/*
 * The reply that hiredis makes of what a server would send. In `text`, words are separated by blanks: 5 an integer, 'x' a
 * string, nil, +x a status, -x an error (to the end of the text), [ ... ] an array, [nil] a missing one. Freed when the test ends.
 */
redisReply *unit_reply(const char *text);
/* The same of the protocol's own bytes; NULL if hiredis refuses them. */
redisReply *unit_reply_bytes(const void *bytes, size_t len);

/*
 * One after the other, `text` with one of its words (see unit_reply) made something else, or missing, or with one more: `round`
 * counts from 0; NULL when there is nothing left to spoil.
 */
const char *unit_spoil(const char *text, size_t round);

/* Numbers that are the same in each run. */
uint64_t unit_random(void);
unsigned unit_below(unsigned limit);

/* n times c; gone when the test ends. */
char *unit_fill(size_t n, char c);

#endif
