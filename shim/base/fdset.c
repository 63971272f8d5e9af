/*
 * See fdset.h. All of it is atomic loads and stores: no lock, no allocation.
 */
#include "base/fdset.h"

#include "base/sys.h"

#include <fcntl.h>

/* Beyond the numbers that programs really use, nf_shared() guesses on the safe side. */
#define SMALL_MAX 256

atomic_int nf_watch_count;
atomic_ulong nf_watch_bits[NF_WATCH_MAX / 64];
atomic_bool nf_watch_any;

static atomic_ulong tenure_bits[NF_WATCH_MAX / 64];
static atomic_ulong small_bits[NF_MARKS][SMALL_MAX / 64];
static atomic_bool forked; /* this process has forked, or is a fork: numbers beyond SMALL_MAX may be shared */

static bool set_bit(atomic_ulong *bits, int fd)
{
    unsigned long bit = 1UL << (fd & 63);
    return !(atomic_fetch_or_explicit(&bits[fd >> 6], bit, memory_order_relaxed) & bit);
}

static bool clear_bit(atomic_ulong *bits, int fd)
{
    unsigned long bit = 1UL << (fd & 63);
    return atomic_fetch_and_explicit(&bits[fd >> 6], ~bit, memory_order_relaxed) & bit;
}

/* The bits of a kind, NULL where fd has none. */
static atomic_ulong *bits_of(enum nf_mark kind, int fd)
{
    if (fd < 0 || fd >= (kind == NF_MARK_TENURE ? NF_WATCH_MAX : SMALL_MAX))
        return NULL;
    return kind == NF_MARK_TENURE ? tenure_bits : small_bits[kind];
}

void nf_watch_all(bool on)
{
    atomic_store_explicit(&nf_watch_any, on, memory_order_relaxed);
    atomic_fetch_add_explicit(&nf_watch_count, on ? 1 : -1, memory_order_relaxed);
}

bool nf_marked(enum nf_mark kind, int fd)
{
    atomic_ulong *bits = bits_of(kind, fd);
    return bits && atomic_load_explicit(&bits[fd >> 6], memory_order_relaxed) >> (fd & 63) & 1;
}

void nf_mark(enum nf_mark kind, int fd)
{
    atomic_ulong *bits = bits_of(kind, fd);
    if (!bits) {
        /* A tenure beyond all bits: from now on every such number is watched. */
        if (fd >= 0 && kind == NF_MARK_TENURE)
            atomic_fetch_add_explicit(&nf_watch_count, 1, memory_order_relaxed);
        return;
    }
    (void)set_bit(bits, fd);
    if (set_bit(nf_watch_bits, fd))
        atomic_fetch_add_explicit(&nf_watch_count, 1, memory_order_relaxed);
}

void nf_unmark(enum nf_mark kind, int fd)
{
    atomic_ulong *bits = bits_of(kind, fd);
    if (!bits || !clear_bit(bits, fd))
        return;
    for (int other = 0; other < NF_MARKS; other++)
        if (nf_marked((enum nf_mark)other, fd))
            return;
    if (clear_bit(nf_watch_bits, fd))
        atomic_fetch_sub_explicit(&nf_watch_count, 1, memory_order_relaxed);
}

void nf_mark_inherited(void)
{
    for (int fd = 0; fd < SMALL_MAX; fd++)
        if (nf_marked(NF_MARK_SHARED, fd))
            nf_mark(NF_MARK_INHERITED, fd);
}

void nf_marks_forget(int fd)
{
    nf_unmark(NF_MARK_SHARED, fd);
    nf_unmark(NF_MARK_INHERITED, fd);
    nf_unmark(NF_MARK_OUTSIDE, fd);
}

void nf_marks_copy(int from, int to)
{
    if (nf_marked(NF_MARK_SHARED, from))
        nf_mark(NF_MARK_SHARED, to);
    if (nf_marked(NF_MARK_INHERITED, from))
        nf_mark(NF_MARK_INHERITED, to);
    if (from >= SMALL_MAX && to < SMALL_MAX && nf_shared(from))
        nf_mark(NF_MARK_SHARED, to);
}

int nf_watch_next(unsigned first, unsigned last)
{
    if (atomic_load_explicit(&nf_watch_count, memory_order_relaxed) == 0)
        return -1;
    if (last >= NF_WATCH_MAX)
        last = NF_WATCH_MAX - 1;
    for (unsigned fd = first; fd <= last;) {
        unsigned long word = atomic_load_explicit(&nf_watch_bits[fd >> 6], memory_order_relaxed) >> (fd & 63);
        if (word == 0) {
            fd = (fd | 63) + 1;
            continue;
        }
        fd += (unsigned)__builtin_ctzl(word);
        return fd <= last ? (int)fd : -1;
    }
    return -1;
}

/* Which of the numbers below SMALL_MAX are open: one system call. Where it may not ask for so many, all may be. */
static void poll_open(struct pollfd *p)
{
    for (int i = 0; i < SMALL_MAX; i++)
        p[i] = (struct pollfd){.fd = i};
    if (nf_sys.poll(p, SMALL_MAX, 0) < 0)
        for (int i = 0; i < SMALL_MAX; i++)
            p[i].revents = 0;
}

/* Other numbers of ours may stand for fd's description too: all of the same file are taken to. */
static void share_twins(const struct pollfd *open, int fd)
{
    struct stat st;
    if (nf_sys.fstat(fd, &st) < 0 || (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)))
        return;
    for (int i = 0; i < SMALL_MAX; i++)
        if (i != fd && !(open[i].revents & POLLNVAL) && !nf_marked(NF_MARK_SHARED, i) && nf_fd_is(i, st.st_dev, st.st_ino))
            nf_mark(NF_MARK_SHARED, i);
}

void nf_share(int fd)
{
    struct pollfd p[SMALL_MAX];
    poll_open(p);
    nf_mark(NF_MARK_SHARED, fd);
    share_twins(p, fd);
}

void nf_share_open(enum nf_child child)
{
    struct pollfd p[SMALL_MAX];
    poll_open(p);
    if (child == NF_CHILD_FORK)
        atomic_store_explicit(&forked, true, memory_order_relaxed);
    for (int i = 0; i < SMALL_MAX; i++) {
        if (p[i].revents & POLLNVAL)
            continue;
        if (child == NF_CHILD_SPAWN && (nf_sys.fcntl(i, F_GETFD, 0) & FD_CLOEXEC))
            continue;
        nf_mark(NF_MARK_SHARED, i);
        if (child == NF_CHILD_SPAWN)
            share_twins(p, i);
    }
}

bool nf_shared(int fd)
{
    if (fd < 0)
        return true;
    if (fd < SMALL_MAX)
        return nf_marked(NF_MARK_SHARED, fd);
    if (atomic_load_explicit(&forked, memory_order_relaxed))
        return true;
    /* A descriptor that came through exec cannot be close-on-exec. */
    int flags = nf_sys.fcntl(fd, F_GETFD, 0);
    return flags < 0 || !(flags & FD_CLOEXEC);
}
