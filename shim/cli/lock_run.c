/*
 * netflock lock: the command, and the lock while the command runs.
 *
 * The command has the lock's descriptor (unless -o), so the kernel's lock lives as long as anybody of its family; a keeper
 * renews it in Redis. A keeper knows no processes that it could tell of a loss: so we ask netflock_lease() from time to
 * time, and tell the command.
 */
#include "cli/lock.h"

#include "cli/cli.h"
#include "cli/preload.h"
#include "cli/program.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Becomes the command; returns only the exit status that says why not. */
static int become(char **command)
{
    struct verdict v;
    int err = 0;
    char *path = program_find(command[0], &err);
    if (path) {
        /* The lock does not depend on it. A loader of another C library would stop at the sight of ours. */
        if (!program_reachable(path, &v))
            preload_set(NULL);
        err = program_execute(path, command);
        free(path);
    }
    complain("lock: failed to execute %s: %s", command[0], strerror(-err));
    return err == -ENOMEM ? LOCK_OS : LOCK_UNAVAILABLE;
}

/* For how long the lock is certain to be ours, in ms; -1: it is ours no more, by somebody's wish. */
static int64_t certain_ms(int fd)
{
    static int (*lease)(int, int64_t *);
    int64_t left = 0;
    if (!lease)
        *(void **)&lease = dlsym(RTLD_DEFAULT, "netflock_lease");
    return lease && lease(fd, &left) == 0 ? left : -1;
}

struct watch {
    int fd;
    int64_t every_ms; /* 0: not watched (any more) */
    bool lost;
};

/* Looks at the lock. Returns when to look again, in ms. */
static int64_t look(struct watch *w, const struct lock_job *job, pid_t child)
{
    int64_t left = certain_ms(w->fd);
    if (left < 0)
        w->every_ms = 0; /* the command has unlocked it, or Redis was away from the start and that was allowed */
    if (left != 0)
        return left > 0 && left < w->every_ms ? left : w->every_ms;
    w->lost = true;
    w->every_ms = 0;
    complain("lock: the lock on %s was lost%s%s", job->word, job->on_lost ? "; telling the command: SIG" : "",
             job->on_lost ? sigabbrev_np(job->on_lost) : "");
    if (job->on_lost)
        tree_signal(child, job->on_lost);
    return 0;
}

/* Waits until SIGCHLD is pending, at most ms; 0: for ever. */
static void wait_child(const sigset_t *chld, int64_t ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    (void)sigtimedwait(chld, NULL, ms ? &t : NULL);
}

static int wait_command(const struct lock_job *job, pid_t child, struct watch *w, const sigset_t *chld)
{
    int status = 0;
    int64_t next = w->every_ms;
    for (;;) {
        wait_child(chld, next);
        pid_t p = waitpid(child, &status, WNOHANG);
        if (p == child)
            break;
        if (p < 0 && errno != EINTR) {
            complain("lock: waitpid failed: %m");
            return EXIT_FAILURE;
        }
        next = w->every_ms ? look(w, job, child) : 0;
    }
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status) + 128;
    return code == 0 && w->lost && job->on_lost ? LOCK_LOST : code;
}

int lock_run(const struct lock_job *job, int fd)
{
    sigset_t chld;
    sigset_t before;
    const struct nf_config *c = options_config();
    if (job->verbose)
        printf("netflock: executing %s\n", job->command[0]);
    (void)fflush(stdout);
    (void)signal(SIGCHLD, SIG_DFL);
    if (job->no_fork)
        return become(job->command);
    (void)sigemptyset(&chld);
    (void)sigaddset(&chld, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &chld, &before);
    pid_t child = fork();
    if (child < 0) {
        complain("lock: fork failed: %m");
        return LOCK_OS;
    }
    if (child == 0) {
        (void)sigprocmask(SIG_SETMASK, &before, NULL);
        if (job->close)
            (void)close(fd);
        _exit(become(job->command));
    }
    struct watch w = {.fd = fd};
    if (c && !c->disabled && job->op != LOCK_UN)
        w.every_ms = c->policy.ttl_ms / 4 < 5000 ? c->policy.ttl_ms / 4 : 5000;
    return wait_command(job, child, &w, &chld);
}
