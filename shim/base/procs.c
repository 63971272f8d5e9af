/*
 * See procs.h. Without malloc and stdio streams: it runs when the program is about to be gone.
 *
 * /proc may belong to an outer PID namespace (unshare --pid without --mount-proc). Then its numbers are not ours: a process
 * is one of us if its namespace is, and its number in ours is the last one of the NSpid line in its status.
 */
#include "base/procs.h"

#include "base/sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPACE_MAX 40
/* The number that the kernel gives to its first PID namespace (PROC_PID_INIT_INO of include/linux/proc_ns.h). */
#define FIRST_SPACE "pid:[4026531836]"

static bool space_of(const char *pid, char buf[SPACE_MAX])
{
    char link[48];
    (void)snprintf(link, sizeof link, "/proc/%.20s/ns/pid", pid);
    ssize_t n = nf_sys.readlink(link, buf, SPACE_MAX - 1);
    buf[n > 0 ? n : 0] = 0;
    return n > 0;
}

bool nf_pid_namespaced(void)
{
    char space[SPACE_MAX];
    return space_of("self", space) && strcmp(space, FIRST_SPACE) != 0;
}

static bool read_of(const char *pid, const char *name, char *buf, size_t size)
{
    char path[48];
    (void)snprintf(path, sizeof path, "/proc/%.20s/%s", pid, name);
    int fd = nf_sys.open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return false;
    ssize_t n = nf_sys.read(fd, buf, size - 1);
    (void)nf_sys.close(fd);
    buf[n > 0 ? n : 0] = 0;
    return n > 0;
}

/* 1234 (any name) S ...: the name may hold anything, but only it can hold the last parenthesis. */
static bool read_stat(const char *pid, struct nf_proc *p)
{
    char buf[512];
    if (!read_of(pid, "stat", buf, sizeof buf))
        return false;
    const char *name = strchr(buf, '(');
    const char *end = strrchr(buf, ')');
    if (!name || !end || end < name || end[1] != ' ')
        return false;
    size_t len = (size_t)(end - name) - 1;
    len = len < sizeof p->comm ? len : sizeof p->comm - 1;
    memcpy(p->comm, name + 1, len);
    p->comm[len] = 0;
    p->state = end[2];
    return true;
}

/* Its number in our namespace, if it is one of us; else 0. */
static pid_t translated(const char *pid, const char *our_space)
{
    char space[SPACE_MAX];
    char buf[4096];
    if (!space_of(pid, space) || strcmp(space, our_space) != 0 || !read_of(pid, "status", buf, sizeof buf))
        return 0;
    char *line = strstr(buf, "\nNSpid:");
    char *end = line ? strchr(line + 1, '\n') : NULL;
    if (!end)
        return 0;
    *end = 0;
    const char *last = strrchr(line, '\t');
    return last ? (pid_t)atoi(last + 1) : 0;
}

int nf_procs(void (*seen)(const struct nf_proc *p, void *arg), void *arg)
{
    /* Aligned as the kernel's records ask for. */
    union {
        uint64_t align;
        char bytes[2048];
    } buf;
    char self[24];
    char space[SPACE_MAX];
    ssize_t n = nf_sys.readlink("/proc/self", self, sizeof self - 1);
    if (n <= 0 || !space_of("self", space))
        return -ENOENT;
    self[n] = 0;
    bool ours = atoi(self) == nf_sys.getpid();
    int dir = nf_sys.open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (dir < 0)
        return dir;
    while ((n = nf_sys.getdents(dir, buf.bytes, sizeof buf)) > 0)
        for (ssize_t at = 0; at < n;) {
            const struct dirent64 *e = (const void *)(buf.bytes + at);
            struct nf_proc p;
            at += e->d_reclen;
            if (e->d_name[0] < '1' || e->d_name[0] > '9' || strcmp(e->d_name, self) == 0)
                continue;
            p.pid = ours ? (pid_t)atoi(e->d_name) : translated(e->d_name, space);
            if (p.pid > 1 && read_stat(e->d_name, &p))
                seen(&p, arg);
        }
    (void)nf_sys.close(dir);
    return n < 0 ? (int)n : 0;
}
