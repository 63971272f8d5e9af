/*
 * waiters all DIR COUNT ROUNDS: a thread for each of the files DIR/0...; each locks and unlocks its own, so often, and
 *     waits where another host has it. Prints "failed N".
 * waiters robbed FILE DATA GO: one thread waits for FILE. When the file GO is there, all sockets of this process are closed
 *     behind everybody's back, and DATA is opened under their numbers. Prints "robbed N", and "locked" when the thread has
 *     the lock; then locks and unlocks FILE once more and prints
 *     "again", and "kept" if DATA is still open under all of them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *where;
static int rounds;
static atomic_int failed;

static int get(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) {
        perror(path);
        exit(2);
    }
    return fd;
}

static void check(int r)
{
    if (r < 0) {
        fprintf(stderr, "%s\n", strerrorname_np(errno));
        failed++;
    }
}

static void *waiter(void *arg)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%d", where, (int)(long)arg);
    int fd = get(path);
    for (int i = 0; i < rounds; i++) {
        check(flock(fd, LOCK_EX));
        check(flock(fd, LOCK_UN));
    }
    close(fd);
    return NULL;
}

static int all(int count)
{
    pthread_t *t = calloc((size_t)count, sizeof *t);
    if (!t)
        return 2;
    for (int i = 0; i < count; i++)
        if (pthread_create(&t[i], NULL, waiter, (void *)(long)i) != 0)
            return 2;
    for (int i = 0; i < count; i++)
        pthread_join(t[i], NULL);
    free(t);
    printf("failed %d\n", failed);
    return 0;
}

static void *one(void *arg)
{
    check(flock(*(int *)arg, LOCK_EX));
    printf("locked\n");
    return NULL;
}

static int robbed(const char *file, const char *data, const char *go)
{
    pthread_t t;
    struct stat st;
    struct stat stolen;
    int n = 0;
    int fd = get(file);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (pthread_create(&t, NULL, one, &fd) != 0)
        return 2;
    while (access(go, F_OK) < 0)
        usleep(10000);
    int other = get(data);
    check(fstat(other, &stolen));
    for (int s = 3; s < 70000; s++)
        if (fstat(s, &st) == 0 && S_ISSOCK(st.st_mode)) {
            n++;
            check((int)syscall(SYS_dup3, other, s, O_CLOEXEC));
        }
    printf("robbed %d\n", n);
    pthread_join(t, NULL);
    check(flock(fd, LOCK_UN));
    check(flock(fd, LOCK_EX));
    check(flock(fd, LOCK_UN));
    printf("again\n");
    for (int s = 3; s < 70000; s++)
        n -= s != other && fstat(s, &st) == 0 && st.st_dev == stolen.st_dev && st.st_ino == stolen.st_ino;
    printf(n == 0 ? "kept\n" : "%d are closed\n", n);
    return failed != 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "all")) {
        where = argv[2];
        rounds = atoi(argv[4]);
        return all(atoi(argv[3]));
    }
    return argc == 5 && !strcmp(argv[1], "robbed") ? robbed(argv[2], argv[3], argv[4]) : 2;
}
