/*
 * many FOLDER ADDR COUNT TTL-MS SECONDS: holds COUNT locks and does nothing for SECONDS. Runs under the shim.
 * Prints: CPU share of this process in percent, of the server in percent, renewals sent for each lock and renewal
 * period, commands that Redis ran for each renewal, bytes for each lock here, bytes in Redis, us to take one.
 * The same program without the shim tells what of the bytes here is the program's own.
 */
#include "bench.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct sample {
    double cpu;    /* s, this process */
    double server; /* s, the server */
    double evals;
    double commands;
    double wall;
};

static double number(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? strtod(at + strlen(name), NULL) : 0;
}

static double process_cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct sample look(int redis)
{
    static char buf[65536];
    struct sample s = {.cpu = process_cpu(), .wall = (double)now_ns() / 1e9};
    redis_line(redis, "INFO cpu", buf, sizeof buf);
    s.server = number(buf, "used_cpu_sys:") + number(buf, "used_cpu_user:");
    redis_line(redis, "INFO commandstats", buf, sizeof buf);
    s.evals = number(buf, "cmdstat_evalsha:calls=") + number(buf, "cmdstat_eval:calls=");
    for (const char *at = buf; (at = strstr(at, ":calls=")); at++)
        s.commands += strtod(at + 7, NULL);
    return s;
}

static double used_memory(int redis)
{
    static char buf[65536];
    redis_line(redis, "INFO memory", buf, sizeof buf);
    return number(buf, "used_memory:");
}

static double resident(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f || fscanf(f, "%*d %ld", &pages) != 1)
        die("statm");
    (void)fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    int count = atoi(argv[3]);
    double period = atof(argv[4]) / 3000.0;
    double seconds = atof(argv[5]);
    struct rlimit limit = {(rlim_t)count + 100, (rlim_t)count + 100};
    int redis = redis_dial(argv[2]);
    int *fd = calloc((size_t)count, sizeof *fd);
    char path[4096];
    if (!fd || setrlimit(RLIMIT_NOFILE, &limit) < 0)
        die("setrlimit");
    for (int i = 0; i < count; i++) {
        (void)snprintf(path, sizeof path, "%s/%05d.lock", argv[1], i);
        fd[i] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd[i] < 0)
            die(path);
    }
    (void)used_memory(redis);
    double rss = resident();
    double used = used_memory(redis);
    int64_t t = now_ns();
    for (int i = 0; i < count; i++)
        if (flock(fd[i], LOCK_EX) < 0)
            die("flock");
    double take_us = USEC(now_ns() - t) / count;
    rss = (resident() - rss) / count;
    used = (used_memory(redis) - used) / count;
    /* From the middle of one pause to the middle of another. */
    struct timespec pause = {.tv_sec = (time_t)(period / 2), .tv_nsec = (long)((period / 2 - (double)(time_t)(period / 2)) * 1e9)};
    (void)nanosleep(&pause, NULL);
    struct sample a = look(redis);
    pause = (struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    (void)nanosleep(&pause, NULL);
    struct sample b = look(redis);
    double wall = b.wall - a.wall;
    double evals = b.evals - a.evals;
    printf("%.2f %.2f %.2f %.2f %.0f %.0f %.1f\n", 100 * (b.cpu - a.cpu) / wall, 100 * (b.server - a.server) / wall,
           evals / (count * wall / period), evals > 0 ? (b.commands - a.commands) / evals : 0.0, rss, used, take_us);
    for (int i = 0; i < count; i++)
        (void)flock(fd[i], LOCK_UN);
    free(fd);
    return 0;
}
