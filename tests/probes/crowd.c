/*
 * crowd FOLDER COUNT [HOLD-MS]: COUNT "hosts" that want one lock, cheaply: processes under the shim, each with a file of
 * its own (another inode) that has the same name in Redis, lock:crowd/x. Each waits, holds the lock for a moment, writes its
 * number into FOLDER/served, unlocks and ends. Prints at last "failed N overlaps N".
 *
 * Started without the shim; starts itself again with it ($NF_PRELOAD).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct shared {
    atomic_int inside, overlaps;
};

static void die(const char *what)
{
    perror(what);
    exit(2);
}

static int get(const char *folder, const char *rest, int flags)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", folder, rest);
    int fd = open(path, flags | O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        die(path);
    return fd;
}

static struct shared *map(const char *folder)
{
    int fd = get(folder, "shared", 0);
    struct shared *s = MAP_FAILED;
    if (ftruncate(fd, sizeof *s) == 0)
        s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (s == MAP_FAILED)
        die("shared");
    close(fd);
    return s;
}

static int host(const char *folder, const char *me, int hold_ms)
{
    char line[32];
    struct shared *s = map(folder);
    int served = get(folder, "served", O_APPEND);
    (void)snprintf(line, sizeof line, "%s/x", me);
    int fd = get(folder, line, 0);
    if (flock(fd, LOCK_EX) < 0) {
        fprintf(stderr, "%s: %s\n", me, strerrorname_np(errno));
        return 1;
    }
    if (atomic_fetch_add(&s->inside, 1) != 0)
        atomic_fetch_add(&s->overlaps, 1);
    int n = snprintf(line, sizeof line, "%s\n", me);
    if (write(served, line, (size_t)n) != n)
        die("served");
    usleep((unsigned)hold_ms * 1000);
    atomic_fetch_sub(&s->inside, 1);
    return flock(fd, LOCK_UN) < 0;
}

static void start(const char *folder, int i, char *hold_ms)
{
    char name[16];
    char prefix[4200];
    const char *preload = getenv("NF_PRELOAD");
    (void)snprintf(name, sizeof name, "%d", i);
    (void)snprintf(prefix, sizeof prefix, "%s/%d", folder, i);
    if (mkdir(prefix, 0777) < 0 && errno != EEXIST)
        die(prefix);
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid > 0)
        return;
    size_t n = strlen(prefix);
    snprintf(prefix + n, sizeof prefix - n, "=crowd");
    if (setenv("LD_PRELOAD", preload ? preload : "", 1) < 0 || setenv("NETFLOCK_PREFIX", prefix, 1) < 0)
        die("setenv");
    execl("/proc/self/exe", "crowd", "host", folder, name, hold_ms, (char *)NULL);
    die("exec");
}

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "host"))
        return host(argv[2], argv[3], atoi(argv[4]));
    if (argc < 3)
        return 2;
    struct shared *s = map(argv[1]);
    for (int i = 1; i <= atoi(argv[2]); i++)
        start(argv[1], i, argc > 3 ? argv[3] : (char *)"0");
    int status, failed = 0;
    while (wait(&status) > 0)
        failed += status != 0;
    printf("failed %d overlaps %d\n", failed, atomic_load(&s->overlaps));
    return 0;
}
