/*
 * records [SOCKET NAME]: does one call on record locks at a time, as told, and answers each with one line: "OK", or the name
 * of the error. It is told on standard input, or, given a socket, by whoever listens there: it says "HELLO NAME PID" first.
 * A success that changed errno answers "OK but errno changed".
 *
 * Descriptors have one-letter names. Commands:
 *   open K r|w|rw|path keep|cloexec PATH      close K
 *   dup K L dup|dup2|dupfd|dupfd_cloexec      closerange K L   closefrom K   dupover K L (dup2 of K over an open L)
 *   fopen K PATH   fclose K
 *   pset|psetw|pget|oset|osetw|oget K TYPE WHENCE START LEN [PID]
 *                                   process / description; TYPE: r w u or a number, WHENCE: set cur end or a number
 *                                   the answer to a get: "OK u", or "OK r|w START LEN PID"
 *   lockf K lock|tlock|ulock|test|NUMBER LEN
 *   seek K POS   trunc K SIZE   flock K sh|ex|un
 *   handler restart|norestart       for SIGUSR1 (norestart to begin with)   alarm MS restart|norestart       SIGALRM after MS
 *   took                            milliseconds of the last call
 *   fork NAME                       a child, which says HELLO; without a socket it takes over, and "parent" ends it
 *   exec                            this program again, with the same descriptors, but for those that are close-on-exec
 *   sh COMMAND                      with system()
 *   send K PATH, recv K PATH        pass a descriptor through a socket at PATH
 *   commands K                      other commands of fcntl, with their arguments: OK or what went wrong
 *   exit N   _exit N
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MARK 4242

static int fd[128];
static FILE *stream[128];
static int in = 0, out = 1;
static const char *self, *address = "";
static char name[32];
static long took_ms;

static long ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Reads a line without stdio's buffer: a child must not see what its parent already read. */
static int read_line(char *buf, size_t size)
{
    size_t n = 0;
    while (n < size - 1) {
        ssize_t r = read(in, buf + n, 1);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return 0;
        if (buf[n++] == '\n')
            break;
    }
    buf[n ? n - 1 : 0] = 0;
    return 1;
}

static void say(const char *s)
{
    char line[512];
    int n = snprintf(line, sizeof line, "%s\n", s);
    if (write(out, line, (size_t)n) != n)
        _exit(9);
}

static int unix_socket(const char *path, int listening)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    if (listening) {
        if (bind(s, (struct sockaddr *)&a, sizeof a) < 0 || listen(s, 1) < 0)
            return -1;
        return s;
    }
    for (int i = 0; i < 500; i++) {
        if (connect(s, (struct sockaddr *)&a, sizeof a) == 0)
            return s;
        usleep(10000);
    }
    return -1;
}

static void hello(void)
{
    char line[64];
    if (*address) {
        in = out = unix_socket(address, 0);
        if (in < 0)
            _exit(9);
        snprintf(line, sizeof line, "HELLO %s %d", name, (int)getpid());
        say(line);
    } else {
        say("READY");
    }
}

static void on_signal(int sig)
{
    (void)sig;
}

static void handler(int sig, const char *how)
{
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = strcmp(how, "restart") == 0 ? SA_RESTART : 0};
    sigaction(sig, &sa, NULL);
}

static short type_of(const char *s)
{
    return (short)(*s == 'r' ? F_RDLCK : *s == 'w' ? F_WRLCK : *s == 'u' ? F_UNLCK : atoi(s));
}

static short whence_of(const char *s)
{
    return (short)(!strcmp(s, "set") ? SEEK_SET : !strcmp(s, "cur") ? SEEK_CUR : !strcmp(s, "end") ? SEEK_END : atoi(s));
}

