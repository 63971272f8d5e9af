/*
 * See last.h. Nothing of the program runs any more but its other threads; what is closed here, and who is killed, would be
 * closed and killed by the kernel in a moment. Must not: give back what somebody still works under, or hold up the exit
 * for longer than a command may take.
 */
#include "lock/last.h"

#include "base/clock.h"
#include "base/fdset.h"
#include "base/fdutil.h"
#include "base/procs.h"
#include "base/process.h"
#include "base/sigs.h"
#include "base/sys.h"
#include "lease/keeper.h"
#include "lease/lease.h"
#include "lease/record.h"
#include "lock/match.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

bool nf_last_first(void)
{
    return nf_sys.getpid() == 1 && nf_config_maybe();
}

bool nf_last_concerned(void)
{
    if (!nf_config_maybe() || nf_process_where() != NF_HOME)
        return false;
    return nf_last_first() || (getppid() == 1 && nf_pid_namespaced());
}

struct crowd {
    bool kill;
    int keepers, others; /* others: those that could be killed, and are not dead yet */
};

static void count(const struct nf_proc *p, void *arg)
{
    struct crowd *c = arg;
    if (p->state == 'Z' || p->state == 'X')
        return;
    if (strcmp(p->comm, "netflock-keeper") == 0 || strcmp(p->comm, "netflock-guard") == 0)
        c->keepers++;
    else if (c->kill && nf_sys.kill(p->pid, SIGKILL) == 0)
        c->others++;
}

static int keepers(void)
{
    struct crowd c = {0};
    return nf_procs(count, &c) < 0 ? 0 : c.keepers;
}

static void pause_ms(long ms)
{
    struct timespec t = {0, ms * 1000000};
    (void)nanosleep(&t, NULL);
}

/* Again until a look finds nobody: they may be making children. */
static void kill_others(int64_t until)
{
    struct crowd c;
    do {
        c = (struct crowd){.kill = true};
        if (nf_procs(count, &c) < 0 || c.others == 0)
            return;
        pause_ms(1);
    } while (nf_now_ms() < until);
}

/* The C library's list of streams, which glibc shows to its C++ library; absent from other C libraries. */
extern FILE *_IO_list_all __attribute__((weak));
extern void _IO_list_lock(void) __attribute__((weak));
extern void _IO_list_unlock(void) __attribute__((weak));

/*
 * What exit() would do next. fflush(NULL) does it too, but waits for the lock of each stream, and another thread may keep one for
 * ever, reading from a terminal. Such a stream is left to exit(), which takes no locks.
 */
static void flush_streams(void)
{
    if (!&_IO_list_all || !_IO_list_lock || !_IO_list_unlock)
        return;
    _IO_list_lock();
    for (FILE *f = _IO_list_all; f; f = f->_chain)
        if (ftrylockfile(f) == 0) {
            if (__fpending(f) > 0)
                (void)fflush_unlocked(f);
            funlockfile(f);
        }
    _IO_list_unlock();
}

static bool none(int fd)
{
    (void)fd;
    return false;
}

static int any(int fd, long unused)
{
    (void)unused;
    return fd >= 0;
}

/*
 * The kernel drops the locks of our own descriptors. Then the keeper of each file is asked to look, which answers when Redis
 * has been told.
 */
static int close_file(int fd, void *unused)
{
    struct nf_file file;
    (void)unused;
    if (nf_match(fd, &file) != NF_MATCH_YES)
        return 0;
    for (int other; (other = nf_fd_find(file.dev, file.ino, none, any, 0)) >= 0;)
        if (nf_sys.close(other) < 0)
            break;
    (void)nf_keeper_sync(file.dev, file.ino, file.key, file.key_len);
    return 0;
}

/*
 * A description that some other process may have: is it still locked? Asked through one of our own, opened while ours was
 * there. Who is granted the lock knows that nobody has it.
 */
static bool still_locked(int fresh)
{
    return fresh < 0 || nf_sys.flock(fresh, LOCK_EX | LOCK_NB) < 0;
}

struct own {
    struct nf_tenure *t; /* referenced */
    int fresh;           /* -1: not needed, or not to be had */
    bool shared;
};

static struct own next_own(void)
{
    struct own o = {.fresh = -1};
    nf_table_lock();
    struct nf_tenure *t = nf_tenure_any(NULL);
    while (t && (t->kept || t->lost || t->fd < 0 || t->mode == 'p' || t->mode == 'o'))
        t = nf_tenure_any(t);
    int fd = t ? t->fd : -1;
    if (t)
        nf_tenure_ref(t);
    nf_table_unlock();
    if (!t)
        return o;
    o.t = t;
    o.shared = nf_shared(fd);
    if (o.shared && t->shadow < 0) {
        char link[48];
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        o.fresh = nf_sys.open(link, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0);
    }
    return o;
}

/* What no keeper has is ours to release. Of what others may have the kernel is asked. */
static void release_own(int64_t until)
{
    nf_record_release_all(until);
    while (nf_now_ms() < until) {
        struct own o = next_own();
        if (!o.t)
            return;
        nf_table_lock();
        int fd = o.t->fd;
        o.t->deciding = true; /* the renewal thread leaves it to us */
        nf_tenure_set_fd(o.t, -1);
        nf_table_unlock();
        if (fd >= 0)
            (void)nf_sys.close(fd);
        for (int other; (other = nf_lease_other_fd(o.t)) >= 0;)
            if (nf_sys.close(other) < 0)
                break;
        if (!o.shared || !still_locked(o.fresh))
            nf_lease_end(o.t);
        if (o.fresh >= 0)
            (void)nf_sys.close(o.fresh);
        nf_table_lock();
        nf_tenure_unref(o.t);
        nf_table_unlock();
    }
}

void nf_last_end(bool flush)
{
    static atomic_bool done;
    struct nf_quiet quiet;
    bool first = nf_sys.getpid() == 1;
    if (nf_tenure_count() == 0 && keepers() == 0)
        return;
    if (atomic_exchange(&done, true))
        return;
    int64_t until = nf_now_ms() + nf_config()->redis.timeout_ms;
    if (flush)
        flush_streams();
    nf_quiet(&quiet);
    if (first)
        kill_others(until);
    release_own(until);
    (void)nf_fd_each(close_file, NULL);
    while (first && nf_now_ms() < until && keepers() > 0)
        pause_ms(1);
    nf_loud(&quiet);
}
