/*
 * What a preload cannot reach, ld.so(8) and execve(2) say: a program without the dynamic loader, one that the kernel
 * starts with more rights than its caller has, one of another machine, and one of another C library, whose loader
 * may even load the library and then fails on glibc's symbols. `netflock run` must refuse these: a program that runs
 * unprotected, where protection was asked for, is worse than one that does not run.
 *
 * A script is as reachable as its interpreter.
 */
#include "cli/program.h"

#include "cli/cli.h"
#include "cli/elf.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

/* The kernel follows five scripts that are one another's interpreters, and reads this much of a first line. */
#define SCRIPTS_MAX 5
#define LINE_MAX_BYTES 256

static bool reachable(const char *path, int depth, struct verdict *v);

/* 0 if path can be executed, or -errno as execve(2) would say. */
static int executable(const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EACCES;
    return faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) < 0 ? -errno : 0;
}

char *program_find(const char *name, int *err)
{
    *err = -ENOENT;
    if (!*name)
        return NULL;
    if (strchr(name, '/')) {
        *err = executable(name);
        return *err < 0 ? NULL : need(strdup(name));
    }
    const char *list = getenv("PATH");
    for (const char *p = list ? list : "/bin:/usr/bin";; p++) {
        size_t len = strcspn(p, ":");
        char *path = NULL;
        if (asprintf(&path, "%.*s/%s", len ? (int)len : 1, len ? p : ".", name) < 0)
            (void)need(NULL);
        int r = executable(path);
        if (r == 0) {
            *err = 0;
            return path;
        }
        free(path);
        if (r == -EACCES)
            *err = r; /* to be said if nothing better comes later in PATH */
        p += len;
        if (!*p)
            return NULL;
    }
}