static int record(const char *cmd, int f, char **a, char *extra, size_t size)
{
    struct flock fl = {
        .l_type = type_of(a[0]), .l_whence = whence_of(a[1]), .l_start = strtoll(a[2], NULL, 10), .l_len = strtoll(a[3], NULL, 10)};
    int op = !strcmp(cmd + 1, "set") ? F_SETLK : !strcmp(cmd + 1, "setw") ? F_SETLKW : F_GETLK;
    int r;
    fl.l_pid = (pid_t)atoi(a[4]);
    if (*cmd == 'o')
        op = op == F_SETLK ? F_OFD_SETLK : op == F_SETLKW ? F_OFD_SETLKW : F_OFD_GETLK;
    r = fcntl(f, op, &fl);
    if (r == 0 && strcmp(cmd + 1, "get") == 0) {
        int e = errno;
        if (fl.l_type == F_UNLCK)
            snprintf(extra, size, " u");
        else
            snprintf(extra, size, " %s %lld %lld %d%s", fl.l_type == F_RDLCK ? "r" : "w", (long long)fl.l_start, (long long)fl.l_len,
                     (int)fl.l_pid, fl.l_whence == SEEK_SET ? "" : " whence");
        errno = e;
    }
    return r;
}

static int pass(int f, const char *path)
{
    char c = 0, control[CMSG_SPACE(sizeof f)];
    struct iovec iov = {&c, 1};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    int s = unix_socket(path, 0);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof f);
    memcpy(CMSG_DATA(h), &f, sizeof f);
    if (s < 0 || sendmsg(s, &m, 0) != 1)
        return -1;
    errno = MARK;
    return close(s);
}

static int receive(const char *path)
{
    char c = 0, control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {&c, 1};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int l = unix_socket(path, 1), s = l < 0 ? -1 : accept(l, NULL, NULL), f = -1;
    if (s < 0 || recvmsg(s, &m, 0) != 1 || !CMSG_FIRSTHDR(&m))
        return -1;
    memcpy(&f, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof f);
    close(s);
    close(l);
    unlink(path);
    errno = MARK;
    return f;
}

/* Sets with one command and reads back with another: what went in must come out. */
static const char *commands(int f)
{
    struct f_owner_ex owner = {F_OWNER_PID, getpid()}, back = {0};
    int p[2], m, d;
    uint64_t hint = 2 /* RWH_WRITE_LIFE_SHORT */, got = 0;
    if (pipe(p) < 0 || (m = memfd_create("m", MFD_ALLOW_SEALING)) < 0)
        return "pipe";
    if ((d = fcntl(f, F_DUPFD, 200)) < 200 || fcntl(d, F_GETFD) != 0 || close(d) < 0)
        return "F_DUPFD";
    if ((d = fcntl(f, F_DUPFD_CLOEXEC, 210)) < 210 || fcntl(d, F_GETFD) != FD_CLOEXEC)
        return "F_DUPFD_CLOEXEC";
    if (fcntl(d, F_SETFD, 0) < 0 || fcntl(d, F_GETFD) != 0 || close(d) < 0)
        return "F_SETFD";
    if (fcntl(p[0], F_SETFL, O_NONBLOCK) < 0 || !(fcntl(p[0], F_GETFL) & O_NONBLOCK))
        return "F_SETFL";
    if (fcntl(p[0], F_SETPIPE_SZ, 8192) != 8192 || fcntl(p[1], F_GETPIPE_SZ) != 8192)
        return "F_SETPIPE_SZ";
    if (fcntl(p[0], F_SETOWN, getpid()) < 0 || fcntl(p[0], F_GETOWN) != getpid())
        return "F_SETOWN";
    if (fcntl(p[1], F_SETOWN_EX, &owner) < 0 || fcntl(p[1], F_GETOWN_EX, &back) < 0 || back.pid != owner.pid || back.type != owner.type)
        return "F_SETOWN_EX";
    if (fcntl(p[0], F_SETSIG, SIGUSR2) < 0 || fcntl(p[0], F_GETSIG) != SIGUSR2)
        return "F_SETSIG";
    if (fcntl(m, F_ADD_SEALS, F_SEAL_SHRINK) < 0 || fcntl(m, F_GET_SEALS) != F_SEAL_SHRINK)
        return "F_ADD_SEALS";
    if (fcntl(m, F_SETLEASE, F_WRLCK) == 0 && (fcntl(m, F_GETLEASE) != F_WRLCK || fcntl(m, F_SETLEASE, F_UNLCK) < 0))
        return "F_SETLEASE";
    if (fcntl(f, F_SET_RW_HINT, &hint) == 0 && (fcntl(f, F_GET_RW_HINT, &got) < 0 || got != hint))
        return "F_SET_RW_HINT";
    errno = 0;
    if (fcntl(f, 12345, 1) != -1 || errno != EINVAL)
        return "an unknown command";
    if (fcntl(-1, F_GETFD) != -1 || errno != EBADF)
        return "a bad descriptor";
    close(p[0]);
    close(p[1]);
    close(m);
    return NULL;
}

