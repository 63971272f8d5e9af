/*
 * Memory straight from the kernel. The hand-over to the keeper also runs in _exit() and fork(), which a signal handler
 * may call in the middle of the program's malloc().
 */
#ifndef NF_BASE_PAGES_H
#define NF_BASE_PAGES_H

#include <stddef.h>

/* n bytes, zeroed; NULL when there are none. Safe in a signal handler. */
void *nf_pages_get(size_t n);
/* Gives back what nf_pages_get(n) returned; NULL does nothing. */
void nf_pages_put(void *p, size_t n);

#endif
