/*
 * soaker: takes locks at random, in every way a process can share, keep and lose them, and writes down what it knows.
 * tests/soak/soak.py starts it on several hosts, kills and stops it; tests/soak/check.py reads the history.
 *
 *   soaker work SEED [DESC...]     random calls until $SOAK_END; a DESC is a descriptor that came through an exec
 *   soaker receive SEED            gets descriptors from workers of its host, holds them, unlocks or closes them
 *   soaker hold ID FILE MODE MS WAITED [PID]
 *                                  run by flock(1) or a shell that has the lock: inside for MS milliseconds. WAITED: the
 *                                  call is in the history already. PID: it is that process that holds the lock
 *
 * Each record is one write with O_APPEND, so records are whole whatever is killed:
 *   NS HOST PID call ID FILE OP OPID blocking|nb   before a lock call (OP x, s, or u for LOCK_UN)
 *   NS HOST PID ret ID OPID ERRNO FENCE            after it
 *   NS HOST PID have ID                            from now on this process has the open file description
 *   NS HOST PID bear ID CHILD                      so has this child
 *   NS HOST PID drop ID, gone ID                   before and after its last descriptor is closed
 *   NS HOST PID unbear ID PID                    this process may soon not have it any more
 *   NS HOST PID sent ID                            the description is passed to another process
 *   NS HOST PID lost                               the shim says that a lock was lost
 * Moments are CLOCK_MONOTONIC: all "hosts" are one machine.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define DESCS 4
#define FDS 3

/* An open file description, and the descriptors that this process has of it. */
struct desc {
    int n;
    int fd[FDS];
    int cloexec;
    char file;
    char id[40];
};

static struct desc descs[DESCS];
static const char *host, *folder, *self;
static char history[4096], registry[4096];
static long long end_ns;
static int level; /* of forks below the worker */
static int nap_us = 3000;
static int (*fence_of)(int, uint64_t *);

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int upto(int n)
{
    return (int)(random() % n);
}

static void append(const char *path, const char *line, int n)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0 || write(fd, line, (size_t)n) != n)
        _exit(9);
    close(fd);
}

__attribute__((format(printf, 1, 2))) static void note(const char *fmt, ...)
{
    char line[512];
    va_list ap;
    int n = snprintf(line, sizeof line, "%lld %s %d ", now(), host, (int)getpid());
    va_start(ap, fmt);
    n += vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    line[n++] = '\n';
    append(history, line, n);
}

/* Only who is registered is killed or stopped: the names of the hosts and keepers that are being born are not. */
static void be_killable(void)
{
    char line[16];
    append(registry, line, snprintf(line, sizeof line, "%d\n", (int)getpid()));
}

static void nap(int us)
{
    struct timespec t = {0, (us > 0 ? upto(us) : 0) * 1000L};
    nanosleep(&t, NULL);
}

static void on_alarm(int sig)
{
    (void)sig;
}

static void on_lost(int sig)
{
    int saved = errno;
    (void)sig;
    note("lost");
    errno = saved;
}

/* It repeats: one that comes just before the call sleeps would be missed. */
static void set_alarm(int ms)
{
    struct itimerval it = {{0, ms ? 50000 : 0}, {ms / 1000, ms % 1000 * 1000}};
    setitimer(ITIMER_REAL, &it, NULL);
}

/* --- descriptions ------------------------------------------------------------------------------------------------- */

static const char *path_of(char file)
{
    static char path[4200];
    snprintf(path, sizeof path, "%s/%c", folder, file);
    return path;
}

static int how_many(void)
{
    int n = 0;
    for (int i = 0; i < DESCS; i++)
        n += descs[i].n > 0;
    return n;
}

static struct desc *some(int empty)
{
    int start = upto(DESCS);
    for (int i = 0; i < DESCS; i++) {
        struct desc *k = &descs[(start + i) % DESCS];
        if ((k->n == 0) == empty)
            return k;
    }
    return NULL;
}

static char some_file(void)
{
    return (char)('a' + upto(3));
}

static struct desc *open_one(void)
{
    struct desc *k = some(1);
    if (!k)
        return NULL;
    k->file = some_file();
    k->cloexec = upto(3) == 0;
    int fd = open(path_of(k->file), O_RDWR | O_CREAT | (k->cloexec ? O_CLOEXEC : 0), 0666);
    if (fd < 0)
        _exit(8);
    snprintf(k->id, sizeof k->id, "%d-%lld", (int)getpid(), now());
    k->fd[k->n++] = fd;
    note("have %s", k->id);
    return k;
}

static void dup_one(struct desc *k)
{
    if (k->n == FDS)
        return;
    int fd = fcntl(k->fd[upto(k->n)], k->cloexec ? F_DUPFD_CLOEXEC : F_DUPFD, upto(2) ? 0 : 50);
    if (fd >= 0)
        k->fd[k->n++] = fd;
}

