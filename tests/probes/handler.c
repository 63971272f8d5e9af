/*
 * handler HOW FILE STEPS: a signal handler that calls close() or _exit(), as POSIX allows, at the worst moment.
 *
 *   close   has FILE locked, and is inside malloc() when the handler closes it
 *   exit    the same, and the handler calls _exit()
 *   storm   a timer's handler closes locked files, STEPS of them, while main() locks, converts, unlocks
 *
 * malloc() is our own here and says so if it is called while it is interrupted: with the C library's that is a deadlock,
 * or worse. Marks as in steps.py: "in" when locked, then waits for "go"; "closed", then waits for "end".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void __libc_free(void *p);

static volatile sig_atomic_t inside;
static pid_t inside_thread; /* another thread may allocate: it would wait, and we go on */
static int fd = -1;
static char steps[4000];
static bool exits;

static void check(void)
{
    static const char text[] = "malloc() was called inside malloc()\n";
    if (!inside || (pid_t)syscall(SYS_gettid) != inside_thread)
        return;
    if (write(1, text, sizeof text - 1)) {}
    syscall(SYS_exit_group, 9);
}

void *malloc(size_t n)
{
    check();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    check();
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    check();
    return __libc_realloc(p, n);
}

void free(void *p)
{
    check();
    __libc_free(p);
}

static void mark(const char *name)
{
    char path[4100];
    snprintf(path, sizeof path, "%s/%s", steps, name);
    mkdir(path, 0777);
}

static void until(const char *name)
{
    char path[4100];
    snprintf(path, sizeof path, "%s/%s", steps, name);
    while (access(path, F_OK) != 0)
        usleep(10000);
}

static void on_signal(int sig)
{
    int saved = errno;
    (void)sig;
    if (fd >= 0 && exits)
        _exit(0);
    if (fd >= 0) {
        close(fd);
        fd = -1;
    }
    errno = saved;
}

static int locked(const char *path)
{
    int f = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (f < 0 || flock(f, LOCK_EX) < 0) {
        perror(path);
        exit(1);
    }
    return f;
}

static int storm(const char *path, int files)
{
    char other[4100];
    struct itimerval every = {{0, 300}, {0, 300}};
    int n = 0;
    snprintf(other, sizeof other, "%s.other", path);
    int x = locked(path);
    setitimer(ITIMER_REAL, &every, NULL);
    while (n < files) {
        int y = locked(other);
        fd = y; /* from now on the handler may close it at any moment */
        for (int i = 0; fd >= 0; i++)
            if (flock(x, i % 8 < 6 ? LOCK_EX : i % 8 == 6 ? LOCK_UN : LOCK_SH) < 0)
                perror("flock");
        n++;
    }
    memset(&every, 0, sizeof every);
    setitimer(ITIMER_REAL, &every, NULL);
    printf("closed %d\n", n);
    return 0;
}

int main(int argc, char **argv)
{
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    if (argc < 3)
        return 2;
    sigaction(SIGALRM, &sa, NULL);
    if (strcmp(argv[1], "storm") == 0)
        return storm(argv[2], argc > 3 ? atoi(argv[3]) : 1);
    snprintf(steps, sizeof steps, "%s", argv[3]);
    exits = strcmp(argv[1], "exit") == 0;
    int f = locked(argv[2]);
    mark("in");
    until("go");
    fd = f;
    inside_thread = gettid();
    inside = 1;
    raise(SIGALRM);
    inside = 0;
    puts("closed");
    fflush(stdout);
    mark("closed");
    until("end");
    return 0;
}
