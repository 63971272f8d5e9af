/*
 * unseen FILE: what a program could notice of the shim's own processes. Takes the lock, lets it go to a keeper
 * (NETFLOCK_KEEPER=always, or a fork), releases it; prints one line for each thing that it noticed, and "fine".
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
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t children;
static int odd;

static void on_child(int sig)
{
    (void)sig;
    children++;
}

static void expect(int ok, const char *what)
{
    if (!ok) {
        printf("noticed: %s\n", what);
        odd = 1;
    }
}

/* Children as the kernel knows them: also those that wait() does not show. */
static int kernel_children(void)
{
    char buf[256] = "";
    FILE *f = fopen("/proc/thread-self/children", "r");
    int n = 0;
    if (!f)
        return 0;
    while (fscanf(f, "%255s", buf) == 1)
        n++;
    fclose(f);
    return n;
}

static void look(const char *when)
{
    char what[100];
    int st;
    usleep(100000); /* a signal or a zombie would arrive a moment later */
    snprintf(what, sizeof what, "SIGCHLD %s", when);
    expect(children == 0, what);
    snprintf(what, sizeof what, "a child for waitpid(-1) %s", when);
    expect(waitpid(-1, &st, WNOHANG) < 0 && errno == ECHILD, what);
    snprintf(what, sizeof what, "a child or zombie %s", when);
    expect(kernel_children() == 0, what);
}

int main(int argc, char **argv)
{
    struct sigaction sa = {.sa_handler = on_child};
    sigset_t before, after;
    int fd, st;
    pid_t p;

    if (argc < 2)
        return 2;
    sigaction(SIGCHLD, &sa, NULL);
    memset(&before, 0, sizeof before); /* the call fills the kernel's part only */
    memset(&after, 0, sizeof after);
    sigprocmask(SIG_SETMASK, NULL, &before);
    fd = open(argv[1], O_RDWR | O_CREAT, 0666);
    expect(flock(fd, LOCK_EX) == 0, "flock failed");
    look("after flock");
    p = fork();
    if (p == 0)
        _exit(0);
    expect(waitpid(p, &st, 0) == p && st == 0, "another status of a child");
    children = 0;
    look("after fork");
    sigprocmask(SIG_SETMASK, NULL, &after);
    expect(memcmp(&before, &after, sizeof before) == 0, "another signal mask");
    expect(flock(fd, LOCK_UN) == 0, "unlock failed");
    look("after the release");
    /* A program that ignores SIGCHLD has its children reaped by the kernel: system() and wait then say ECHILD. */
    signal(SIGCHLD, SIG_IGN);
    expect(flock(fd, LOCK_EX) == 0, "flock failed with SIGCHLD ignored");
    p = fork();
    if (p == 0)
        _exit(0);
    expect(waitpid(p, &st, 0) < 0 && errno == ECHILD, "SIGCHLD is no longer ignored");
    expect(flock(fd, LOCK_UN) == 0, "unlock failed");
    if (!odd)
        puts("fine");
    return odd;
}
