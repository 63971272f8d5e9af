/*
 * netflock lock, the second run: opens the file and locks it. flock() here is that of the preloaded library.
 */
#include "cli/lock.h"

#include "base/fdutil.h"
#include "cli/cli.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t expired;

static void on_alarm(int sig)
{
    (void)sig;
    expired = 1;
}

/*
 * It goes on ringing: a call that was not blocking yet when it rang first would miss it.
 * (Without SA_RESTART: the lock call is to be interrupted.)
 */
static void set_timer(int64_t us)
{
    struct sigaction sa = {.sa_handler = on_alarm};
    struct itimerval it = {.it_interval = {.tv_usec = us ? 50000 : 0}, .it_value = {us / 1000000, us % 1000000}};
    (void)sigaction(SIGALRM, &sa, NULL);
    (void)setitimer(ITIMER_REAL, &it, NULL);
}

/* Opens FILE as flock(1) does: to be read, made if it is not there, and a folder is welcome. */
static int open_file(const char *path, int mode, int *status)
{
    int fd = open(path, mode | O_NOCTTY | O_CREAT, 0666);
    if (fd < 0 && errno == EISDIR)
        fd = open(path, O_RDONLY | O_NOCTTY);
    if (fd >= 0)
        return fd;
    *status = errno == ENOMEM || errno == EMFILE || errno == ENFILE ? LOCK_OS
              : errno == EROFS || errno == ENOSPC                   ? LOCK_CANNOT_CREATE
                                                                    : LOCK_NO_INPUT;
    complain("lock: cannot open lock file %s: %m", path);
    return -1;
}

/* The descriptor to lock, or -1 with *status set. */
static int get_fd(const struct lock_job *job, int *status)
{
    if (job->command)
        return open_file(job->word, O_RDONLY, status);
    errno = 0;
    long n = strtol(job->word, NULL, 10);
    if (errno || n > INT_MAX || fcntl((int)n, F_GETFD) < 0) {
        complain("lock: %s: %s", job->word, strerror(EBADF));
        *status = LOCK_DATA;
        return -1;
    }
    return (int)n;
}

/* A lock that excludes no other host is not what was asked for. */
static bool below_prefix(const struct nf_config *c, const char *word, int fd)
{
    char name[PATH_MAX + 1];
    ssize_t n = nf_fd_name(fd, name, sizeof name);
    char *key = n < 0 ? NULL : name_to_key(c, name);
    free(key);
    if (n < 0)
        complain("lock: the path of %s cannot be told: %s", word, strerror((int)-n));
    else if (!key)
        complain_prefix(c, "lock", word, name);
    return key;
}

/*
 * Of the NFS that emulates flock() by fcntl(), which wants a descriptor for writing for an exclusive lock; as flock(1) does.
 */
static bool reopen_for_writing(const struct lock_job *job, int fd)
{
    int status;
    if (!job->command || job->op == LOCK_SH || (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR || access(job->word, R_OK | W_OK) != 0)
        return false;
    int again = open_file(job->word, O_RDWR, &status);
    bool done = again >= 0 && dup2(again, fd) >= 0;
    if (again >= 0)
        (void)close(again);
    return done;
}

/* Why flock() failed, for the exit status. */
static int failed(const struct lock_job *job, int err)
{
    switch (err) {
    case EWOULDBLOCK:
        if (job->verbose)
            complain(expired ? "timeout while waiting to get lock" : "failed to get lock");
        return job->conflict;
    case ENOLCK:
        complain("lock: %s: no lock could be had between hosts: Redis is away or refuses, or the system cannot", job->word);
        return job->outage;
    default:
        complain("lock: %s: %s", job->word, strerror(err));
        return err == ENOMEM ? LOCK_OS : LOCK_DATA;
    }
}

/*
 * False with the exit status, which may be any: -E 0. When the time is over we ask once more without waiting: only then it is known whether
 * somebody has the lock, or Redis is away.
 */
static bool take(const struct lock_job *job, int fd, int *status)
{
    bool reopened = false;
    bool once = job->nonblock || (job->timeout && job->timeout_us == 0);
    if (job->timeout && job->timeout_us > 0)
        set_timer(job->timeout_us);
    while (flock(fd, job->op | (once || expired ? LOCK_NB : 0)) < 0) {
        int err = errno;
        if (err == EINTR)
            continue;
        if ((err == EIO || err == EBADF) && !reopened && reopen_for_writing(job, fd)) {
            reopened = true;
            continue;
        }
        set_timer(0);
        *status = failed(job, err);
        return false;
    }
    set_timer(0);
    (void)signal(SIGALRM, SIG_DFL);
    return true;
}

/* The fencing token into the command's environment; another one's must not stay there. */
static int tell_fence(const struct nf_config *c, const char *word, int fd)
{
    char number[24];
    uint64_t token = 0;
    int (*fence)(int, uint64_t *);
    *(void **)&fence = dlsym(RTLD_DEFAULT, "netflock_fence");
    (void)unsetenv("NETFLOCK_FENCE");
    if (c->disabled)
        return 0;
    if (fence && fence(fd, &token) == 0) {
        (void)snprintf(number, sizeof number, "%" PRIu64, token);
        if (setenv("NETFLOCK_FENCE", number, 1) < 0)
            (void)need(NULL);
        return 0;
    }
    if (c->policy.on_outage == NF_OUTAGE_LOCAL)
        return 0; /* the library has said that the kernel's lock must do */
    complain("lock: %s: the lock does not hold between hosts", word);
    return -1;
}

static void restore_environment(const struct lock_job *job)
{
    if ((job->on_lost_is ? setenv("NETFLOCK_ON_LOST", job->on_lost_is, 1) : unsetenv("NETFLOCK_ON_LOST")) < 0)
        (void)need(NULL);
}

static int64_t now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

int lock_take(struct lock_job *job)
{
    int status = 0;
    const struct nf_config *c = options_config();
    if (!c || !dlsym(RTLD_DEFAULT, "netflock_fence")) {
        complain("lock: libnetflock.so could not be preloaded");
        return LOCK_CONFIGURATION;
    }
    int fd = get_fd(job, &status);
    if (fd < 0)
        return status;
    if (!c->disabled && !below_prefix(c, job->word, fd))
        return LOCK_CONFIGURATION;
    int64_t start = now_us();
    if (!take(job, fd, &status))
        return status;
    if (job->op != LOCK_UN && tell_fence(c, job->word, fd) < 0)
        return job->outage;
    int64_t took = now_us() - start;
    if (job->verbose)
        printf("netflock: getting lock took %" PRId64 ".%06" PRId64 " seconds\n", took / 1000000, took % 1000000);
    restore_environment(job);
    return job->command ? lock_run(job, fd) : 0;
}