/* Would the kernel start it with other rights than ours (AT_SECURE)? Then ld.so ignores LD_PRELOAD. */
static const char *privileged(int fd)
{
    struct stat st;
    struct statvfs vfs;
    if (getuid() != geteuid() || getgid() != getegid())
        return "would be started by a set-uid program";
    if (fstat(fd, &st) < 0 || (fstatvfs(fd, &vfs) == 0 && (vfs.f_flag & ST_NOSUID)))
        return NULL;
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) {
        if ((st.st_mode & S_ISUID) && st.st_uid != getuid())
            return "is set-uid";
        if ((st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && st.st_gid != getgid())
            return "is set-gid";
    }
    if (getuid() != 0 && fgetxattr(fd, "security.capability", NULL, 0) > 0)
        return "has file capabilities";
    return NULL;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Loaders of other C libraries: musl, uClibc, Android's bionic. */
static const char *foreign_libc(const char *loader)
{
    const char *name = base_name(loader);
    if (strncmp(name, "ld-musl", 7) == 0)
        return "musl";
    if (strncmp(name, "ld-uClibc", 9) == 0)
        return "uClibc";
    if (strcmp(name, "linker") == 0 || strcmp(name, "linker64") == 0)
        return "bionic";
    return NULL;
}

/* Notes why a program cannot be reached: false. */
__attribute__((format(printf, 3, 4))) static bool obstacle(struct verdict *v, const char *kind, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(v->why, sizeof v->why, fmt, ap);
    va_end(ap);
    v->kind = kind;
    return false;
}

static bool elf_reachable(const char *path, int fd, const struct elf *e, struct verdict *v)
{
    const char *more = privileged(fd);
    const char *libc = foreign_libc(e->loader);
    if (!elf_is_ours(e))
        return obstacle(v, "machine", "%s is a program for another kind of machine than libnetflock.so (ELF class %d, machine %d)", path,
                        e->bits == ELFCLASS64 ? 64 : 32, e->machine);
    if (!e->loader[0])
        return obstacle(v, "static", "%s is statically linked: a preloaded library cannot reach it", path);
    if (libc)
        return obstacle(v, "libc", "%s uses another C library (%s, loaded by %s): libnetflock.so needs glibc", path, libc, e->loader);
    if (more)
        return obstacle(v, "privileged", "%s %s: the loader ignores a preloaded library there", path, more);
    v->go |= e->go;
    return true;
}

/*
 * The program that env(1) will start, from the one argument that a script's first line can give it; NULL when that
 * cannot be told. -S splits it into words. *clears: env drops the environment, and LD_PRELOAD with it.
 */
static const char *env_target(char *arg, bool *clears)
{
    bool split = strncmp(arg, "-S", 2) == 0;
    char *rest = arg + 2;
    if (strncmp(arg, "--split-string", 14) == 0) {
        split = true;
        rest = arg + 14 + (arg[14] == '=');
    }
    if (!split)
        return *arg == '-' || strchr(arg, '=') ? NULL : arg;
    if (strpbrk(rest, "\"'\\$#"))
        return NULL;
    char *save;
    for (char *word = strtok_r(rest, " \t", &save); word; word = strtok_r(NULL, " \t", &save)) {
        if (strcmp(word, "-") == 0 || strcmp(word, "-i") == 0 || strcmp(word, "--ignore-environment") == 0)
            *clears = true;
        else if (strcmp(word, "-u") == 0 || strcmp(word, "-C") == 0)
            (void)strtok_r(NULL, " \t", &save);
        else if (*word != '-' && !strchr(word, '='))
            return word;
    }
    return NULL;
}

/* line: what follows "#!", ended by NUL. */
static bool script_reachable(const char *path, char *line, int depth, struct verdict *v)
{
    char *interpreter = line + strspn(line, " \t");
    size_t len = strcspn(interpreter, " \t");
    char *arg = interpreter + len + strspn(interpreter + len, " \t");
    interpreter[len] = 0;
    for (size_t n = strlen(arg); n > 0 && strchr(" \t", arg[n - 1]); n--)
        arg[n - 1] = 0;
    if (!*interpreter)
        return true;
    if (!reachable(interpreter, depth + 1, v))
        return false;
    if (strcmp(base_name(interpreter), "env") != 0 || !*arg)
        return true;
    bool clears = false;
    int err;
    const char *target = env_target(arg, &clears);
    if (clears)
        return obstacle(v, "environment", "%s clears the environment in its first line (env -i), and the preload with it", path);
    char *found = target ? program_find(target, &err) : NULL;
    bool ok = !found || reachable(found, depth + 1, v);
    free(found);
    return ok;
}

static bool reachable(const char *path, int depth, struct verdict *v)
{
    char head[LINE_MAX_BYTES + 1];
    struct elf e;
    bool ok = true;
    /* O_NONBLOCK: whatever is there, looking at it must not wait. What cannot be read cannot be judged. */
    int fd = depth > SCRIPTS_MAX ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        v->unread = true;
        return true;
    }
    ssize_t n = pread(fd, head, LINE_MAX_BYTES, 0);
    head[n > 0 ? n : 0] = 0;
    if (elf_read(fd, &e) == 0) {
        ok = elf_reachable(path, fd, &e, v);
    } else if (head[0] == '#' && head[1] == '!') {
        head[strcspn(head, "\n")] = 0;
        ok = script_reachable(path, head + 2, depth, v);
    } else if (depth == 0) {
        ok = reachable("/bin/sh", 1, v); /* execvp(3) falls back on it */
    }
    (void)close(fd);
    return ok;
}

bool program_reachable(const char *path, struct verdict *v)
{
    *v = (struct verdict){0};
    return reachable(path, 0, v);
}

bool library_usable(const char *path, char *why, size_t size)
{
    struct elf e = {0};
    struct statvfs vfs;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int r = fd < 0 ? -errno : elf_read(fd, &e);
    why[0] = 0;
    if (r < 0)
        (void)snprintf(why, size, "%s", r == -ENOEXEC ? "it is no shared object" : strerror(-r));
    else if (!elf_is_ours(&e) || e.type != ET_DYN)
        (void)snprintf(why, size, "it is no shared object for this machine");
    else if (fstatvfs(fd, &vfs) == 0 && (vfs.f_flag & ST_NOEXEC))
        (void)snprintf(why, size, "it lies on a file system that is mounted noexec");
    if (fd >= 0)
        (void)close(fd);
    return !why[0];
}

int program_execute(const char *path, char **argv)
{
    (void)execv(path, argv);
    if (errno != ENOEXEC)
        return -errno;
    size_t n = 0;
    while (argv[n])
        n++;
    char **shell = need(calloc(n + 2, sizeof *shell));
    shell[0] = (char *)"/bin/sh";
    shell[1] = (char *)path;
    memcpy(shell + 2, argv + 1, n * sizeof *shell); /* with the NULL at its end */
    (void)execv(shell[0], shell);
    return -errno;
}
