/*
 * Two sets of descriptors, readable without a lock and inside a signal handler.
 *
 * "watched": closing it may end a tenure (or its mark below must be wiped). The wrapper of close() asks for this, so it must cost
 * next to nothing: one relaxed load while the set is empty.
 * "shared": another process may have the same open file description, because it was open when this program started
 * or forked. Whether closing it ends a lock only the kernel can tell.
 */
#ifndef NF_BASE_FDSET_H
#define NF_BASE_FDSET_H

#include <stdatomic.h>
#include <stdbool.h>

#define NF_WATCH_MAX 65536

extern atomic_int nf_watch_count;
extern atomic_ulong nf_watch_bits[NF_WATCH_MAX / 64];

/* True if closing fd needs a closer look. Descriptors from NF_WATCH_MAX on always do while anything is watched. */
static inline bool nf_watched(int fd)
{
    if (__builtin_expect(atomic_load_explicit(&nf_watch_count, memory_order_relaxed) == 0, 1))
        return false;
    if ((unsigned)fd >= NF_WATCH_MAX)
        return fd >= 0;
    return atomic_load_explicit(&nf_watch_bits[fd >> 6], memory_order_relaxed) >> (fd & 63) & 1;
}

void nf_watch(int fd);
void nf_unwatch(int fd);

/* The lowest watched descriptor from `first` on, up to `last`; -1 if there is none. */
int nf_watch_next(unsigned first, unsigned last);

/* Marks every descriptor open now as shared (with `inheritable_only`, those without close-on-exec). */
void nf_shared_mark(bool inheritable_only);
void nf_shared_add(int fd);
void nf_shared_forget(int fd);

/* Has fd been marked? (Exact up to the table's size, false beyond.) */
bool nf_shared_marked(int fd);

/*
 * Everything marked as shared so far came from our parent: at the start of the program, and in a forked child.
 * nf_inherited() tells whether fd did; exact up to the table's size, false beyond.
 */
void nf_inherited_mark(void);
bool nf_inherited(int fd);

/* May another process have fd's open file description? Errs towards yes. */
bool nf_shared(int fd);

#endif