static void close_fd(struct desc *k)
{
    int i = upto(k->n);
    int fd = k->fd[i];
    if (k->n == 1)
        note("drop %s", k->id);
    k->fd[i] = k->fd[--k->n];
    close(fd);
    if (k->n == 0)
        note("gone %s", k->id);
}

static void close_desc(struct desc *k)
{
    while (k->n)
        close_fd(k);
}

static void close_all(void)
{
    for (int i = 0; i < DESCS; i++)
        close_desc(&descs[i]);
}

/* --- locking ------------------------------------------------------------------------------------------------------ */

/* limit_ms: 0 no limit, else an alarm; < 0: LOCK_NB. */
static int lock_call(struct desc *k, char op, int limit_ms)
{
    static int count;
    uint64_t fence = 0;
    int fd = k->fd[upto(k->n)];
    int flag = op == 'x' ? LOCK_EX : op == 's' ? LOCK_SH : LOCK_UN;
    char opid[40];
    snprintf(opid, sizeof opid, "%d-%lld-%d", (int)getpid(), now(), count++);
    note("call %s %c %c %s %s", k->id, k->file, op, opid, limit_ms < 0 || op == 'u' ? "nb" : "blocking");
    if (limit_ms > 0)
        set_alarm(limit_ms);
    int r = flock(fd, flag | (limit_ms < 0 ? LOCK_NB : 0));
    int err = r < 0 ? errno : 0;
    set_alarm(0);
    if (r == 0 && op != 'u' && fence_of && fence_of(fd, &fence) < 0)
        fence = 0;
    note("ret %s %s %d %llu", k->id, opid, err, (unsigned long long)fence);
    return r;
}

/* Without a limit only where no lock can be held that the wait depends on: else two processes may wait in a ring. */
static void lock_one(struct desc *k)
{
    static const int limits[] = {-1, -1, 1, 5, 20, 50, 300, 1500};
    char op = upto(5) < 3 ? 'x' : 's';
    int alone = how_many() == 1;
    int limit = limits[upto(alone ? 8 : 6)];
    if (alone && upto(2))
        limit = 0;
    if (lock_call(k, op, limit) == 0)
        nap(nap_us);
}

/* --- sharing ------------------------------------------------------------------------------------------------------ */

static void live(int turns);

static void leave(void)
{
    for (int i = 0; i < DESCS; i++)
        if (descs[i].n)
            note("drop %s", descs[i].id);
    if (upto(2))
        _exit(0);
    exit(0);
}

static void child_of_fork(void)
{
    level++;
    srandom((unsigned)getpid() * 2654435761u ^ (unsigned)now());
    for (int i = 0; i < DESCS; i++)
        if (descs[i].n)
            note("have %s", descs[i].id);
    be_killable();
    nap(nap_us);
    if (upto(3))
        live(upto(8));
    leave();
}

static void fork_one(void)
{
    if (level > 1)
        return;
    pid_t pid = fork();
    if (pid == 0)
        child_of_fork();
    for (int i = 0; pid > 0 && i < DESCS; i++)
        if (descs[i].n)
            note("bear %s %d", descs[i].id, (int)pid);
    /* The lock lives on in the child. */
    if (pid > 0 && upto(3) == 0)
        leave();
    if (pid > 0 && upto(3) == 0)
        close_all();
}

/* Becomes a new program that has the descriptors that an exec leaves open. */
static void exec_self(void)
{
    char text[DESCS][120];
    char seed[16];
    const char *argv[DESCS + 4] = {self, "work", seed};
    int argc = 3;
    if (level > 0)
        return;
    snprintf(seed, sizeof seed, "%ld", random());
    for (int i = 0; i < DESCS; i++) {
        struct desc *k = &descs[i];
        if (k->n && k->cloexec) {
            note("drop %s", k->id);
        } else if (k->n) {
            int at = snprintf(text[i], sizeof text[i], "%s,%c", k->id, k->file);
            for (int j = 0; j < k->n; j++)
                at += snprintf(text[i] + at, sizeof text[i] - (size_t)at, ",%d", k->fd[j]);
            argv[argc++] = text[i];
        }
    }
    if (upto(2))
        execv(self, (char *const *)argv);
    else
        execvp(self, (char *const *)argv);
    _exit(7);
}

static void take_over(struct desc *k, const char *text)
{
    char fds[100];
    char *p = fds;
    if (sscanf(text, "%39[^,],%c,%99s", k->id, &k->file, fds) != 3)
        _exit(6);
    while (p && k->n < FDS) {
        k->fd[k->n++] = atoi(p);
        p = strchr(p, ',');
        p = p ? p + 1 : NULL;
    }
}

