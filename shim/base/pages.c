/*
 * See pages.h.
 */
#include "base/pages.h"

#include <sys/mman.h>

void *nf_pages_get(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void nf_pages_put(void *p, size_t n)
{
    if (p)
        (void)munmap(p, n);
}
