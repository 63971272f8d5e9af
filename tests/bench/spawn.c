/*
 * spawn SO ROUNDS FILE-A FILE-B CMD...: starts CMD, waits for it, ROUNDS times with SO preloaded and as often without,
 * by turns. A word "@" of CMD stands for FILE-A with, FILE-B without (two files: each is locked by its own kind only).
 * Prints in us: p50 with, p50 without, p99 with, p99 without.
 */
#include "bench.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int64_t start(char *const *cmd, char *const *env)
{
    pid_t pid;
    int status;
    int64_t t = now_ns();
    if (posix_spawn(&pid, cmd[0], NULL, NULL, cmd, env) != 0 || waitpid(pid, &status, 0) != pid || status != 0)
        die(cmd[0]);
    return now_ns() - t;
}

static char **words(char **from, int n, char *file)
{
    char **to = calloc((size_t)n + 1, sizeof *to);
    if (!to)
        die("calloc");
    for (int i = 0; i < n; i++)
        to[i] = strcmp(from[i], "@") == 0 ? file : from[i];
    return to;
}

int main(int argc, char **argv)
{
    size_t n_env = 0;
    if (argc < 6)
        return 2;
    size_t n = (size_t)atol(argv[2]);
    while (environ[n_env])
        n_env++;
    char **preloaded = calloc(n_env + 2, sizeof *preloaded);
    int64_t *with = calloc(n, sizeof *with);
    int64_t *without = calloc(n, sizeof *without);
    if (!preloaded || !with || !without || asprintf(&preloaded[0], "LD_PRELOAD=%s", argv[1]) < 0)
        die("calloc");
    memcpy(preloaded + 1, environ, n_env * sizeof *environ);
    char **a = words(argv + 5, argc - 5, argv[3]);
    char **b = words(argv + 5, argc - 5, argv[4]);
    (void)start(a, preloaded);
    (void)start(b, environ);
    for (size_t i = 0; i < n; i++) {
        with[i] = start(a, preloaded);
        without[i] = start(b, environ);
    }
    printf("%.1f %.1f", USEC(quantile(with, n, 0.5)), USEC(quantile(without, n, 0.5)));
    printf(" %.1f %.1f\n", USEC(quantile(with, n, 0.99)), USEC(quantile(without, n, 0.99)));
    free(a);
    free(b);
    free(preloaded[0]);
    free(preloaded);
    return 0;
}
