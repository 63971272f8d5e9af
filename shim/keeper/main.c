/*
 * netflock-keeper: started by the shim, never by hand. See keeper.h.
 */
#include "keeper/keeper.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

struct keeper keeper = {.files = TAILQ_HEAD_INITIALIZER(keeper.files)};

/* Nothing that is sent to the host's process group, nor a system's shutdown, may end us before the lock ends. */
static void settle_signals(void)
{
    static const int ignored[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGTSTP, SIGTTIN, SIGTTOU, SIGALRM, SIGUSR1, SIGUSR2};
    sigset_t none;
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        (void)signal(ignored[i], SIG_IGN);
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Files whose tenures have all ended, and which nobody waits to hand over to. */
static void drop_finished(void)
{
    struct kfile *next;
    for (struct kfile *f = TAILQ_FIRST(&keeper.files); f; f = next) {
        next = TAILQ_NEXT(f, link);
        /* A file with a thread cannot be freed while that sleeps in flock(): its listener is closed, the rest stays. */
        if (!kfile_idle(f) || f->listen < 0)
            continue;
        (void)nf_sys.close(f->listen);
        f->listen = -1;
    }
}

static bool all_finished(void)
{
    struct kfile *f;
    TAILQ_FOREACH (f, &keeper.files, link)
        if (!kfile_idle(f))
            return false;
    return true;
}

static void serve(void)
{
    for (;;) {
        struct kfile *f;
        const struct krec *k;
        int64_t next = tend();
        if (all_finished())
            return;
        drop_finished();
        TAILQ_FOREACH (f, &keeper.files, link) {
            int64_t again = kfile_be_found(f);
            next = again < next ? again : next;
        }
        guard_tend();
        next = guard_due_ms() < next ? guard_due_ms() : next;
        size_t n = 2;
        TAILQ_FOREACH (f, &keeper.files, link) {
            n++;
            TAILQ_FOREACH (k, &f->records, link)
                n++;
        }
        struct pollfd *p = calloc(n, sizeof *p);
        if (!p)
            return;
        p[0] = (struct pollfd){.fd = keeper.wake[0], .events = POLLIN};
        p[1] = (struct pollfd){.fd = guard_fd(), .events = POLLIN};
        n = 2;
        TAILQ_FOREACH (f, &keeper.files, link)
            p[n++] = (struct pollfd){.fd = f->listen, .events = POLLIN};
        TAILQ_FOREACH (f, &keeper.files, link)
            TAILQ_FOREACH (k, &f->records, link)
                p[n++] = (struct pollfd){.fd = k->pidfd, .events = POLLIN}; /* only to wake: records.c looks */
        int wait = next == INT64_MAX ? -1 : nf_left_ms(next);
        (void)nf_sys.poll(p, n, wait);
        if (p[0].revents) {
            char drain[64];
            (void)nf_sys.read(keeper.wake[0], drain, sizeof drain);
        }
        if (p[1].revents) { /* it was killed */
            guard_stop();
            guard_outdated();
        }
        n = 2;
        TAILQ_FOREACH (f, &keeper.files, link) {
            if (p[n].fd >= 0 && p[n].revents)
                serve_listener(f);
            n++;
        }
        free(p);
    }
}

int main(int argc, char **argv)
{
    char *end;
    if (argc != 2) {
        static const char text[] = "netflock-keeper is started by libnetflock.so; see netflock(7)\n";
        (void)nf_sys.write(2, text, sizeof text - 1);
        return 2;
    }
    long ctl = strtol(argv[1], &end, 10);
    if (*end || ctl < 0 || ctl > INT_MAX)
        return 2;
    settle_signals();
    (void)prctl(PR_SET_NAME, "netflock-keeper", 0, 0, 0);
    (void)mallopt(M_ARENA_MAX, 1); /* the threads allocate nothing: no arena of their own */
    cgroup_leave();
    if (chdir("/") < 0 || pipe2(keeper.wake, O_CLOEXEC | O_NONBLOCK) < 0)
        return 1;
    if (serve_start((int)ctl) < 0)
        return 1;
    (void)nf_sys.close((int)ctl);
    serve();
    guard_stop();
    return 0;
}
