/*
 * Several "hosts" on one lock: processes under the shim, each with a file of its own (another inode) that has the same
 * name in Redis.
 *
 *   hosts handover SO FOLDER ADDR ROUNDS   two hosts; for each round a line, in us: from the return of the release to
 *                                          the return of the grant; from the call of the release; one PING
 *   hosts turns SO FOLDER COUNT SECONDS    COUNT hosts lock and unlock all the time; a line for each with its turns,
 *                                          and at last "lost N changed M": increments of a plain counter that the lock
 *                                          let go; turns that went to another host than the one before
 *
 * Started without the shim; starts itself again, as "worker", with it.
 */
#include "bench.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOSTS_MAX 64
#define ROUNDS_MAX 4096

struct shared {
    atomic_int ready;
    atomic_int go;                  /* 1: run, 2: stop */
    atomic_int held, waiting, done; /* the round, from 1 on */
    int64_t called[ROUNDS_MAX], released[ROUNDS_MAX], granted[ROUNDS_MAX], ping[ROUNDS_MAX];
    volatile long counter, changed; /* of the one that holds the lock */
    volatile int last;
    long turns[HOSTS_MAX];
};

static void pause_us(unsigned us)
{
    (void)usleep(us);
}

static void await(atomic_int *what, int value)
{
    while (atomic_load(what) < value)
        pause_us(200);
}

static void lock(int fd, int op)
{
    if (flock(fd, op) < 0)
        die("flock");
}

static void hold(struct shared *s, int r, int fd, int redis)
{
    lock(fd, LOCK_EX);
    atomic_store(&s->held, r);
    await(&s->waiting, r);
    pause_us(3000); /* until the other one has asked, and sleeps */
    int64_t t = now_ns();
    redis_ping(redis);
    s->ping[r] = now_ns() - t;
    pause_us(300);
    s->called[r] = now_ns();
    lock(fd, LOCK_UN);
    s->released[r] = now_ns();
    await(&s->done, r);
}

static void wait_turn(struct shared *s, int r, int fd)
{
    await(&s->held, r);
    atomic_store(&s->waiting, r);
    lock(fd, LOCK_EX);
    s->granted[r] = now_ns();
    lock(fd, LOCK_UN);
    atomic_store(&s->done, r);
}

/* worker SHARED FILE ME handover ROUNDS ADDR, or worker SHARED FILE ME turns */
static int worker(int argc, char **argv)
{
    struct shared *s = map_shared(argv[2], sizeof *s);
    int fd = open(argv[3], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int me = atoi(argv[4]);
    if (fd < 0)
        die(argv[3]);
    lock(fd, LOCK_EX); /* the connection is there, and the thread */
    lock(fd, LOCK_UN);
    int redis = argc > 7 ? redis_dial(argv[7]) : -1;
    atomic_fetch_add(&s->ready, 1);
    await(&s->go, 1);
    if (argc > 7) {
        for (int r = 1; r <= atoi(argv[6]); r++)
            if ((r & 1) == me)
                hold(s, r, fd, redis);
            else
                wait_turn(s, r, fd);
        return 0;
    }
    while (atomic_load(&s->go) == 1) {
        lock(fd, LOCK_EX);
        s->counter = s->counter + 1;
        s->turns[me]++;
        if (s->last != me) {
            s->last = me;
            s->changed = s->changed + 1;
        }
        lock(fd, LOCK_UN);
    }
    return 0;
}

static void start_worker(const char *so, const char *folder, const char *shared, int me, char *const *rest)
{
    char dir[4096];
    char file[4200];
    char prefix[4200];
    char number[16];
    (void)snprintf(dir, sizeof dir, "%s/host%d", folder, me);
    (void)snprintf(file, sizeof file, "%s/x.lock", dir);
    (void)snprintf(prefix, sizeof prefix, "%s=bench", dir);
    (void)snprintf(number, sizeof number, "%d", me);
    (void)mkdir(dir, 0700);
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid > 0)
        return;
    (void)setenv("LD_PRELOAD", so, 1);
    (void)setenv("NETFLOCK_PREFIX", prefix, 1);
    (void)execl("/proc/self/exe", "hosts", "worker", shared, file, number, rest[0], rest[1], rest[2], (char *)NULL);
    die("exec");
}

static int finish(int failed)
{
    int status;
    while (wait(&status) > 0)
        failed |= status != 0;
    return failed;
}

int main(int argc, char **argv)
{
    char shared[4096];
    if (argc >= 6 && strcmp(argv[1], "worker") == 0)
        return worker(argc, argv);
    if (argc != 6)
        return 2;
    int handover = strcmp(argv[1], "handover") == 0;
    int hosts = handover ? 2 : atoi(argv[4]);
    int rounds = handover ? atoi(argv[5]) : 0;
    char *rest[] = {argv[1], argv[5], argv[4]};
    if (!handover)
        rest[1] = NULL;
    if (hosts > HOSTS_MAX || rounds >= ROUNDS_MAX)
        return 2;
    (void)snprintf(shared, sizeof shared, "%s/shared", argv[3]);
    (void)unlink(shared);
    struct shared *s = map_shared(shared, sizeof *s);
    for (int i = 0; i < hosts; i++)
        start_worker(argv[2], argv[3], shared, i, rest);
    await(&s->ready, hosts);
    atomic_store(&s->go, 1);
    if (!handover) {
        pause_us((unsigned)(atof(argv[5]) * 1e6));
        atomic_store(&s->go, 2);
    }
    if (finish(0))
        return 1;
    for (int r = 1; r <= rounds; r++)
        printf("%.1f %.1f %.1f\n", USEC(s->granted[r] - s->released[r]), USEC(s->granted[r] - s->called[r]), USEC(s->ping[r]));
    long sum = 0;
    for (int i = 0; !handover && i < hosts; i++) {
        printf("%ld\n", s->turns[i]);
        sum += s->turns[i];
    }
    if (!handover)
        printf("lost %ld changed %ld\n", sum - s->counter, s->changed);
    return 0;
}
