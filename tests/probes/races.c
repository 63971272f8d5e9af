/*
 * races WHAT DIR THREADS MS: many threads at once, all from the first call on, for so many milliseconds. It asks for no result
 * but that nothing fails that should not: what is looked for is found by the thread sanitizer, with which this and the library
 * are built. Other hosts do the same with the same names. Prints "failed N", and what failed on standard error.
 *
 *   flock    each thread with descriptors of its own on a few common files: locks, converts, unlocks, closes
 *   one      all threads with one descriptor, which one of them closes and opens again under the others' hands
 *   records  byte ranges of one file, for the process and for descriptions; closes that drop them
 *   fork     threads lock while others fork; the children unlock, convert, lock, and end
 *   hold     each thread keeps some locks and asks how long they last, while others lock next to it
 *   heirs    all locks go to children, again and again, and are given up on both sides
 *   first    every thread's first call on the shim, when there is no descriptor left; then there are some
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILES 4
#define HELD 6

static const char *where;
static long end_ms;
static pthread_barrier_t start;
static atomic_int failed, common = -1;

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int go_on(void)
{
    return now_ms() < end_ms;
}

/* A refusal is an answer, as is a descriptor that another thread has closed (`closed`) or a deadlock between hosts. */
static int check(const char *what, int r, int closed)
{
    if (r >= 0 || errno == EWOULDBLOCK || errno == EDEADLK || (closed && errno == EBADF))
        return r;
    fprintf(stderr, "%s: %s\n", what, strerrorname_np(errno));
    failed++;
    return r;
}

static int file(const char *kind, unsigned n)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s%u", where, kind, n);
    return check("open", open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666), 0);
}

static void flocks(unsigned me)
{
    for (unsigned i = me; go_on(); i++) {
        int fd = file("f", i % FILES);
        check("flock", flock(fd, i % 3 ? LOCK_EX : LOCK_SH), 0);
        int twin = i % 5 == 0 ? dup(fd) : -1;
        check("convert", flock(fd, i % 2 ? LOCK_SH : LOCK_EX | LOCK_NB), 0);
        if (i % 4)
            check("unlock", flock(fd, LOCK_UN), 0);
        close(fd);
        if (twin >= 0)
            close(twin);
    }
}

static void one(unsigned me)
{
    static const int ops[] = {LOCK_EX | LOCK_NB, LOCK_SH | LOCK_NB, LOCK_UN, LOCK_SH, LOCK_UN};
    for (unsigned i = me; go_on(); i++) {
        if (me == 0 && i % 8 == 0) {
            int fd = file("one", 0);
            int old = atomic_load(&common);
            if (old < 0) {
                atomic_store(&common, fd);
                continue;
            }
            check("dup2", dup2(fd, old), 0); /* closes what the others use */
            close(fd);
        }
        check("flock", flock(atomic_load(&common), ops[i % 5]), 1);
    }
}

static int range(int fd, int cmd, short type, unsigned start_at)
{
    struct flock fl = {.l_type = type, .l_whence = SEEK_SET, .l_start = start_at, .l_len = 10};
    return fcntl(fd, cmd, &fl);
}

static void records(unsigned me)
{
    int ofd = file("r", 0);
    for (unsigned i = me; go_on(); i++) {
        unsigned at = i % 3 * 10;
        int fd = file("r", 0);
        check("setlkw", range(fd, F_SETLKW, i % 2 ? F_WRLCK : F_RDLCK, at), 0);
        check("getlk", range(fd, F_GETLK, F_WRLCK, at + 10), 0);
        check("ofd", range(ofd, F_OFD_SETLK, i % 3 ? F_WRLCK : F_RDLCK, 100 + at), 0);
        if (i % 3)
            check("unlock", range(fd, F_SETLK, F_UNLCK, at), 0);
        check("unlock", range(ofd, F_OFD_SETLK, F_UNLCK, 100 + at), 0);
        if (i % 7 == 0)
            check("ofd, wait", range(ofd, F_OFD_SETLKW, F_WRLCK, 200), 0);
        close(fd); /* and with it all that the process had */
        check("unlock", range(ofd, F_OFD_SETLK, F_UNLCK, 200), 0);
    }
    close(ofd);
}

static void forks(unsigned me)
{
    if (me % 2) {
        flocks(me);
        return;
    }
    for (unsigned i = me; go_on(); i++) {
        int fd = file("mine", me);
        int status = -1;
        check("flock", flock(fd, LOCK_EX), 0);
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            int own = file("child", me);
            int r = flock(own, LOCK_EX) || flock(own, LOCK_UN) || (i % 3 == 0 && flock(fd, LOCK_SH)) || (i % 3 == 1 && flock(fd, LOCK_UN));
            _exit(r);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
            fprintf(stderr, "child: %x\n", status);
            failed++;
        }
        check("unlock", flock(fd, LOCK_UN), 0);
        close(fd);
    }
}

