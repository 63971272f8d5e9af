/*
 * A process and all that descend from it, by what /proc says of parents. One that loses its parent before we get there
 * is not found: nobody can tell any more whose it was.
 */
#include "cli/lock.h"

#include "cli/cli.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct process {
    int pid, parent;
};

/* The parent, by /proc/PID/stat: "PID (NAME) STATE PARENT ...", where NAME may hold anything. 0 if it is gone. */
static int parent_of(const char *pid)
{
    char path[64];
    char line[256];
    (void)snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(line, 1, sizeof line - 1, f) : 0;
    if (f)
        (void)fclose(f);
    line[n] = 0;
    const char *end = strrchr(line, ')');
    return end && strlen(end) > 4 ? (int)strtol(end + 4, NULL, 10) : 0;
}

static struct process *all_processes(size_t *n)
{
    struct process *list = NULL;
    size_t room = 0;
    const struct dirent *e;
    DIR *d = opendir("/proc");
    *n = 0;
    while (d && (e = readdir(d))) {
        int pid = (int)strtol(e->d_name, NULL, 10);
        if (pid <= 0)
            continue;
        if (*n == room) {
            room = room ? room * 2 : 256;
            list = need(reallocarray(list, room, sizeof *list));
        }
        list[(*n)++] = (struct process){pid, parent_of(e->d_name)};
    }
    if (d)
        (void)closedir(d);
    return list;
}

void tree_signal(int pid, int sig)
{
    size_t n;
    struct process *all = all_processes(&n);
    int *found = need(calloc(n + 1, sizeof *found));
    size_t n_found = 1;
    found[0] = pid;
    for (size_t i = 0; i < n_found; i++)
        for (size_t k = 0; k < n && n_found <= n; k++)
            if (all[k].parent == found[i])
                found[n_found++] = all[k].pid;
    for (size_t i = 0; i < n_found; i++)
        (void)kill(found[i], sig);
    free(found);
    free(all);
}
