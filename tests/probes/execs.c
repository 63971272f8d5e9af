/*
 * execs HOW FILE [cloexec]: locks FILE exclusively and becomes, or starts, another program ("sleep 60", or
 * $PROGRAM with its full path), by the call named HOW: execl execlp execle execv execvp execve execvpe fexecve
 * execveat spawn spawnp system popen vfork. The descriptor survives it, unless "cloexec" is said. Of those that
 * start a program, the parent closes its own descriptor and ends by _exit, so that only the child has the lock.
 *
 * execs failing FILE: an exec that fails (no such program), after which the process goes on and holds the lock.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

extern char **environ;

static void say(const char *s)
{
    if (write(1, s, strlen(s)) < 0)
        _exit(9);
}

static void by_vfork(const char *prog, char **args)
{
    if (vfork() == 0) {
        execv(prog, args);
        _exit(127);
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "", *prog = getenv("PROGRAM");
    char *args[] = {"sleep", "60", NULL};
    pid_t p;
    int fd, keep;

    if (argc < 3)
        return 2;
    keep = argc < 4;
    if (!prog)
        prog = "/usr/bin/sleep";
    else
        args[1] = NULL;
    fd = open(argv[2], O_RDWR | O_CREAT | (keep ? 0 : O_CLOEXEC), 0666);
    if (fd < 0 || flock(fd, LOCK_EX) < 0) {
        perror(argv[2]);
        return 1;
    }
    say("in\n");
    if (!strcmp(how, "failing")) {
        errno = 0;
        execl("/nonexistent", "x", (char *)NULL);
        say(errno == ENOENT ? "failed\n" : "odd\n");
        for (;;)
            pause();
    }
    if (!strcmp(how, "execl"))
        execl(prog, "sleep", args[1], (char *)NULL);
    if (!strcmp(how, "execlp"))
        execlp(prog, "sleep", args[1], (char *)NULL);
    if (!strcmp(how, "execle"))
        execle(prog, "sleep", args[1], (char *)NULL, environ);
    if (!strcmp(how, "execv"))
        execv(prog, args);
    if (!strcmp(how, "execvp"))
        execvp(prog, args);
    if (!strcmp(how, "execve"))
        execve(prog, args, environ);
    if (!strcmp(how, "execvpe"))
        execvpe(prog, args, environ);
    if (!strcmp(how, "fexecve"))
        fexecve(open(prog, O_RDONLY | O_CLOEXEC), args, environ);
    if (!strcmp(how, "execveat"))
        execveat(AT_FDCWD, prog, args, environ, 0);
    if (!strcmp(how, "spawn") && posix_spawn(&p, prog, NULL, NULL, args, environ) == 0)
        _exit(0);
    if (!strcmp(how, "spawnp") && posix_spawnp(&p, prog, NULL, NULL, args, environ) == 0)
        _exit(0);
    if (!strcmp(how, "system") && system("sleep 60 &") == 0)
        _exit(0);
    if (!strcmp(how, "popen") && popen("exec sleep 60", "r"))
        _exit(0);
    if (!strcmp(how, "vfork"))
        by_vfork(prog, args);
    perror(how);
    return 3;
}
