/*
 * pidfile FILE: takes libbsd's pid file lock, writes the pid into it, becomes a daemon, stays until it is killed.
 * pidfile FILE plain: the same with open and flock, as many daemons do it themselves.
 */
#include <bsd/libutil.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    pid_t other = 0;
    struct pidfh *p;

    if (argc > 2) {
        int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
        if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0) {
            printf("running, %s\n", strerror(errno));
            return 1;
        }
        if (daemon(1, 0) < 0 || dprintf(fd, "%d\n", (int)getpid()) < 0)
            return 2;
        for (;;)
            pause();
    }
    p = argc > 1 ? pidfile_open(argv[1], 0600, &other) : NULL;

    if (!p) {
        printf("%s, pid %d\n", errno == EEXIST ? "running" : strerror(errno), (int)other);
        return 1;
    }
    if (daemon(1, 0) < 0)
        return 2;
    pidfile_write(p);
    for (;;)
        pause();
}
