/*
 * Stands for shim/base/alloc.c in the tests of everything else: each block is one of malloc(), so that AddressSanitizer
 * sees where it ends and whether it is freed.
 */
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

void *nf_malloc(size_t n)
{
    return malloc(n);
}

void *nf_calloc(size_t n, size_t size)
{
    return calloc(n, size);
}

void *nf_realloc(void *p, size_t n)
{
    return realloc(p, n);
}

char *nf_strdup(const char *s)
{
    return strdup(s);
}

void nf_free(void *p)
{
    free(p);
}

void nf_alloc_fork_child(void)
{
}
