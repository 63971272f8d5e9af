/*
 * A small heap of our own, for what a close() in a signal handler may need: the program's malloc() may be the very
 * function that the signal has interrupted. hiredis is linked so that it allocates here (Makefile).
 *
 * Callers have all signals blocked, so the heap's lock is never met by a handler in the same thread.
 */
#ifndef NF_BASE_ALLOC_H
#define NF_BASE_ALLOC_H

#include <stddef.h>

void *nf_malloc(size_t n);
void *nf_calloc(size_t n, size_t size);
void *nf_realloc(void *p, size_t n);
char *nf_strdup(const char *s);
void nf_free(void *p);

/* In a forked child: another thread of the parent may have been inside. What was free then is given up. */
void nf_alloc_fork_child(void);

#endif
