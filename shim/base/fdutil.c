/*
 * Reading /proc about descriptors: see fdutil.h. Works without malloc and without stdio.
 */
#include "base/fdutil.h"

#include "base/sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Of the thread: once main() has called pthread_exit(), /proc/self shows no descriptors any more. */
ssize_t nf_fd_name(int fd, char *buf, size_t size)
{
    char link[48];
    struct stat st;
    (void)snprintf(link, sizeof link, "/proc/thread-self/fd/%d", fd);
    ssize_t n = nf_sys.readlink(link, buf, size);
    if (n == -ENOENT && nf_sys.fstat(fd, &st) == -EBADF)
        return -EBADF;
    if (n < 0)
        return n;
    if ((size_t)n == size)
        return -ENAMETOOLONG;
    buf[n] = 0;
    return n;
}

/* The whole of a small /proc file, NUL-terminated; the length or -errno. */
static ssize_t slurp(const char *path, char *buf, size_t size)
{
    int fd = nf_sys.open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    size_t n = 0;
    ssize_t r = 1;
    while (n + 1 < size && (r = nf_sys.read(fd, buf + n, size - n - 1)) > 0)
        n += (size_t)r;
    (void)nf_sys.close(fd);
    buf[n] = 0;
    return r < 0 ? r : (ssize_t)n;
}

int nf_fd_lock_mode(int fd, ino_t ino, bool ofd)
{
    char path[48];
    char buf[4096];
    (void)snprintf(path, sizeof path, "/proc/thread-self/fdinfo/%d", fd);
    ssize_t n = slurp(path, buf, sizeof buf);
    if (n < 0) {
        struct stat st;
        return n == -ENOENT && nf_sys.fstat(fd, &st) == -EBADF ? 0 : (int)n;
    }
    /* lock:	1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF */
    for (char *line = buf; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        unsigned long found;
        char type[8];
        char kind[8];
        if (sscanf(line, "lock: %*d: %7s %*s %7s %*d %*x:%*x:%lu", type, kind, &found) == 3 && found == ino &&
            strcmp(type, ofd ? "OFDLCK" : "FLOCK") == 0)
            return kind[0] == 'W' ? 'x' : 's';
    }
    return 0;
}

int nf_fd_ranges(const char *path, ino_t ino, const char *type, pid_t pid, struct nf_ranges *out)
{
    char buf[4096];
    size_t have = 0;
    ssize_t r;
    int err = 0;
    int fd = nf_sys.open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    while (err == 0 && (r = nf_sys.read(fd, buf + have, sizeof buf - 1 - have)) > 0) {
        have += (size_t)r;
        buf[have] = 0;
        char *line = buf;
        for (char *nl; err == 0 && (nl = strchr(line, '\n')); line = nl + 1) {
            unsigned long found;
            unsigned long long first;
            char kind[8];
            char mode[8];
            char last[24];
            int owner;
            *nl = 0;
            const char *at = strncmp(line, "lock:", 5) == 0 ? line + 5 : line;
            if (sscanf(at, "%*d: %7s %*s %7s %d %*x:%*x:%lu %llu %23s", kind, mode, &owner, &found, &first, last) != 6 || found != ino ||
                owner != pid || strcmp(kind, type) != 0)
                continue;
            if ((err = nf_ranges_reserve(out)) == 0)
                nf_ranges_set(out, first, strcmp(last, "EOF") == 0 ? NF_RANGE_END : strtoull(last, NULL, 10) + 1,
                              mode[0] == 'W' ? 'x' : 's');
        }
        have = strlen(line);
        memmove(buf, line, have);
    }
    (void)nf_sys.close(fd);
    return err;
}

/* The descriptor that an entry of /proc/self/fd names; -1 for "." and "..". */
static int fd_number(const char *name)
{
    return name[0] < '0' || name[0] > '9' ? -1 : atoi(name);
}