/* Of the receiver of this host; the folder's name keeps several runs apart. */
static socklen_t address(struct sockaddr_un *a)
{
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "%.80s-%s", folder, host);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

union rights {
    struct cmsghdr align;
    char room[CMSG_SPACE(sizeof(int))];
};

static void send_one(struct desc *k)
{
    struct sockaddr_un a;
    union rights c = {0};
    char text[64];
    struct iovec v = {text, (size_t)snprintf(text, sizeof text, "%s,%c", k->id, k->file)};
    struct msghdr m = {
        .msg_name = &a, .msg_namelen = address(&a), .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c};
    int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    *CMSG_FIRSTHDR(&m) = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &k->fd[upto(k->n)], sizeof(int));
    note("sent %s", k->id);
    (void)sendmsg(s, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    close(s);
}

static void receive_one(int s)
{
    union rights c;
    char text[64];
    struct iovec v = {text, sizeof text - 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c};
    ssize_t n = recvmsg(s, &m, MSG_CMSG_CLOEXEC);
    if (n <= 0 || !CMSG_FIRSTHDR(&m))
        return;
    text[n] = 0;
    struct desc got = {.n = 1, .cloexec = 1};
    memcpy(&got.fd[0], CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(int));
    if (sscanf(text, "%39[^,],%c", got.id, &got.file) != 2)
        _exit(6);
    struct desc *k = NULL;
    for (int i = 0; i < DESCS; i++)
        if (descs[i].n && !strcmp(descs[i].id, got.id))
            k = &descs[i];
    if (k && k->n == FDS) {
        close(got.fd[0]); /* not a second entry: the records tell the descriptions of a process apart by their name */
        return;
    }
    if (k) {
        k->fd[k->n++] = got.fd[0];
        return;
    }
    if (!some(1))
        close_desc(some(0));
    *some(1) = got;
    note("have %s", got.id);
}

/* It never waits for a lock: what is still on its way to it may be the very lock it would wait for. */
static int receive(void)
{
    struct sockaddr_un a;
    socklen_t len = address(&a);
    struct timeval t = {0, 5000};
    int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (bind(s, (struct sockaddr *)&a, len) < 0 || setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) < 0)
        return 1;
    while (now() < end_ns) {
        receive_one(s);
        struct desc *k = some(0);
        nap(nap_us);
        if (k && upto(3) == 0)
            lock_call(k, 'u', 0);
        else if (k && upto(3) == 0)
            lock_call(k, upto(2) ? 'x' : 's', -1);
        else if (k && upto(2))
            close_desc(k);
    }
    leave();
    return 0;
}

/* --- real programs ------------------------------------------------------------------------------------------------ */

/* $0 soaker, $1 file's path, $2 id, $3 file, $4 milliseconds, $5 pid of this shell or flock */
struct program {
    int waits; /* it locks first of all, and waits for it without limit */
    char mode;
    const char *argv[8]; /* up to NULL; then, for flock, the command: its last word is 0 or, with hold_by, the pid */
    const char *script;
};

static const struct program programs[] = {
    {1, 'x', {"flock"}, NULL},
    {1, 's', {"flock", "-s"}, NULL},
    {0, 'x', {"flock", "-n"}, NULL},
    {0, 's', {"flock", "-n", "-s"}, NULL},
    {0, 'x', {"flock", "-w", "0.5"}, NULL},
    {1, 'x', {"flock", "-o"}, NULL},
    {1, 'x', {"flock", "-F"}, NULL},
    {1, 'x', {"bash"}, "exec 9>>\"$1\"; flock 9 || exit; \"$0\" hold $2 $3 x $4 1"},
    {1, 'x', {"dash"}, "exec 9>>\"$1\"; flock 9 || exit; \"$0\" hold $2 $3 x $4 1; flock -u 9; sleep 0.02"},
    {1, 's', {"bash"}, "( flock -s 9 || exit; \"$0\" hold $2 $3 s $4 1 ) 9>>\"$1\"; true"},
    {1, 'x', {"dash"}, "exec 9>>\"$1\"; flock 9 || exit; \"$0\" hold $2 $3 x $4 1 & exit 0"},
    {1,
     's',
     {"bash"},
     "exec 9>>\"$1\"; flock -s 9 || exit; \"$0\" hold $2 $3 s $4 1; flock -w 2 9 && \"$0\" hold $2.2 $3 x $4 0;"
     " flock -n -s 9 && \"$0\" hold $2.3 $3 s $4 0; true"},
    {0, 'x', {"bash"}, "exec 9>>\"$1\"; flock -n 9 || exit; (\"$0\" hold $2 $3 x $4 0); flock -u 9; true"},
    {0, 'x', {"dash"}, "exec 9>>\"$1\"; flock -n 9 || exit; \"$0\" hold $2 $3 x $4 0 9>&9 & wait; exit 0"},
};