static void hold(unsigned me)
{
    int (*lease)(int, int64_t *) = (int (*)(int, int64_t *))dlsym(RTLD_DEFAULT, "netflock_lease");
    int fd[HELD];
    for (unsigned i = 0; i < HELD; i++) {
        fd[i] = file(me % 2 ? "held" : "ranges", me * HELD + i);
        check("hold", me % 2 ? flock(fd[i], LOCK_EX | LOCK_NB) : range(fd[i], F_SETLK, F_WRLCK, 0), 0);
    }
    for (unsigned i = 0; go_on(); i++) {
        int64_t left = -1;
        if (lease)
            (void)lease(fd[i % HELD], &left);
        int next = file("next", me);
        check("flock", flock(next, LOCK_EX), 0);
        close(next);
        for (unsigned k = 0; k < 10 && me % 2 == 0; k++) /* is held already; and then some that is not */
            check("again", range(fd[i % HELD], F_SETLK, F_WRLCK, 0), 0);
        check("more", range(fd[i % HELD], F_SETLK, F_WRLCK, 20), 0);
        check("less", range(fd[i % HELD], F_SETLK, F_UNLCK, 20), 0);
        if (i % 4 == 0)
            usleep(2000);
    }
    for (unsigned i = 0; i < HELD; i++)
        close(fd[i]);
}

static void heirs(unsigned me)
{
    while (go_on()) {
        int fd[HELD];
        for (unsigned i = 0; i < HELD; i++) {
            fd[i] = file("heir", me * HELD + i);
            check("flock", flock(fd[i], i % 2 ? LOCK_EX : LOCK_SH), 0);
        }
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            for (unsigned i = 0; i < HELD; i++)
                (void)flock(fd[i], i % 3 ? LOCK_UN : LOCK_SH | LOCK_NB);
            _exit(0);
        }
        for (unsigned i = 0; i < HELD; i++) {
            if (i % 2)
                check("unlock", flock(fd[i], LOCK_UN), 0);
            close(fd[i]);
        }
        if (child < 0 || waitpid(child, NULL, 0) != child)
            failed++;
    }
}

/* Descriptors are found to be short while the configuration is read: it is read again by whoever comes then. */
static void first(unsigned me)
{
    static struct rlimit limit;
    static atomic_int full = -1;
    int fd = file("f", me % FILES);
    pthread_barrier_wait(&start);
    if (me == 0) {
        getrlimit(RLIMIT_NOFILE, &limit);
        struct rlimit none = {.rlim_cur = 3, .rlim_max = limit.rlim_max};
        setrlimit(RLIMIT_NOFILE, &none);
        atomic_store(&full, 1);
    }
    while (atomic_load(&full) < 0)
        ;
    for (unsigned i = 0; go_on(); i++) {
        if (flock(fd, LOCK_EX) == 0)
            flock(fd, LOCK_UN);
        else if (errno != ENOLCK)
            check("flock", -1, 0);
        if (me == 0 && i == 20)
            setrlimit(RLIMIT_NOFILE, &limit);
    }
    check("flock at last", flock(fd, LOCK_EX), 0);
    close(fd);
}

static void (*work)(unsigned me);

static void *thread(void *arg)
{
    pthread_barrier_wait(&start);
    work((unsigned)(uintptr_t)arg);
    return NULL;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*work)(unsigned me);
    } all[] = {{"flock", flocks}, {"one", one}, {"records", records}, {"fork", forks}, {"hold", hold}, {"heirs", heirs}, {"first", first}};
    pthread_t t[64];
    unsigned n = argc == 5 ? (unsigned)atoi(argv[3]) : 0;
    for (size_t i = 0; n > 0 && i < sizeof all / sizeof all[0]; i++)
        if (strcmp(argv[1], all[i].name) == 0)
            work = all[i].work;
    if (!work || n > 64)
        return 2;
    where = argv[2];
    end_ms = now_ms() + atol(argv[4]);
    pthread_barrier_init(&start, NULL, n);
    for (unsigned i = 0; i < n; i++)
        pthread_create(&t[i], NULL, thread, (void *)(uintptr_t)i);
    for (unsigned i = 0; i < n; i++)
        pthread_join(t[i], NULL);
    printf("failed %d\n", failed);
    return failed != 0;
}
