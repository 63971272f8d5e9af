/*
 * Starting a keeper so that the host program does not see it.
 *
 * clone(2) with CLONE_VM | CLONE_VFORK makes a middle process that costs no page tables and sends no signal when it
 * ends; it makes the keeper likewise and leaves at once, so that init adopts the keeper and the host has no child.
 * (Were the keeper a direct child, its execve would turn the exit signal back into SIGCHLD.) The middle one is reaped
 * with __WCLONE, which no waitpid() of the host's uses.
 *
 * Both share our memory while the calling thread sleeps: they call nothing but plain system calls, and write nothing
 * but `struct job`. The keeper opens each file afresh through /proc/self/fd, in its own table of descriptors: opening
 * and closing it in ours would drop the host's own POSIX record locks (fcntl(2)). Then all else is closed, before
 * execve, so that no pipe of the host's stays open in the keeper.
 */
#include "lease/keeper.h"

#include "base/alloc.h"
#include "base/fdutil.h"
#include "base/sys.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_BYTES (64 * 1024)

/*
 * The C library's clone() by its other name. One that somebody has put in front of it must not see this: the thread sanitizer's
 * takes the child for a fork, and tidies up in the memory that is ours as well.
 */
int nf_clone(int (*fn)(void *), void *stack, int flags, void *arg, ...) __asm__("__clone");

struct job {
    struct nf_keeper_fds *files;
    int *keep; /* scratch, 3n + 1 numbers, sorted */
    size_t n;
    int ctl;
    int err; /* why there is no keeper: a negative errno */
    char *stack;
    char path[PATH_MAX];
};

/* Where the keeper is: beside this library, wherever that was loaded from. */
static int keeper_path(char *buf, size_t size)
{
    static const char name[] = "netflock-keeper";
    Dl_info info;
    if (!dladdr((void *)(uintptr_t)&keeper_path, &info) || !info.dli_fname)
        return -ENOENT;
    const char *slash = strrchr(info.dli_fname, '/');
    size_t dir = slash ? (size_t)(slash - info.dli_fname) + 1 : 0;
    if (dir + sizeof name > size)
        return -ENAMETOOLONG;
    memcpy(buf, info.dli_fname, dir);
    memcpy(buf + dir, name, sizeof name);
    return 0;
}

/* The number may mean another file by now: then the keeper looks at /proc/locks instead. */
static int open_fresh(const struct nf_keeper_fds *f)
{
    char link[40];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", f->fd);
    int fresh = nf_sys.open(link, (f->ofd ? O_RDWR : O_RDONLY) | O_NONBLOCK | O_NOCTTY, 0);
    if (fresh == -EACCES)
        fresh = nf_sys.open(link, O_WRONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (fresh >= 0 && nf_fd_is(fresh, f->dev, f->ino))
        return fresh;
    if (fresh >= 0)
        (void)nf_sys.close(fresh);
    return -1;
}

static void close_span(unsigned first, unsigned last)
{
    if (first > last)
        return;
#ifdef SYS_close_range
    if (syscall(SYS_close_range, first, last, 0) == 0)
        return;
#endif
    unsigned limit = (unsigned)sysconf(_SC_OPEN_MAX);
    for (unsigned fd = first; fd <= last && fd < limit; fd++)
        (void)nf_sys.close((int)fd);
}

/* Closes everything but keep[0..n), which is sorted here. */
static void close_others(int *keep, size_t n)
{
    unsigned next = 0;
    for (size_t i = 1; i < n; i++)
        for (size_t k = i; k > 0 && keep[k] < keep[k - 1]; k--) {
            int swap = keep[k];
            keep[k] = keep[k - 1];
            keep[k - 1] = swap;
        }
    for (size_t i = 0; i < n; i++) {
        if (keep[i] < 0)
            continue;
        if ((unsigned)keep[i] > next)
            close_span(next, (unsigned)keep[i] - 1);
        next = (unsigned)keep[i] + 1;
    }
    close_span(next, ~0U);
}

static void keep_file(struct nf_keeper_fds *f, int *keep)
{
    keep[0] = f->fresh = f->fd < 0 ? -1 : open_fresh(f);
    keep[1] = f->hold;
    keep[2] = f->held;
    if (f->hold >= 0)
        (void)nf_sys.fcntl(f->hold, F_SETFD, 0);
    if (f->held >= 0)
        (void)nf_sys.fcntl(f->held, F_SETFD, 0);
}

static int keeper_main(void *arg)
{
    struct job *job = arg;
    char number[16];
    char *const argv[] = {(char *)"netflock-keeper", number, NULL};
    char *const envp[] = {NULL};
    (void)syscall(SYS_setsid);
    for (size_t i = 0; i < job->n; i++)
        keep_file(&job->files[i], &job->keep[3 * i]);
    job->keep[3 * job->n] = job->ctl;
    close_others(job->keep, 3 * job->n + 1);
    (void)nf_sys.fcntl(job->ctl, F_SETFD, 0);
    (void)snprintf(number, sizeof number, "%d", job->ctl);
    (void)syscall(SYS_execve, job->path, argv, envp);
    job->err = -errno;
    (void)syscall(SYS_exit, 127);
    return 0;
}

static int middle_main(void *arg)
{
    struct job *job = arg;
    /* The stack grows down: each of the two has its half. */
    if (nf_clone(keeper_main, job->stack + STACK_BYTES, CLONE_VM | CLONE_VFORK, job) < 0)
        job->err = -errno;
    (void)syscall(SYS_exit, 0);
    return 0;
}

int nf_keeper_spawn(struct nf_keeper_fds *files, size_t n)
{
    int pair[2];
    struct job *job = nf_calloc(1, sizeof *job);
    int *keep = nf_calloc(3 * n + 1, sizeof *keep);
    char *stack = mmap(NULL, 2 * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    int r = !job || !keep || stack == MAP_FAILED ? -ENOMEM : keeper_path(job->path, sizeof job->path);
    if (r == 0)
        r = nf_sys.socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair);
    if (r == 0) {
        pair[0] = nf_fd_move_high(pair[0]);
        job->files = files;
        job->keep = keep;
        job->n = n;
        job->ctl = pair[1];
        job->stack = stack;
        pid_t middle = nf_clone(middle_main, stack + 2 * STACK_BYTES, CLONE_VM | CLONE_VFORK, job);
        if (middle < 0)
            job->err = -errno;
        else
            while (syscall(SYS_wait4, middle, NULL, __WCLONE, NULL) < 0 && errno == EINTR)
                ;
        (void)nf_sys.close(pair[1]);
        r = job->err;
        if (r < 0)
            (void)nf_sys.close(pair[0]);
    }
    if (stack != MAP_FAILED)
        (void)munmap(stack, 2 * STACK_BYTES);
    nf_free(keep);
    nf_free(job);
    return r < 0 ? r : pair[0];
}
