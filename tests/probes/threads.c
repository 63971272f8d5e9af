/*
 * threads storm DIR THREADS ROUNDS: each thread locks and unlocks its own files and shared ones; prints how many
 *     calls failed, and how often two threads were inside one file's exclusive lock at once.
 * threads aside FILE OTHER ROUNDS: one thread blocks in flock(FILE). After a line of input another calls close() and
 *     flock(OTHER) so often, and prints how many calls failed.
 * threads fork DIR THREADS ROUNDS: threads lock and unlock while others fork children that lock, too; prints how
 *     many calls failed.
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
#include <sys/wait.h>
#include <unistd.h>

static const char *where;
static int rounds, nb = LOCK_NB;
static atomic_int failed, overlaps, inside[4];

static int get(const char *fmt, int n)
{
    char path[4096];
    int fd;
    snprintf(path, sizeof path, fmt, where, n);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        failed++;
    return fd;
}

static void check(int r)
{
    if (r < 0) {
        fprintf(stderr, "%s\n", strerrorname_np(errno));
        failed++;
    }
}

static void *storm(void *arg)
{
    int me = (int)(long)arg;
    for (int i = 0; i < rounds; i++) {
        int own = get("%s/own%d", me), common = get("%s/common%d", i % 4);
        check(flock(own, LOCK_EX | nb));
        check(flock(common, LOCK_EX));
        if (atomic_fetch_add(&inside[i % 4], 1) != 0)
            overlaps++;
        atomic_fetch_sub(&inside[i % 4], 1);
        check(flock(common, i % 2 ? LOCK_UN : LOCK_SH));
        close(common);
        if (i % 3)
            check(flock(own, LOCK_UN));
        close(own);
    }
    return NULL;
}

static void *forker(void *arg)
{
    int me = (int)(long)arg;
    for (int i = 0; i < rounds; i++) {
        int fd = get("%s/forker%d", me), st = -1;
        check(flock(fd, LOCK_EX));
        pid_t p = fork();
        if (p == 0) {
            int mine = get("%s/child%d", me);
            alarm(20);
            _exit(flock(mine, LOCK_EX) || flock(mine, LOCK_UN));
        }
        if (p < 0 || waitpid(p, &st, 0) != p || st != 0) {
            fprintf(stderr, "child: %x\n", st);
            failed++;
        }
        check(flock(fd, LOCK_UN));
        close(fd);
    }
    return NULL;
}

static void *block(void *arg)
{
    int fd = open(arg, O_RDWR | O_CREAT, 0666);
    flock(fd, LOCK_EX);
    return NULL;
}

static int aside(char *file, const char *other)
{
    pthread_t t;

    pthread_create(&t, NULL, block, file);
    (void)getchar();
    for (int i = 0; i < rounds; i++) {
        int fd = open("/dev/null", O_RDONLY), f2 = open(other, O_RDWR | O_CREAT, 0666);
        close(fd);
        check(flock(f2, LOCK_EX | LOCK_NB));
        check(flock(f2, LOCK_UN));
        close(f2);
    }
    printf("failed %d\n", failed);
    fflush(stdout);
    _exit(failed != 0);
}

int main(int argc, char **argv)
{
    pthread_t t[256];
    int n;

    if (argc < 5)
        return 2;
    rounds = atoi(argv[4]);
    if (!strcmp(argv[1], "aside"))
        return aside(argv[2], argv[3]);
    where = argv[2];
    n = atoi(argv[3]);
    if (!strcmp(argv[1], "fork"))
        nb = 0; /* a child of another thread may have a copy of the description a moment longer */
    for (int i = 0; i < n; i++)
        pthread_create(&t[i], NULL, !strcmp(argv[1], "fork") && i % 2 ? forker : storm, (void *)(long)i);
    for (int i = 0; i < n; i++)
        pthread_join(t[i], NULL);
    printf("failed %d overlaps %d\n", failed, overlaps);
    return failed || overlaps;
}
