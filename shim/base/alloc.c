/*
 * See alloc.h. Blocks come in powers of two from 32 bytes to 64 KB, with free lists; larger ones are mapped each.
 */
#include "base/alloc.h"

#include "base/pages.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#define MIN_SHIFT 5
#define MAX_SHIFT 16
#define CHUNK (256UL * 1024)

/* In front of each block; its size keeps the block aligned for anything. */
struct head {
    size_t size; /* of the block without this */
    struct head *next;
};

static atomic_flag lock = ATOMIC_FLAG_INIT;
static struct head *free_list[MAX_SHIFT + 1];
static char *chunk;
static size_t chunk_left;

static void take_lock(void)
{
    while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire))
        (void)sched_yield();
}

static void give_lock(void)
{
    atomic_flag_clear_explicit(&lock, memory_order_release);
}

/* The smallest class that holds n bytes; 0 if none does. */
static int class_of(size_t n)
{
    for (int shift = MIN_SHIFT; shift <= MAX_SHIFT; shift++)
        if (n <= (size_t)1 << shift)
            return shift;
    return 0;
}

static struct head *carve(size_t size)
{
    size_t whole = size + sizeof(struct head);
    if (chunk_left < whole) {
        chunk = nf_pages_get(CHUNK);
        chunk_left = chunk ? CHUNK : 0;
    }
    if (!chunk)
        return NULL;
    struct head *h = (struct head *)(void *)chunk;
    chunk += whole;
    chunk_left -= whole;
    h->size = size;
    return h;
}

void *nf_malloc(size_t n)
{
    int shift = class_of(n);
    struct head *h;
    if (n > PTRDIFF_MAX - sizeof *h)
        return NULL;
    if (shift == 0) {
        h = nf_pages_get(n + sizeof *h);
        if (h)
            h->size = n;
        return h ? h + 1 : NULL;
    }
    take_lock();
    h = free_list[shift];
    if (h)
        free_list[shift] = h->next;
    else
        h = carve((size_t)1 << shift);
    give_lock();
    return h ? h + 1 : NULL;
}

void *nf_calloc(size_t n, size_t size)
{
    size_t whole;
    void *p = __builtin_mul_overflow(n, size, &whole) ? NULL : nf_malloc(whole);
    return p ? memset(p, 0, whole) : NULL;
}

void nf_free(void *p)
{
    if (!p)
        return;
    struct head *h = (struct head *)p - 1;
    int shift = class_of(h->size);
    if (shift == 0) {
        nf_pages_put(h, h->size + sizeof *h);
        return;
    }
    take_lock();
    h->next = free_list[shift];
    free_list[shift] = h;
    give_lock();
}

void *nf_realloc(void *p, size_t n)
{
    if (!p)
        return nf_malloc(n);
    const struct head *h = (struct head *)p - 1;
    if (n <= h->size)
        return p;
    void *q = nf_malloc(n);
    if (q) {
        memcpy(q, p, h->size);
        nf_free(p);
    }
    return q;
}

char *nf_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = nf_malloc(n);
    return p ? memcpy(p, s, n) : NULL;
}

void nf_alloc_fork_child(void)
{
    memset(free_list, 0, sizeof free_list);
    chunk = NULL;
    chunk_left = 0;
    give_lock();
}
