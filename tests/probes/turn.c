/*
 * turn FILE OUT NAME x|s|w|r MS|PATH: one turn with a lock. Takes it (x exclusive, s shared, waiting; w and r: the same with
 * LOCK_NB), appends "+NAME milliseconds since 1970" to OUT, holds it for MS or until PATH exists, appends "-NAME ...", and
 * gives it back. "!NAME ERROR" when it is refused. Cheap to start: a crowd of these is a crowd of hosts.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

static void note(int out, char what, const char *name)
{
    char line[300];
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    int n = what == '!' ? snprintf(line, sizeof line, "!%s %s\n", name, strerrorname_np(errno))
                        : snprintf(line, sizeof line, "%c%s %ld\n", what, name, t.tv_sec * 1000 + t.tv_nsec / 1000000);
    if (write(out, line, (size_t)n) != n)
        _exit(9);
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    int fd = open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    int out = open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    char mode = argv[4][0];
    int op = (mode == 'x' || mode == 'w' ? LOCK_EX : LOCK_SH) | (mode == 'w' || mode == 'r' ? LOCK_NB : 0);
    if (fd < 0 || out < 0)
        return 2;
    if (flock(fd, op) < 0) {
        note(out, '!', argv[3]);
        return 1;
    }
    note(out, '+', argv[3]);
    if (argv[5][0] == '/')
        while (access(argv[5], F_OK) < 0)
            usleep(2000);
    else
        usleep((useconds_t)atoi(argv[5]) * 1000);
    note(out, '-', argv[3]);
    return flock(fd, LOCK_UN) < 0;
}
