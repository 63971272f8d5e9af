/*
 * shim/base/alloc.c: our own heap, in the tests of which alone it is linked.
 */
#include "base/alloc.h"

#include "support/unit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static void check_filled(const unsigned char *p, size_t n, unsigned char with)
{
    for (size_t i = 0; i < n; i++)
        expect(p[i] == with, "byte %zu of %zu is %d, not %d", i, n, p[i], with);
}

TEST(a_block_of_any_size_is_aligned_and_all_ours)
{
    static const size_t sizes[] = {0, 1, 31, 32, 33, 4096, 65535, 65536, 65537, 262144, 1000000};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        unsigned char *p = nf_malloc(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        memset(p, 0xff, sizes[i]);
        nf_free(p);
    }
    nf_free(NULL);
}

TEST(what_cannot_be_had_is_refused)
{
    assert_null(nf_malloc(SIZE_MAX));
    assert_null(nf_malloc(SIZE_MAX / 2));
    assert_null(nf_malloc(SIZE_MAX - 8));
    assert_null(nf_calloc(SIZE_MAX, 2));
    assert_null(nf_calloc(SIZE_MAX / 2, 3));
    char *p = nf_strdup("kept");
    assert_null(nf_realloc(p, SIZE_MAX));
    assert_string_equal(p, "kept");
    nf_free(p);
}

TEST(memory_that_was_used_before_is_zeroed_for_calloc)
{
    for (size_t n = 1; n < 70000; n = n * 2 + 1) {
        unsigned char *p = nf_malloc(n);
        memset(p, 0xff, n);
        nf_free(p);
        p = nf_calloc(n, 1);
        check_filled(p, n, 0);
        nf_free(p);
    }
}

TEST(a_block_that_grows_keeps_what_is_in_it)
{
    unsigned char *p = NULL;
    size_t have = 0;
    for (size_t n = 1; n < 300000; n = n * 3 / 2 + 1) {
        p = nf_realloc(p, n);
        assert_non_null(p);
        check_filled(p, have, 0xa5);
        memset(p, 0xa5, n);
        have = n;
    }
    p = nf_realloc(p, 10); /* smaller: nothing is lost */
    check_filled(p, 10, 0xa5);
    nf_free(p);
}

TEST(a_full_block_that_grows_by_a_byte_moves)
{
    for (size_t n = 32; n <= 65536; n *= 2) {
        unsigned char *p = nf_malloc(n);
        memset(p, 0xa5, n);
        unsigned char *q = nf_realloc(p, n + 1);
        assert_ptr_not_equal(q, p);
        check_filled(q, n, 0xa5);
        nf_free(q);
    }
}

#define BLOCKS 200

/* Each block is filled with a byte of its own: were two to overlap, one of them would show it. Returns how often one did. */
static unsigned churn(unsigned rounds, unsigned (*below)(unsigned limit))
{
    struct {
        unsigned char *p;
        size_t n;
        unsigned char with;
    } block[BLOCKS] = {{0}};
    unsigned spoilt = 0;
    for (unsigned round = 0; round < rounds; round++) {
        unsigned i = below(BLOCKS);
        if (block[i].p) {
            for (size_t k = 0; k < block[i].n; k++)
                spoilt += block[i].p[k] != block[i].with;
            nf_free(block[i].p);
            block[i].p = NULL;
        } else {
            block[i].n = below(below(20) ? 300 : 80000);
            block[i].with = (unsigned char)(round | 1);
            block[i].p = nf_malloc(block[i].n);
            memset(block[i].p, block[i].with, block[i].n);
        }
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        nf_free(block[i].p);
    return spoilt;
}

TEST(blocks_at_random_never_overlap)
{
    assert_int_equal(churn(20000, unit_below), 0);
}

static _Thread_local unsigned of_thread;

static unsigned below_of_thread(unsigned limit)
{
    of_thread = of_thread * 1103515245 + 12345;
    return (of_thread >> 8) % limit;
}

static pthread_barrier_t together;
static atomic_uint faults;

/* A failed assertion of cmocka's would leave the thread by longjmp(): faults are counted. */
static void *one_thread(void *arg)
{
    uintptr_t *block[16];
    of_thread = (unsigned)(uintptr_t)arg;
    (void)pthread_barrier_wait(&together);
    for (uintptr_t round = 0; round < 30000; round++) {
        uintptr_t mine = (uintptr_t)arg << 32 | round;
        for (size_t i = 0; i < COUNT(block); i++)
            if ((block[i] = nf_malloc(sizeof *block[i])))
                *block[i] = mine;
        for (size_t i = 0; i < COUNT(block); i++) {
            faults += !block[i] || *block[i] != mine;
            nf_free(block[i]);
        }
    }
    faults += churn(4000, below_of_thread);
    return NULL;
}

TEST(nor_do_those_of_four_threads)
{
    pthread_t thread[4];
    assert_int_equal(pthread_barrier_init(&together, NULL, COUNT(thread)), 0);
    for (uintptr_t i = 0; i < COUNT(thread); i++)
        assert_int_equal(pthread_create(&thread[i], NULL, one_thread, (void *)(i + 1)), 0);
    for (size_t i = 0; i < COUNT(thread); i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_int_equal(faults, 0);
}

TEST(after_a_fork_what_was_free_is_given_up_and_the_rest_stays)
{
    char *p = nf_strdup("kept");
    nf_free(nf_malloc(40));
    nf_alloc_fork_child();
    unsigned char *q = nf_malloc(40);
    memset(q, 0xff, 40);
    assert_string_equal(p, "kept");
    nf_free(q);
    nf_free(p);
}

UNIT_MAIN(UNIT(a_block_of_any_size_is_aligned_and_all_ours), UNIT(what_cannot_be_had_is_refused),
          UNIT(memory_that_was_used_before_is_zeroed_for_calloc), UNIT(a_block_that_grows_keeps_what_is_in_it),
          UNIT(a_full_block_that_grows_by_a_byte_moves), UNIT(blocks_at_random_never_overlap), UNIT(nor_do_those_of_four_threads),
          UNIT(after_a_fork_what_was_free_is_given_up_and_the_rest_stays))