static void exec_program(const struct program *p)
{
    const char *argv[20];
    char id[64], file[2] = {some_file(), 0}, mode[2] = {p->mode, 0}, ms[16], pid[16];
    int n = 0;
    snprintf(id, sizeof id, "%d-%lld", (int)getpid(), now());
    snprintf(ms, sizeof ms, "%d", upto(nap_us / 1000 + 1));
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    while (p->argv[n]) {
        argv[n] = p->argv[n];
        n++;
    }
    if (p->script) {
        const char *rest[] = {"-c", p->script, self, path_of(file[0]), id, file, ms, NULL};
        memcpy(&argv[n], rest, sizeof rest);
    } else {
        int closes = n > 1 && !strcmp(argv[1], "-o");
        const char *rest[] = {path_of(file[0]), self, "hold", id, file, mode, ms, p->waits ? "1" : "0", closes ? pid : NULL, NULL};
        memcpy(&argv[n], rest, sizeof rest);
    }
    if (p->waits)
        note("call %s %s %s 0 blocking", id, file, mode);
    signal(SIGCHLD, SIG_DFL);
    execvp(argv[0], (char *const *)argv);
    _exit(7);
}

static void run_program(void)
{
    if (level > 1)
        return;
    pid_t pid = fork();
    for (int i = 0; pid > 0 && i < DESCS; i++)
        if (descs[i].n)
            note("bear %s %d", descs[i].id, (int)pid);
    if (pid != 0)
        return;
    level++;
    srandom((unsigned)getpid() * 2654435761u ^ (unsigned)now());
    for (int i = 0; i < DESCS; i++)
        if (descs[i].n)
            note("have %s", descs[i].id);
    close_all();
    be_killable();
    exec_program(&programs[upto(sizeof programs / sizeof programs[0])]);
}

static int hold(char **arg)
{
    const char *id = arg[0];
    const char *holder = arg[5];
    if (arg[4][0] == '0')
        note("call %s %s %s 0 nb", id, arg[1], arg[2]);
    note("ret %s 0 0 0", id);
    if (holder)
        note("bear %s %s", id, holder);
    else
        note("have %s", id);
    be_killable();
    nap(atoi(arg[3]) * 1000);
    if (holder)
        note("unbear %s %s", id, holder);
    else
        note("drop %s", id);
    return 0;
}

/* --- the worker --------------------------------------------------------------------------------------------------- */

static void turn(void)
{
    struct desc *k = some(0);
    int what = upto(100);
    if (!k || (what < 8 && how_many() < 2))
        k = open_one();
    if (!k)
        return;
    if (what < 50)
        lock_one(k);
    else if (what < 68)
        lock_call(k, 'u', 0);
    else if (what < 74)
        dup_one(k);
    else if (what < 80)
        close_fd(k);
    else if (what < 87)
        close_desc(k);
    else if (what < 91)
        fork_one();
    else if (what < 94)
        send_one(k);
    else if (what < 97)
        run_program();
    else if (what < 99)
        exec_self();
    else if (upto(4) == 0)
        leave();
}

static void live(int turns)
{
    while (turns != 0 && now() < end_ns) {
        turn();
        if (upto(3) == 0)
            nap(nap_us / 2);
        turns -= turns > 0;
    }
}

static const char *env(const char *name)
{
    const char *v = getenv(name);
    if (!v) {
        fprintf(stderr, "soaker: %s is not set\n", name);
        _exit(2);
    }
    return v;
}

static void settle(void)
{
    struct sigaction sa = {.sa_handler = on_alarm};
    host = env("HOSTN");
    folder = env("D");
    snprintf(history, sizeof history, "%s/history", env("SOAK_DIR"));
    snprintf(registry, sizeof registry, "%s/pids", env("SOAK_DIR"));
    end_ns = atoll(env("SOAK_END"));
    sigaction(SIGALRM, &sa, NULL);
    sa.sa_handler = on_lost;
    sa.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &sa, NULL);
    *(void **)&fence_of = dlsym(RTLD_DEFAULT, "netflock_fence");
}

int main(int argc, char **argv)
{
    self = argv[0];
    settle();
    if (argc >= 7 && !strcmp(argv[1], "hold"))
        return hold(argv + 2);
    if (argc < 3)
        return 2;
    srandom((unsigned)atoi(argv[2]));
    be_killable();
    if (!strcmp(argv[1], "receive"))
        return receive();
    /* Half of them leave no zombies behind, half do: the keeper's birth must get along with both. */
    signal(SIGCHLD, upto(2) ? SIG_IGN : SIG_DFL);
    for (int i = 3; i < argc && i - 3 < DESCS; i++)
        take_over(&descs[i - 3], argv[i]);
    live(-1);
    leave();
    return 0;
}
