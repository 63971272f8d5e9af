/*
 * The guard: a copy of the keeper, made by fork(), that sleeps until the keeper dies and then takes its place. Without it
 * a keeper that is killed (the out-of-memory killer, an administrator) would end every lock that it keeps with the lease,
 * under programs that still hold it: the locker in `exec 9>file; flock 9` is gone, so nobody else could notice.
 *
 * The copy knows what the keeper knew when it was made. So a new one is made a moment after every change; locks that
 * are shorter than that moment never pay for it. What it takes over may be a little older than the truth, and that does
 * no harm: it asks the kernel about every lock first; it renews by token, and a token that has been released, replaced
 * or taken over is not brought back; what it has lost, or never heard of, ends with its lease as it would without it.
 *
 * It shares the keeper's descriptors of the files, so a look at the kernel's lock that the keeper's death interrupted is
 * finished by its own. The sockets it opens anew: while the keeper lives nobody must be able to connect to a listener that
 * does not answer. If another keeper was started in between, that one is given everything.
 */
#include "keeper/keeper.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/sys.h"
#include "redis/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* `flock FILE true` takes a few milliseconds. */
#define DELAY_MS 20

static pid_t pid;
static int link_fd = -1; /* our end of a socket pair; its other end dies with the other process */
static int64_t due = INT64_MAX;

void guard_outdated(void)
{
    if (due == INT64_MAX)
        due = nf_now_ms() + DELAY_MS;
}

int64_t guard_due_ms(void)
{
    return due;
}

int guard_fd(void)
{
    return link_fd;
}

pid_t guard_pid(void)
{
    return pid;
}

void guard_stop(void)
{
    if (pid > 0) {
        /* Our end of the pair stays open until it is gone: it must not take this for our death. */
        (void)nf_sys.kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        (void)nf_sys.close(link_fd);
    }
    pid = 0;
    link_fd = -1;
}

/* In the copy: nothing that the keeper, or Redis, could notice. */
static void settle(void)
{
    struct kfile *f;
    (void)setsid(); /* whoever kills the keeper's group is to miss us */
    (void)prctl(PR_SET_NAME, "netflock-guard", 0, 0, 0);
    nf_alloc_fork_child();
    nf_pool_fork_child();
    (void)nf_sys.close(keeper.wake[0]);
    (void)nf_sys.close(keeper.wake[1]);
    TAILQ_FOREACH (f, &keeper.files, link) {
        if (f->listen >= 0)
            (void)nf_sys.close(f->listen);
        f->listen = -1;
        kfile_watch_forget(f);
    }
}

/* The keeper is dead. */
static void take_over(pid_t dead)
{
    struct kfile *f;
    struct kept *k;
    int64_t now = nf_now_ms();
    int ttl = keeper.policy.ttl_ms;
    const char *key = "";
    if (pipe2(keeper.wake, O_CLOEXEC | O_NONBLOCK) < 0)
        _exit(1);
    (void)prctl(PR_SET_NAME, "netflock-keeper", 0, 0, 0);
    TAILQ_FOREACH (f, &keeper.files, link) {
        if (kfile_idle(f))
            continue;
        key = f->names->key;
        krec_take_over(f);
        TAILQ_FOREACH (k, &f->tenures, link) {
            /* Due at once. The dead one has renewed it since we were made: until when it is good only Redis knows. */
            k->renewed_ms = now - ttl / 3;
            k->deadline_ms = nf_lease_deadline(now, ttl);
        }
        (void)kfile_look(f); /* the other keeper must not be given what has ended */
        kfile_listen(f);
        if (f->listen >= 0 || !kfile_give_away(f))
            kfile_watch_start(f);
    }
    nf_log(NF_LOG_WARN, "a keeper (pid %d) was killed; its guard goes on in its place, with %s", (int)dead, key);
    guard_outdated();
}

void guard_tend(void)
{
    int pair[2];
    char byte;
    pid_t parent = getpid();
    if (nf_now_ms() < due)
        return;
    guard_stop();
    due = INT64_MAX;
    if (nf_sys.socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
        guard_outdated();
        return;
    }
    pid_t child = fork();
    if (child != 0) {
        (void)nf_sys.close(pair[1]);
        link_fd = pair[0];
        pid = child;
        if (child > 0)
            return;
        /* No process to be had: later, perhaps. */
        (void)nf_sys.close(link_fd);
        guard_stop();
        guard_outdated();
        return;
    }
    (void)nf_sys.close(pair[0]);
    settle();
    cgroup_leave_both(parent);
    while (nf_sys.recv(pair[1], &byte, 1, 0) == -EINTR)
        ;
    (void)nf_sys.close(pair[1]);
    take_over(parent);
}
