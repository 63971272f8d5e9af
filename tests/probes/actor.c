/*
 * actor: does one system call at a time, as told on standard input, and answers each with one line: "OK", or the
 * name of the error. So a test can drive several processes on several hosts step by step, where a shell has no
 * such call, and look at the world between the steps.
 *
 * It also watches errno: every call starts with a marker in it, and a success that changed it answers
 * "OK but errno changed".
 *
 * Descriptors have one-letter names. Commands:
 *   open K r|w|c|d|p PATH   fopen K PATH   opendir K PATH   pipe K L
 *   flock K OP[|OP...]      OP: EX SH UN NB or a number
 *   dup K L   dup2 K L   dup3 K L   dupfd K L   close K   fclose K   freopen K PATH   closedir K
 *   close_range K L   closefrom K   dev K L (same descriptor number?)
 *   alarm MS restart|norestart      SIGALRM after MS
 *   nbstorm K TIMES                 LOCK_NB under a storm of signals: how many said something but EWOULDBLOCK
 *   cycle K TIMES                   lock and unlock, blocking: how many failed
 *   took                            milliseconds of the last call
 *   fork L                          a child takes over; the parent sleeps. "parent" ends the child
 *   orphan                          a child goes on in place of the parent, which ends with _exit
 *   rename A B, unlink A            paths without blanks
 *   threads                         how many this process has
 *   exit N, _exit N
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MARK 4242

static int fd[128];
static FILE *stream[128];
static DIR *dir[128];
static long took_ms;

static long ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void on_alarm(int sig)
{
    (void)sig;
}

static void set_alarm(long first, long every, int flags)
{
    struct sigaction sa = {.sa_handler = on_alarm, .sa_flags = flags};
    struct itimerval it = {{every / 1000, every % 1000 * 1000}, {first / 1000, first % 1000 * 1000}};
    sigaction(SIGALRM, &sa, NULL);
    setitimer(ITIMER_REAL, &it, NULL);
}

static int operation(char *s)
{
    int op = 0;
    for (char *w = strtok(s, "|"); w; w = strtok(NULL, "|"))
        op |= !strcmp(w, "EX") ? LOCK_EX : !strcmp(w, "SH") ? LOCK_SH : !strcmp(w, "UN") ? LOCK_UN : !strcmp(w, "NB") ? LOCK_NB : atoi(w);
    return op;
}

static int mode(char c)
{
    return c == 'r' ? O_RDONLY : c == 'w' ? O_WRONLY | O_CREAT : c == 'd' ? O_RDONLY | O_DIRECTORY : c == 'p' ? O_PATH : O_RDWR | O_CREAT;
}

static int threads(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

/* Does the call; its result as the system call's own, -1 and errno. *extra is printed after OK. */
static long perform(char *cmd, char *a, char *b, char *c, char *extra)
{
    int k = a ? a[0] & 127 : 0, l = b ? b[0] & 127 : 0;

    a = a ? a : (char *)"";
    b = b ? b : (char *)"";
    c = c ? c : (char *)"";

    if (!strcmp(cmd, "open"))
        return fd[k] = open(c, mode(b[0]), 0666);
    if (!strcmp(cmd, "fopen")) {
        if (!(stream[k] = fopen(b, "r+")) && !(stream[k] = fopen(b, "w+")))
            return -1;
        errno = MARK;
        return fd[k] = fileno(stream[k]);
    }
    if (!strcmp(cmd, "opendir"))
        return (dir[k] = opendir(b)) ? (fd[k] = dirfd(dir[k])) : -1;
    if (!strcmp(cmd, "pipe")) {
        int p[2], r = pipe(p);
        fd[k] = p[0], fd[l] = p[1];
        return r;
    }
    if (!strcmp(cmd, "flock"))
        return flock(fd[k], operation(b));
    if (!strcmp(cmd, "dup"))
        return fd[l] = dup(fd[k]);
    if (!strcmp(cmd, "dupfd"))
        return fd[l] = fcntl(fd[k], F_DUPFD_CLOEXEC, 100);
    if (!strcmp(cmd, "dup2"))
        return dup2(fd[k], fd[l]);
    if (!strcmp(cmd, "dup3"))
        return dup3(fd[k], fd[l], O_CLOEXEC);
    if (!strcmp(cmd, "close"))
        return close(fd[k]);
    if (!strcmp(cmd, "fclose"))
        return fclose(stream[k]);
    if (!strcmp(cmd, "freopen"))
        return (stream[k] = freopen(b, "r", stream[k])) ? 0 : -1;
    if (!strcmp(cmd, "closedir"))
        return closedir(dir[k]);
    if (!strcmp(cmd, "close_range"))
        return close_range((unsigned)fd[k], (unsigned)fd[l], 0);
    if (!strcmp(cmd, "closefrom")) {
        closefrom(fd[k]);
        errno = MARK;
        return 0;
    }
    if (!strcmp(cmd, "samefd"))
        return fd[k] == fd[l] ? 0 : (errno = EXDEV, -1);
    if (!strcmp(cmd, "rename"))
        return rename(a, b);
    if (!strcmp(cmd, "unlink"))
        return unlink(a);
    if (!strcmp(cmd, "alarm")) {
        set_alarm(atol(a), 0, !strcmp(b, "restart") ? SA_RESTART : 0);
        return 0;
    }
    if (!strcmp(cmd, "nbstorm")) {
        int odd = 0;
        set_alarm(1, 1, 0);
        for (int i = 0; i < atoi(b); i++)
            odd += flock(fd[k], LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
        set_alarm(0, 0, 0);
        sprintf(extra, " %d", odd);
        errno = MARK;
        return 0;
    }
    if (!strcmp(cmd, "cycle")) {
        int odd = 0;
        for (int i = 0; i < atoi(b); i++)
            odd += flock(fd[k], LOCK_EX) != 0 || flock(fd[k], LOCK_UN) != 0;
        sprintf(extra, " %d", odd);
        return 0;
    }
    if (!strcmp(cmd, "threads")) {
        sprintf(extra, " %d", threads());
        errno = MARK;
        return 0;
    }
    if (!strcmp(cmd, "took")) {
        sprintf(extra, " %ld", took_ms);
        return 0;
    }
    if (!strcmp(cmd, "fork")) { /* the child answers from now on, until it is told "exit" */
        pid_t p = fork();
        if (p > 0) {
            int st;
            while (waitpid(p, &st, 0) < 0)
                ;
            snprintf(extra, 40, " child ended %d", WIFEXITED(st) ? WEXITSTATUS(st) : -WTERMSIG(st));
        }
        errno = MARK;
        return p;
    }
    if (!strcmp(cmd, "orphan")) {
        pid_t p = fork();
        if (p > 0)
            _exit(0);
        errno = MARK;
        return p;
    }
    if (!strcmp(cmd, "exit"))
        exit(a ? atoi(a) : 0);
    if (!strcmp(cmd, "_exit"))
        _exit(a ? atoi(a) : 0);
    errno = ENOSYS;
    return -1;
}

/* Reads a line without stdio's buffer: a child must not see what its parent already read. */
static int read_line(char *buf, size_t size)
{
    size_t n = 0;
    ssize_t r;
    while (n < size - 1) {
        r = read(0, buf + n, 1);
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
    char out[256];
    int n = snprintf(out, sizeof out, "%s\n", s);
    if (write(1, out, (size_t)n) != n)
        _exit(9);
}

int main(void)
{
    static char line[8192];

    say("READY");
    while (read_line(line, sizeof line)) {
        char *cmd = line, *arg[3] = {0}, extra[64] = "", out[128];
        long t = ms(), r;
        int keep_time;

        for (int i = 0; i < 3; i++) { /* the last of an "open" takes the rest of the line */
            char *p = strchr(i ? arg[i - 1] : cmd, ' ');
            if (!p)
                break;
            *p = 0;
            arg[i] = p + 1;
        }
        keep_time = strcmp(cmd, "took") != 0;
        errno = MARK;
        r = perform(cmd, arg[0], arg[1], arg[2], extra);
        if (r < 0)
            snprintf(out, sizeof out, "%s", strerrorname_np(errno));
        else
            snprintf(out, sizeof out, "OK%s%s", extra, errno == MARK ? "" : " but errno changed");
        if (keep_time)
            took_ms = ms() - t;
        say(out);
    }
    return 0;
}
