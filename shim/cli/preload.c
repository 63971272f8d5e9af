/*
 * See preload.h. The library is looked for relative to this very program, so that an installed tree may be moved. It is
 * not loaded here: only its header is read.
 */
#include "cli/preload.h"

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

int preload_locate(char *buf, char *why, size_t size)
{
    static const char *const below[] = {"lib/netflock", "lib/" NF_MULTIARCH "/netflock"};
    char dir[PATH_MAX];
    char broken[200];
    int r = own_folder(dir, sizeof dir);
    if (r < 0) {
        (void)snprintf(why, size, "/proc/self/exe cannot be read (%s), so that " LIBRARY " cannot be found", strerror(-r));
        return -1;
    }
    const char *slash = strrchr(dir, '/');
    int up = slash ? (int)(slash - dir) : 0;
    bool found = snprintf(buf, PATH_MAX, "%s/" LIBRARY, dir) < PATH_MAX && access(buf, F_OK) == 0;
    for (size_t i = 0; !found && i < sizeof below / sizeof below[0]; i++)
        found = snprintf(buf, PATH_MAX, "%.*s/%s/" LIBRARY, up, dir, below[i]) < PATH_MAX && access(buf, F_OK) == 0;
    if (!found) {
        (void)snprintf(why, size, "there is no " LIBRARY " in %s, nor in %.*s/%s or %.*s/%s", dir, up, dir, below[0], up, dir, below[1]);
        return -1;
    }
    if (!library_usable(buf, broken, sizeof broken)) {
        (void)snprintf(why, size, "%s cannot be preloaded: %s", buf, broken);
        return -1;
    }
    /* ld.so(8): blanks and colons separate the list's entries, a dollar sign begins $ORIGIN, $LIB or $PLATFORM. */
    if (strpbrk(buf, " :$")) {
        (void)snprintf(why, size, "%s cannot be preloaded: LD_PRELOAD cannot name a path with a blank, a colon or a dollar sign", buf);
        return -1;
    }
    return 0;
}

int preload_find(const char *verb, char *buf)
{
    char why[4 * PATH_MAX];
    int r = preload_locate(buf, why, sizeof why);
    if (r < 0)
        complain("%s: %s", verb, why);
    return r;
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

bool preload_names_library(const char *list, char *entry, size_t size)
{
    for (const char *p = list; *p;) {
        size_t len = strcspn(p, " :\t\n");
        if (len > 0 && entry_is_copy(p, len)) {
            (void)snprintf(entry, size, "%.*s", (int)len, p);
            return true;
        }
        p += len + (p[len] != 0);
    }
    return false;
}

void preload_set(const char *library)
{
    const char *old = getenv("LD_PRELOAD");
    old = old ? old : "";
    size_t n = library ? strlen(library) : 0;
    char *list = need(malloc(n + strlen(old) + 2));
    memcpy(list, library ? library : "", n + 1);
    for (const char *p = old; *p;) {
        size_t len = strcspn(p, " :");
        if (library && entry_is(p, len, library)) {
            free(list);
            return;
        }
        if (len > 0 && !entry_is_copy(p, len))
            n += (size_t)sprintf(list + n, "%s%.*s", n ? ":" : "", (int)len, p);
        p += len + (p[len] != 0);
    }
    if ((n ? setenv("LD_PRELOAD", list, 1) : unsetenv("LD_PRELOAD")) < 0)
        (void)need(NULL);
    free(list);
}
