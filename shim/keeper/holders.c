/*
 * Who has a lock that is lost? Those are told. And who has an open file description? Asked only for locks that the kernel does not know
 * (stand-ins whose descriptor came from the locker's parent, as in a shell's `exec 9>file; flock 9`): kcmp(2) compares every descriptor of
 * every process that refers to the same file with a copy of our own. The answer is remembered, so that the whole of /proc is read only when
 * the last known holder has let go.
 */
#include "keeper/keeper.h"

#include "base/sys.h"

#include <dirent.h>
#include <errno.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool has(pid_t pid, int fd, int ours)
{
    return syscall(SYS_kcmp, getpid(), pid, KCMP_FILE, ours, fd) == 0;
}

static bool look_at(pid_t pid, struct holder *h, const struct stat *file)
{
    char path[64];
    bool found = false;
    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    const struct dirent *e;
    while (dir && !found && (e = readdir(dir))) {
        struct stat st;
        int fd = e->d_name[0] < '0' || e->d_name[0] > '9' ? -1 : atoi(e->d_name);
        if (fd < 0 || fstatat(dirfd(dir), e->d_name, &st, 0) < 0 || st.st_dev != file->st_dev || st.st_ino != file->st_ino)
            continue;
        found = has(pid, fd, h->ours);
        if (found) {
            h->pid = pid;
            h->fd = fd;
        }
    }
    if (dir)
        (void)closedir(dir);
    return found;
}

/* Does the process have a description with a lock of this kind on the file? */
static bool holds(pid_t pid, uint64_t dev, uint64_t ino, const char *type)
{
    char path[64];
    char line[256];
    bool found = false;
    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    const struct dirent *e;
    while (dir && !found && (e = readdir(dir))) {
        struct stat st;
        if (e->d_name[0] < '0' || e->d_name[0] > '9' || fstatat(dirfd(dir), e->d_name, &st, 0) < 0 || st.st_dev != dev || st.st_ino != ino)
            continue;
        (void)snprintf(path, sizeof path, "/proc/%d/fdinfo/%.10s", (int)pid, e->d_name);
        FILE *info = fopen(path, "re");
        while (info && !found && fgets(line, sizeof line, info)) {
            char kind[8];
            unsigned long of;
            found = sscanf(line, "lock: %*d: %7s %*s %*s %*d %*x:%*x:%lu", kind, &of) == 2 && of == ino && strcmp(kind, type) == 0;
        }
        if (info)
            (void)fclose(info);
    }
    if (dir)
        (void)closedir(dir);
    return found;
}

int holders_signal(uint64_t dev, uint64_t ino, const char *type, int sig)
{
    int n = 0;
    DIR *proc = opendir("/proc");
    const struct dirent *e;
    while (proc && (e = readdir(proc))) {
        pid_t pid = e->d_name[0] < '0' || e->d_name[0] > '9' ? 0 : (pid_t)atoi(e->d_name);
        if (pid > 0 && pid != getpid() && pid != guard_pid() && holds(pid, dev, ino, type) && nf_sys.kill(pid, sig) == 0)
            n++;
    }
    if (proc)
        (void)closedir(proc);
    return n;
}

bool holder_alive(struct holder *h)
{
    struct stat file;
    bool found = false;
    if (h->pid > 0 && has(h->pid, h->fd, h->ours))
        return true;
    if (fstat(h->ours, &file) < 0)
        return false;
    DIR *proc = opendir("/proc");
    const struct dirent *e;
    while (proc && !found && (e = readdir(proc))) {
        pid_t pid = e->d_name[0] < '0' || e->d_name[0] > '9' ? 0 : (pid_t)atoi(e->d_name);
        found = pid > 0 && pid != getpid() && pid != guard_pid() && look_at(pid, h, &file);
    }
    if (proc)
        (void)closedir(proc);
    return found;
}
