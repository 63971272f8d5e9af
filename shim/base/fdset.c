/*
 * See fdset.h. All of it is atomic loads and stores: no lock, no allocation.
 */
#include "base/fdset.h"

#include "base/sys.h"

#include <fcntl.h>

/* Marks are kept for the numbers that programs really use; beyond them nf_shared() guesses on the safe side. */
#define SHARED_MAX 256

atomic_int nf_watch_count;
atomic_ulong nf_watch_bits[NF_WATCH_MAX / 64];

static atomic_ulong shared_bits[SHARED_MAX / 64];
static atomic_ulong inherited_bits[SHARED_MAX / 64];
static atomic_bool marked; /* this process has forked, or is a fork: numbers beyond SHARED_MAX may be shared */

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

void nf_watch(int fd)
{
    if (fd < 0)
        return;
    if (fd >= NF_WATCH_MAX || set_bit(nf_watch_bits, fd))
        atomic_fetch_add_explicit(&nf_watch_count, 1, memory_order_relaxed);
}

bool nf_shared_marked(int fd)
{
    return fd >= 0 && fd < SHARED_MAX && atomic_load_explicit(&shared_bits[fd >> 6], memory_order_relaxed) >> (fd & 63) & 1;
}

/* A shared mark must be wiped when its descriptor is closed: it keeps the number watched. */
void nf_unwatch(int fd)
{
    if (fd < 0 || nf_shared_marked(fd))
        return;
    if (fd >= NF_WATCH_MAX || clear_bit(nf_watch_bits, fd))
        atomic_fetch_sub_explicit(&nf_watch_count, 1, memory_order_relaxed);
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

void nf_shared_add(int fd)
{
    if (fd >= 0 && fd < SHARED_MAX) {
        (void)set_bit(shared_bits, fd);
        nf_watch(fd);
    } else {
        atomic_store_explicit(&marked, true, memory_order_relaxed);
    }
}

void nf_shared_mark(bool inheritable_only)
{
    struct pollfd p[SHARED_MAX];
    for (int i = 0; i < SHARED_MAX; i++)
        p[i] = (struct pollfd){.fd = i};
    if (!inheritable_only)
        atomic_store_explicit(&marked, true, memory_order_relaxed);
    /* One system call tells which of them are open. */
    if (nf_sys.poll(p, SHARED_MAX, 0) < 0)
        for (int i = 0; i < SHARED_MAX; i++)
            p[i].revents = 0;
    for (int i = 3; i < SHARED_MAX; i++) {
        if (p[i].revents & POLLNVAL)
            continue;
        if (inheritable_only && (nf_sys.fcntl(i, F_GETFD, 0) & FD_CLOEXEC))
            continue;
        nf_shared_add(i);
    }
}

void nf_inherited_mark(void)
{
    for (int i = 0; i < SHARED_MAX / 64; i++)
        atomic_store_explicit(&inherited_bits[i], atomic_load_explicit(&shared_bits[i], memory_order_relaxed), memory_order_relaxed);
}

bool nf_inherited(int fd)
{
    return fd >= 0 && fd < SHARED_MAX && atomic_load_explicit(&inherited_bits[fd >> 6], memory_order_relaxed) >> (fd & 63) & 1;
}

void nf_shared_forget(int fd)
{
    if (fd >= 0 && fd < SHARED_MAX)
        (void)clear_bit(inherited_bits, fd);
    if (fd >= 0 && fd < SHARED_MAX && clear_bit(shared_bits, fd))
        nf_unwatch(fd);
}

bool nf_shared(int fd)
{
    if (fd < 0)
        return true;
    if (fd < SHARED_MAX)
        return nf_shared_marked(fd);
    if (atomic_load_explicit(&marked, memory_order_relaxed))
        return true;
    /* A descriptor that came through exec cannot be close-on-exec. */
    int flags = nf_sys.fcntl(fd, F_GETFD, 0);
    return flags < 0 || !(flags & FD_CLOEXEC);
}
