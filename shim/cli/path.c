/*
 * From a path to its key: by the kernel's own name of the file, as the library does it for a descriptor.
 */
#include "cli/cli.h"
#include "cli/view.h"

#include "base/fdutil.h"
#include "base/prefix.h"
#include "base/sys.h"

#include <bsd/string.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As many symbolic links as the kernel follows in a path. */
#define LINKS_MAX 40

static int opened_name(const char *path, int flags, char *out)
{
    int fd = nf_sys.open(path, O_PATH | O_CLOEXEC | flags, 0);
    if (fd < 0)
        return fd;
    ssize_t n = nf_fd_name(fd, out, PATH_MAX);
    (void)nf_sys.close(fd);
    return n < 0 ? (int)n : 0;
}

/* Splits path into its folder ("." if it names none) and its last component, both PATH_MAX bytes. */
static int split(const char *path, char *folder, char *base)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    size_t cut = len;
    while (cut > 0 && path[cut - 1] != '/')
        cut--;
    if (len >= PATH_MAX)
        return -ENAMETOOLONG;
    (void)snprintf(base, PATH_MAX, "%.*s", (int)(len - cut), path + cut);
    if (cut == 0)
        (void)snprintf(folder, PATH_MAX, ".");
    else
        (void)snprintf(folder, PATH_MAX, "%.*s", (int)cut, path);
    return 0;
}

/* out (PATH_MAX bytes) gets the name that the kernel gives the file, or would give it once it is created. */
static int kernel_name(const char *path, char *out, int links)
{
    char folder[PATH_MAX];
    char base[PATH_MAX];
    char target[PATH_MAX];
    int r = opened_name(path, 0, out);
    if (r != -ENOENT)
        return r;
    r = split(path, folder, base);
    if (r < 0)
        return r;
    /* A link to what does not exist: open(2) with O_CREAT follows it. */
    ssize_t n = nf_sys.readlink(path, target, sizeof target - 1);
    if (n > 0 && links > 0) {
        target[n] = 0;
        if (target[0] == '/')
            return kernel_name(target, out, links - 1);
        if (snprintf(out, PATH_MAX, "%s/%s", folder, target) >= PATH_MAX)
            return -ENAMETOOLONG;
        (void)strlcpy(target, out, sizeof target);
        return kernel_name(target, out, links - 1);
    }
    r = opened_name(folder, O_DIRECTORY, out);
    size_t len = r < 0 ? 0 : strlen(out);
    if (r == 0 && len == 1)
        len = 0; /* "/" itself */
    if (r == 0 && snprintf(out + len, PATH_MAX - len, "/%s", base) >= (int)(PATH_MAX - len))
        r = -ENAMETOOLONG;
    return r;
}

static char *make_key(const struct nf_prefix *p, const char *rest)
{
    char *key = NULL;
    if (asprintf(&key, "lock:%s%s", p->name, rest) < 0)
        key = NULL;
    return need(key);
}

char *name_to_key(const struct nf_config *c, const char *name)
{
    const char *rest = NULL;
    for (size_t i = 0; i < c->n_prefix; i++)
        if (!c->prefix[i].kernel)
            nf_prefix_resolve(&c->prefix[i]);
    const struct nf_prefix *p = name[0] == '/' ? nf_prefix_match(c, name, &rest) : NULL;
    return p ? make_key(p, rest) : NULL;
}

void complain_prefix(const struct nf_config *c, const char *verb, const char *path, const char *name)
{
    const char *is = strcmp(path, name) == 0 ? "" : name;
    if (c->n_prefix == 0)
        complain("%s: %s is below no prefix: none is configured (--prefix, NETFLOCK_PREFIX)", verb, path);
    else
        complain("%s: %s%s%s%s is below no prefix (%s%s)", verb, path, *is ? " (" : "", is, *is ? ")" : "",
                 c->prefix[0].path_len ? c->prefix[0].path : "/", c->n_prefix > 1 ? ", ..." : "");
}

int path_name(const char *path, char *name)
{
    return *path ? kernel_name(path, name, LINKS_MAX) : -ENOENT;
}

char *path_to_key(const struct nf_config *c, const char *verb, const char *path)
{
    char name[PATH_MAX];
    int r = path_name(path, name);
    if (r < 0) {
        complain("%s: %s: %s", verb, shown_word(path, name, sizeof name), strerror(-r));
        return NULL;
    }
    char *key = name_to_key(c, name);
    if (!key)
        complain_prefix(c, verb, path, name);
    return key;
}
