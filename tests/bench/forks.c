/*
 * forks FOLDER HELD ROUNDS: fork() while HELD locks are held. For each round a line with two times in us, until fork()
 * returns in the parent: the first fork after locking, and the second. With and without the shim.
 */
#include "bench.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

static int64_t one_fork(void)
{
    int64_t t = now_ns();
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    t = now_ns() - t;
    if (pid < 0 || waitpid(pid, NULL, 0) != pid)
        die("fork");
    return t;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    int held = atoi(argv[2]);
    int *fd = calloc((size_t)held + 1, sizeof *fd);
    char path[4096];
    for (int round = 0; round < atoi(argv[3]); round++) {
        for (int i = 0; i < held; i++) {
            (void)snprintf(path, sizeof path, "%s/%d.lock", argv[1], i);
            fd[i] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
            if (fd[i] < 0 || flock(fd[i], LOCK_EX) < 0)
                die(path);
        }
        int64_t first = one_fork();
        int64_t second = one_fork();
        printf("%.1f %.1f\n", USEC(first), USEC(second));
        for (int i = 0; i < held; i++)
            if (flock(fd[i], LOCK_UN) < 0 || close(fd[i]) < 0)
                die(path);
    }
    free(fd);
    return 0;
}