/* Without /proc (after chroot), or without a descriptor to read it: one number after the other. */
static int each_number(int (*seen)(int fd, void *arg), void *arg)
{
    struct rlimit lim;
    int end = getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur < 65536 ? (int)lim.rlim_cur : 65536;
    int r = 0;
    for (int fd = 0; r == 0 && fd < end; fd++)
        r = seen(fd, arg);
    return r;
}

int nf_fd_each(int (*seen)(int fd, void *arg), void *arg)
{
    /* Aligned as the kernel's records ask for. */
    union {
        uint64_t align;
        char bytes[2048];
    } buf;
    int dir = nf_sys.open("/proc/thread-self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    int r = 0;
    ssize_t n = 0;
    if (dir < 0)
        return each_number(seen, arg);
    while (r == 0 && (n = nf_sys.getdents(dir, buf.bytes, sizeof buf)) > 0)
        for (ssize_t at = 0; at < n && r == 0;) {
            const struct dirent64 *e = (const void *)(buf.bytes + at);
            int fd = fd_number(e->d_name);
            at += e->d_reclen;
            r = fd < 0 || fd == dir ? 0 : seen(fd, arg);
        }
    (void)nf_sys.close(dir);
    return r == 0 && n < 0 ? (int)n : r;
}

struct search {
    dev_t dev;
    ino_t ino;
    bool (*skip)(int fd);
    int (*test)(int fd, long arg);
    long arg;
    int found;
};

static int compare(int fd, void *arg)
{
    struct search *s = arg;
    if (s->skip(fd) || !nf_fd_is(fd, s->dev, s->ino))
        return 0;
    int yes = s->test(fd, s->arg);
    s->found = yes < 0 ? yes : fd;
    return yes;
}

int nf_fd_find(dev_t dev, ino_t ino, bool (*skip)(int fd), int (*test)(int fd, long arg), long arg)
{
    struct search s = {.dev = dev, .ino = ino, .skip = skip, .test = test, .arg = arg, .found = -ENOENT};
    int r = nf_fd_each(compare, &s);
    return r == 0 ? -ENOENT : r < 0 ? r : s.found;
}

static int look_in_locks(ino_t ino, bool ofd, pid_t pid)
{
    char buf[4096];
    size_t have = 0;
    ssize_t r;
    int found = 0;
    int fd = nf_sys.open("/proc/locks", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    while (!found && (r = nf_sys.read(fd, buf + have, sizeof buf - 1 - have)) > 0) {
        have += (size_t)r;
        buf[have] = 0;
        char *line = buf;
        for (char *nl; !found && (nl = strchr(line, '\n')); line = nl + 1) {
            unsigned long ino_found;
            char type[8];
            int owner;
            *nl = 0;
            found = sscanf(line, "%*d: %7s %*s %*s %d %*x:%*x:%lu", type, &owner, &ino_found) == 3 && ino_found == ino &&
                    strcmp(type, ofd ? "OFDLCK" : "FLOCK") == 0 && (pid == 0 || owner == pid);
        }
        have = strlen(line);
        memmove(buf, line, have);
    }
    (void)nf_sys.close(fd);
    return found;
}

/* The file is read in pieces, and a lock that goes between two of them can hide another: a no is asked for three times. */
int nf_inode_locked(ino_t ino, bool ofd, pid_t pid)
{
    int r = 0;
    for (int i = 0; i < 3 && r == 0; i++)
        r = look_in_locks(ino, ofd, pid);
    return r;
}

int nf_fd_move_high(int fd)
{
    struct rlimit lim;
    long base = 1000;
    if (getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur < 1024)
        base = (long)lim.rlim_cur - 16;
    int high = base > fd ? nf_sys.fcntl(fd, F_DUPFD_CLOEXEC, base) : -EINVAL;
    if (high < 0)
        high = nf_sys.fcntl(fd, F_DUPFD_CLOEXEC, 20);
    if (high < 0) {
        (void)nf_sys.fcntl(fd, F_SETFD, FD_CLOEXEC);
        return fd;
    }
    (void)nf_sys.close(fd);
    return high;
}
