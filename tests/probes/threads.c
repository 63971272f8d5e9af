/*
 * threads storm DIR THREADS ROUNDS: each thread locks and unlocks its own files and shared ones; prints how many
 *     calls failed, and how often two threads were inside one file's exclusive lock at once.
 * threads aside FILE OTHER MS: one thread blocks in flock(FILE); meanwhile this one calls close() and flock(OTHER)
 *     for MS milliseconds, and prints the longest call in microseconds: "close N flock N".
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
#include <time.h>
#include <unistd.h>

static const char *where;
static int rounds, nb = LOCK_NB;
static atomic_int failed, overlaps, inside[4];

static long us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

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

static int aside(char *file, const char *other, long for_us)
{
    pthread_t t;
    long end, slow_close = 0, slow_flock = 0;

    pthread_create(&t, NULL, block, file);
    usleep(50000); /* the other thread is most likely in its call; if not, the test only proves less */
    for (end = us() + for_us; us() < end; usleep(1000)) {
        int fd = open("/dev/null", O_RDONLY), f2 = open(other, O_RDWR | O_CREAT, 0666);
        long t0 = us(), t1;
        close(fd);
        t1 = us();
        if (t1 - t0 > slow_close)
            slow_close = t1 - t0;
        t0 = us();
        check(flock(f2, LOCK_EX | LOCK_NB));
        check(flock(f2, LOCK_UN));
        t1 = us();
        if (t1 - t0 > slow_flock)
            slow_flock = t1 - t0;
        close(f2);
    }
    printf("close %ld flock %ld\n", slow_close, slow_flock);
    fflush(stdout);
    _exit(failed != 0);
}

int main(int argc, char **argv)
{
    pthread_t t[256];
    int n;

    if (argc < 5)
        return 2;
    if (!strcmp(argv[1], "aside"))
        return aside(argv[2], argv[3], atol(argv[4]) * 1000);
    where = argv[2];
    n = atoi(argv[3]);
    rounds = atoi(argv[4]);
    if (!strcmp(argv[1], "fork"))
        nb = 0; /* a child of another thread may have a copy of the description a moment longer */
    for (int i = 0; i < n; i++)
        pthread_create(&t[i], NULL, !strcmp(argv[1], "fork") && i % 2 ? forker : storm, (void *)(long)i);
    for (int i = 0; i < n; i++)
        pthread_join(t[i], NULL);
    printf("failed %d overlaps %d\n", failed, overlaps);
    return failed || overlaps;
}