/* The table of descriptors goes to the next program as one word. */
static int again(void)
{
    char table[1024] = "", number[16];
    size_t n = 0;
    for (int i = 0; i < 128; i++)
        if (fd[i] >= 0)
            n += (size_t)snprintf(table + n, sizeof table - n, "%c=%d,", i, fd[i]);
    snprintf(number, sizeof number, "%d", in);
    execl(self, self, address, name, number, table, (char *)NULL);
    return -1;
}

static long act(char *cmd, char **a, char *extra, size_t size)
{
    int k = a[0][0] & 127, l = a[1][0] & 127;
    long r = -1;
    if (!strcmp(cmd, "open")) {
        int flags = !strcmp(a[1], "r")      ? O_RDONLY | O_CREAT
                    : !strcmp(a[1], "w")    ? O_WRONLY | O_CREAT
                    : !strcmp(a[1], "path") ? O_PATH
                                            : O_RDWR | O_CREAT;
        return fd[k] = open(a[3], flags | (strcmp(a[2], "cloexec") ? 0 : O_CLOEXEC), 0666);
    }
    if (!strcmp(cmd, "close")) {
        r = close(fd[k]);
        fd[k] = -1;
        return r;
    }
    if (!strcmp(cmd, "fopen")) {
        if (!(stream[k] = fopen(a[1], "r+")))
            return -1;
        errno = MARK;
        return fd[k] = fileno(stream[k]);
    }
    if (!strcmp(cmd, "fclose")) {
        fd[k] = -1;
        return fclose(stream[k]);
    }
    if (!strcmp(cmd, "closerange"))
        return close_range((unsigned)fd[k], (unsigned)fd[l], 0);
    if (!strcmp(cmd, "closefrom")) {
        closefrom(fd[k]);
        errno = MARK; /* it may look at /proc */
        return 0;
    }
    if (!strcmp(cmd, "dupover"))
        return dup2(fd[k], fd[l]);
    if (!strcmp(cmd, "dup")) {
        if (!strcmp(a[2], "dup2"))
            return fd[l] = dup2(fd[k], 300 + l);
        if (!strcmp(a[2], "dupfd"))
            return fd[l] = fcntl(fd[k], F_DUPFD, 100);
        if (!strcmp(a[2], "dupfd_cloexec"))
            return fd[l] = fcntl(fd[k], F_DUPFD_CLOEXEC, 100);
        return fd[l] = dup(fd[k]);
    }
    if (!strcmp(cmd + 1, "set") || !strcmp(cmd + 1, "setw") || !strcmp(cmd + 1, "get"))
        return record(cmd, fd[k], a + 1, extra, size);
    if (!strcmp(cmd, "lockf")) {
        int op = !strcmp(a[1], "lock")    ? F_LOCK
                 : !strcmp(a[1], "tlock") ? F_TLOCK
                 : !strcmp(a[1], "ulock") ? F_ULOCK
                 : !strcmp(a[1], "test")  ? F_TEST
                                          : atoi(a[1]);
        return lockf(fd[k], op, strtoll(a[2], NULL, 10));
    }
    if (!strcmp(cmd, "flock"))
        return flock(fd[k], (!strcmp(a[1], "sh") ? LOCK_SH : !strcmp(a[1], "un") ? LOCK_UN : LOCK_EX) | LOCK_NB);
    if (!strcmp(cmd, "seek"))
        return lseek(fd[k], strtoll(a[1], NULL, 10), SEEK_SET) < 0 ? -1 : 0;
    if (!strcmp(cmd, "trunc"))
        return ftruncate(fd[k], strtoll(a[1], NULL, 10));
    if (!strcmp(cmd, "handler") || !strcmp(cmd, "alarm")) {
        struct itimerval it = {.it_value = {atol(a[0]) / 1000, atol(a[0]) % 1000 * 1000}};
        handler(*cmd == 'h' ? SIGUSR1 : SIGALRM, a[*cmd == 'h' ? 0 : 1]);
        return *cmd == 'h' ? 0 : setitimer(ITIMER_REAL, &it, NULL);
    }
    if (!strcmp(cmd, "took")) {
        snprintf(extra, size, " %ld", took_ms);
        return 0;
    }
    if (!strcmp(cmd, "fork")) {
        pid_t pid = fork();
        if (pid == 0 && *address) {
            close(in);
            snprintf(name, sizeof name, "%s", a[0]);
            hello();
            in = out; /* and no answer: the parent gives it */
            return -2;
        }
        if (pid > 0 && !*address)
            waitpid(pid, NULL, 0);
        errno = MARK;
        return pid < 0 ? -1 : 0;
    }
    if (!strcmp(cmd, "parent"))
        _exit(0);
    if (!strcmp(cmd, "exec"))
        return again();
    if (!strcmp(cmd, "sh")) {
        r = system(a[0]);
        errno = MARK;
        snprintf(extra, size, " %ld", WEXITSTATUS(r));
        return 0;
    }
    if (!strcmp(cmd, "send"))
        return pass(fd[k], a[1]);
    if (!strcmp(cmd, "recv"))
        return fd[k] = receive(a[1]);
    if (!strcmp(cmd, "commands")) {
        const char *wrong = commands(fd[k]);
        if (wrong)
            snprintf(extra, size, " but %s (errno %d)", wrong, errno);
        errno = MARK;
        return 0;
    }
    if (!strcmp(cmd, "exit"))
        exit(atoi(a[0]));
    if (!strcmp(cmd, "_exit"))
        _exit(atoi(a[0]));
    errno = ENOSYS;
    return -1;
}

