/*
 * strays [-f] WORD...: the processes that carry one of the words in the environment that they were started with, or in the
 * list of mounts of a mount namespace other than ours; with -f also those whose working directory or open file begins with
 * one. One pid a line, without strays itself. A shell would need a second for what a test asks after every step.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char **words;
static int proc;

static char *slurp(const char *pid, const char *name, size_t *len)
{
    static char *buf;
    static size_t size;
    char path[64];
    snprintf(path, sizeof path, "%s/%s", pid, name);
    int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
    *len = 0;
    if (fd < 0)
        return NULL;
    for (;;) {
        if (*len == size) {
            size = size ? 2 * size : 65536;
            buf = realloc(buf, size);
            if (!buf)
                exit(2);
        }
        ssize_t n = read(fd, buf + *len, size - *len);
        if (n <= 0)
            break;
        *len += (size_t)n;
    }
    close(fd);
    return buf;
}

static bool has_word(const char *pid, const char *name)
{
    size_t len;
    const char *text = slurp(pid, name, &len);
    for (char **w = words; text && *w; w++)
        if (memmem(text, len, *w, strlen(*w)))
            return true;
    return false;
}

static bool begins(const char *path)
{
    char to[PATH_MAX];
    ssize_t n = readlinkat(proc, path, to, sizeof to);
    for (char **w = words; n > 0 && *w; w++)
        if ((size_t)n >= strlen(*w) && memcmp(to, *w, strlen(*w)) == 0)
            return true;
    return false;
}

static bool has_file(const char *pid)
{
    char path[300];
    snprintf(path, sizeof path, "%s/cwd", pid);
    if (begins(path))
        return true;
    snprintf(path, sizeof path, "%s/fd", pid);
    int fd = openat(proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    bool found = false;
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/fd/%s", pid, e->d_name);
        found = e->d_name[0] != '.' && begins(path);
    }
    if (d)
        closedir(d);
    return found;
}

static ino_t mounts_of(const char *pid)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "%s/ns/mnt", pid);
    return fstatat(proc, path, &st, 0) == 0 ? st.st_ino : 0;
}

int main(int argc, char **argv)
{
    bool files = argc > 1 && strcmp(argv[1], "-f") == 0;
    words = argv + 1 + files;
    proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = opendir("/proc");
    if (proc < 0 || !d || !*words)
        return 2;
    ino_t ours = mounts_of("self");
    for (struct dirent *e; (e = readdir(d));) {
        const char *pid = e->d_name;
        if (!isdigit((unsigned char)*pid) || atoi(pid) == getpid())
            continue;
        if (has_word(pid, "environ") || (mounts_of(pid) != ours && has_word(pid, "mountinfo")) || (files && has_file(pid)))
            puts(pid);
    }
    return 0;
}
