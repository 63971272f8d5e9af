/*
 * netflock run: sets LD_PRELOAD, checks that it will have an effect, and becomes the command.
 *
 * The library is looked for relative to this very program, so that an installed tree may be moved. It is not loaded
 * here: only its header is read.
 */
#include "cli/cli.h"
#include "cli/program.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libnetflock.so"

#ifndef NF_MULTIARCH
#if defined(__x86_64__) && defined(__LP64__)
#define NF_MULTIARCH "x86_64-linux-gnu"
#elif defined(__aarch64__)
#define NF_MULTIARCH "aarch64-linux-gnu"
#elif defined(__i386__)
#define NF_MULTIARCH "i386-linux-gnu"
#elif defined(__arm__) && defined(__ARM_PCS_VFP)
#define NF_MULTIARCH "arm-linux-gnueabihf"
#elif defined(__riscv) && __riscv_xlen == 64
#define NF_MULTIARCH "riscv64-linux-gnu"
#elif defined(__powerpc64__) && defined(__LITTLE_ENDIAN__)
#define NF_MULTIARCH "powerpc64le-linux-gnu"
#elif defined(__s390x__)
#define NF_MULTIARCH "s390x-linux-gnu"
#else
#define NF_MULTIARCH "."
#endif
#endif

/* This program's own folder without a slash at its end. The kernel's name: no symbolic link is left in it. */
static int own_folder(char *buf, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", buf, size);
    if (n < 0)
        return -errno;
    if ((size_t)n == size)
        return -ENAMETOOLONG;
    while (n > 0 && buf[n - 1] != '/')
        n--;
    buf[n > 0 ? n - 1 : 0] = 0;
    return 0;
}

/* The library's path into buf (PATH_MAX bytes): 0, or -1 after a complaint. */
static int find_library(char *buf)
{
    static const char *const below[] = {"lib/netflock", "lib/" NF_MULTIARCH "/netflock"};
    char dir[PATH_MAX];
    char why[200];
    int r = own_folder(dir, sizeof dir);
    if (r < 0) {
        complain("run: /proc/self/exe cannot be read (%s), so that " LIBRARY " cannot be found", strerror(-r));
        return -1;
    }
    const char *slash = strrchr(dir, '/');
    int up = slash ? (int)(slash - dir) : 0;
    bool found = snprintf(buf, PATH_MAX, "%s/" LIBRARY, dir) < PATH_MAX && access(buf, F_OK) == 0;
    for (size_t i = 0; !found && i < sizeof below / sizeof below[0]; i++)
        found = snprintf(buf, PATH_MAX, "%.*s/%s/" LIBRARY, up, dir, below[i]) < PATH_MAX && access(buf, F_OK) == 0;
    if (!found) {
        complain("run: there is no " LIBRARY " in %s, nor in %.*s/%s or %.*s/%s", dir, up, dir, below[0], up, dir, below[1]);
        return -1;
    }
    if (!library_usable(buf, why, sizeof why)) {
        complain("run: %s cannot be preloaded: %s", buf, why);
        return -1;
    }
    /* ld.so(8): blanks and colons separate the list's entries, a dollar sign begins $ORIGIN, $LIB or $PLATFORM. */
    if (strpbrk(buf, " :$")) {
        complain("run: %s cannot be preloaded: LD_PRELOAD cannot name a path with a blank, a colon or a dollar sign", buf);
        return -1;
    }
    return 0;
}

static bool entry_is(const char *entry, size_t len, const char *path)
{
    return strlen(path) == len && memcmp(entry, path, len) == 0;
}

/* An entry for some copy of the library: loaded twice, it would take each lock twice. */
static bool entry_is_copy(const char *entry, size_t len)
{
    const char *slash = memrchr(entry, '/', len);
    size_t skip = slash ? (size_t)(slash - entry) + 1 : 0;
    return entry_is(entry + skip, len - skip, LIBRARY);
}

/* Puts the library in front of what LD_PRELOAD already names; if it is there, the list stays as it is. */
static void set_preload(const char *library)
{
    const char *old = getenv("LD_PRELOAD");
    old = old ? old : "";
    char *list = need(malloc(strlen(library) + strlen(old) + 2));
    size_t n = strlen(library);
    memcpy(list, library, n + 1);
    for (const char *p = old; *p;) {
        size_t len = strcspn(p, " :");
        if (entry_is(p, len, library)) {
            free(list);
            return;
        }
        if (len > 0 && !entry_is_copy(p, len))
            n += (size_t)sprintf(list + n, ":%.*s", (int)len, p);
        p += len + (p[len] != 0);
    }
    if (setenv("LD_PRELOAD", list, 1) < 0)
        (void)need(NULL);
    free(list);
}

/* A configuration with which nothing would be protected is a mistake, unless it says that it is meant. */
static int check_config(void)
{
    const struct nf_config *c = options_config();
    if (!c)
        return -1;
    if (c->n_prefix == 0 && !c->disabled) {
        complain("run: no prefix is configured, so that nothing would be protected: give --prefix, or set NETFLOCK_PREFIX");
        return -1;
    }
    return 0;
}

/* Executes the file, as execvp(3) does also with a script that has no first line. Returns -errno. */
static int execute(const char *path, char **argv)
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

/* Puts into words why there will be no command, and returns the exit status that stands for it. */
static int not_run(const char *name, const char *path, int err)
{
    if (err == -ENOENT && path)
        complain("run: %s: it is there, but not the loader or interpreter that it names", name);
    else
        complain("run: %s: %s", name, err == -ENOENT ? "command not found" : strerror(-err));
    return err == -ENOENT || err == -ENOTDIR ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
}

int cmd_run(char **argv)
{
    char library[PATH_MAX];
    char why[PATH_MAX + 512];
    int err;
    if (!argv[0]) {
        complain("run: no command is given; see netflock help run");
        return EXIT_USAGE;
    }
    if (check_config() < 0)
        return EXIT_USAGE;
    if (find_library(library) < 0)
        return EXIT_REFUSED;
    char *path = program_find(argv[0], &err);
    if (!path)
        return not_run(argv[0], NULL, err);
    int status = EXIT_REFUSED;
    if (program_reachable(path, why, sizeof why)) {
        set_preload(library);
        status = not_run(argv[0], path, execute(path, argv));
    } else {
        complain("run: %s is not run: %s", argv[0], why);
    }
    free(path);
    return status;
}
