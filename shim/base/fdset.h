/*
 * Marks on descriptors, readable without a lock and inside a signal handler.
 *
 * A descriptor with any mark is "watched": closing it needs a closer look. The wrapper of close() asks for that, so it
 * must cost next to nothing: one relaxed load while nothing is marked.
 */
#ifndef NF_BASE_FDSET_H
#define NF_BASE_FDSET_H

#include <stdatomic.h>
#include <stdbool.h>

#define NF_WATCH_MAX 65536

enum nf_mark {
    NF_MARK_TENURE,    /* a tenure is known by this descriptor */
    NF_MARK_SHARED,    /* another process may have the same open file description */
    NF_MARK_INHERITED, /* ... namely our parent: it was open when this program started, or when it was forked */
    NF_MARK_OUTSIDE,   /* found to be none of our files */
    NF_MARKS
};

extern atomic_int nf_watch_count;
extern atomic_ulong nf_watch_bits[NF_WATCH_MAX / 64];
extern atomic_bool nf_watch_any;

/* True if closing fd needs a closer look. Descriptors from NF_WATCH_MAX on always do while anything is watched. */
static inline bool nf_watched(int fd)
{
    if (__builtin_expect(atomic_load_explicit(&nf_watch_count, memory_order_relaxed) == 0, 1))
        return false;
    if (atomic_load_explicit(&nf_watch_any, memory_order_relaxed))
        return fd >= 0;
    if ((unsigned)fd >= NF_WATCH_MAX)
        return fd >= 0;
    return atomic_load_explicit(&nf_watch_bits[fd >> 6], memory_order_relaxed) >> (fd & 63) & 1;
}

/* Record locks end with the close of any descriptor of their file: while there are some, all descriptors are watched. */
void nf_watch_all(bool on);

/* Marks other than NF_MARK_TENURE are kept for the numbers below 256 only; setting them beyond has no effect. */
void nf_mark(enum nf_mark kind, int fd);
void nf_unmark(enum nf_mark kind, int fd);
bool nf_marked(enum nf_mark kind, int fd);

/* Everything that is marked as shared now is marked as inherited too. */
void nf_mark_inherited(void);

/* fd's number means something else from now on: all marks but the tenure's go. */
void nf_marks_forget(int fd);

/* `to` is a duplicate of `from`: as shared as that. */
void nf_marks_copy(int from, int to);

/* The lowest watched descriptor from `first` on, up to `last`; -1 if there is none. */
int nf_watch_next(unsigned first, unsigned last);

enum nf_child {
    NF_CHILD_NONE,  /* none: the program starts, and its parent may have all that is open */
    NF_CHILD_FORK,  /* fork(): a child has all that is open */
    NF_CHILD_SPAWN, /* a child has what is not close-on-exec, perhaps under another number than ours */
};

/* Marks as shared what is open now and some other process has, or will have in a moment. */
void nf_share_open(enum nf_child child);

/* fd has been passed to another process, or came from one: it is shared, and so are its duplicates. */
void nf_share(int fd);

/* May another process have fd's open file description? Errs towards yes. */
bool nf_shared(int fd);

#endif