int main(int argc, char **argv)
{
    static char line[8192];
    self = argv[0];
    for (int i = 0; i < 128; i++)
        fd[i] = -1;
    signal(SIGPIPE, SIG_IGN);
    handler(SIGUSR1, "norestart");
    if (argc > 2) {
        address = argv[1];
        if (*address)
            signal(SIGCHLD, SIG_IGN);
        snprintf(name, sizeof name, "%s", argv[2]);
    }
    if (argc > 4) {
        in = atoi(argv[3]);
        out = *address ? in : 1;
        for (char *w = strtok(argv[4], ","); w; w = strtok(NULL, ",")) {
            int n = atoi(w + 2);
            fd[w[0] & 127] = fcntl(n, F_GETFD) >= 0 ? n : -1;
        }
        say("OK");
    } else {
        hello();
    }
    while (read_line(line, sizeof line)) {
        char none[] = "", *a[8], extra[128] = "", answer[256];
        long t = ms(), r;
        char *cmd = line, *p = line;
        int keep = strcmp(line, "took") != 0, whole = !strncmp(line, "sh ", 3);
        for (int i = 0; i < 8; i++) {
            a[i] = none;
            if ((p = p && (i == 0 || !whole) ? strchr(p, ' ') : NULL)) {
                *p++ = 0;
                a[i] = p;
            }
        }
        errno = MARK;
        r = act(cmd, a, extra, sizeof extra);
        if (r == -2)
            continue;
        if (r < 0)
            snprintf(answer, sizeof answer, "%s", strerrorname_np(errno));
        else
            snprintf(answer, sizeof answer, "OK%s%s", extra, errno == MARK ? "" : " but errno changed");
        if (keep)
            took_ms = ms() - t;
        say(answer);
    }
    return 0;
}
