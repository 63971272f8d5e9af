/*
 * Parsing and matching prefixes: see prefix.h.
 *
 * A prefix is compared with the kernel's own name of a descriptor, in which no symbolic link is left. So a prefix
 * that goes through one (/var/run -> /run) is resolved first; the key keeps the name as configured, so that hosts
 * whose links differ meet.
 */
#include "base/prefix.h"

#include "base/fdutil.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Cuts one field off *s, up to an unescaped stop character; writes it unescaped to out; returns the stop (or 0). */
static char cut(const char **s, const char *stops, char *out)
{
    const char *p = *s;
    while (*p && !strchr(stops, *p)) {
        if (*p == '\\' && p[1])
            p++;
        *out++ = *p++;
    }
    *out = 0;
    char stop = *p;
    *s = stop ? p + 1 : p;
    return stop;
}

/* "/a//b/./c/" -> "/a/b/c"; "/" -> ""; refuses ".." and what is not absolute. */
static int tidy(char *path)
{
    char *out = path;
    const char *p = path;
    if (*p != '/')
        return -EINVAL;
    while (*p) {
        while (*p == '/')
            p++;
        size_t len = strcspn(p, "/");
        if (len == 2 && memcmp(p, "..", 2) == 0)
            return -EINVAL;
        if (len > 0 && !(len == 1 && *p == '.')) {
            *out++ = '/';
            memmove(out, p, len);
            out += len;
        }
        p += len;
    }
    *out = 0;
    return out - path < PATH_MAX ? 0 : -EINVAL;
}

static int add(struct nf_config *c, const char *path, const char *name)
{
    struct nf_prefix *grown = reallocarray(c->prefix, c->n_prefix + 1, sizeof *grown);
    if (!grown)
        return -ENOMEM;
    c->prefix = grown;
    struct nf_prefix *p = &grown[c->n_prefix];
    memset(p, 0, sizeof *p);
    p->path = strdup(path);
    p->name = strdup(name);
    if (!p->path || !p->name) {
        free(p->path);
        free(p->name);
        return -ENOMEM;
    }
    p->path_len = strlen(path);
    p->name_len = strlen(name);
    c->n_prefix++;
    return 0;
}

void nf_prefix_parse(struct nf_config *c, const char *list, const char *origin)
{
    size_t room = strlen(list) + 1;
    char *path = malloc(room);
    char *name = malloc(room);
    int r = path && name ? 0 : -ENOMEM;
    const char *s = list;
    while (r == 0 && *s) {
        const char *entry = s;
        char stop = cut(&s, ":=", path);
        bool named = stop == '=';
        name[0] = 0;
        if (named)
            (void)cut(&s, ":", name);
        if (!named && !path[0])
            continue; /* an empty field, as in "a::b" */
        if (tidy(path) < 0 || (named && !name[0])) {
            c->prefix_broken = c->broken = true;
            nf_log(NF_LOG_ERROR,
                   "%sNETFLOCK_PREFIX=\"%s\" is not allowed: \"%.*s\" is no absolute path with an optional =NAME (and no ..); "
                   "entries are separated by colons. Every lock call fails (ENOLCK) until this is mended",
                   origin, list, (int)strcspn(entry, ":"), entry);
            continue;
        }
        r = add(c, path, named ? name : path);
    }
    if (r < 0) {
        c->prefix_broken = c->broken = true;
        nf_log(NF_LOG_ERROR, "out of memory while reading NETFLOCK_PREFIX");
    }
    free(path);
    free(name);
}

void nf_prefix_resolve(struct nf_prefix *p)
{
    char buf[PATH_MAX];
    int saved = errno;
    int fd = nf_sys.open(p->path_len ? p->path : "/", O_PATH | O_CLOEXEC, 0);
    if (fd >= 0) {
        ssize_t n = nf_fd_name(fd, buf, sizeof buf);
        (void)nf_sys.close(fd);
        if (n == 1)
            n = 0; /* "/" itself: everything is below it */
        if (n >= 0 && (n == 0 || buf[0] == '/')) {
            buf[n] = 0;
            char *copy = strdup(buf);
            if (copy) {
                /* Other threads may be matching, or at this too: one of them is the first. */
                char *nobody = NULL;
                if (!__atomic_compare_exchange_n(&p->kernel, &nobody, copy, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
                    free(copy);
            }
        }
    }
    errno = saved;
}

static bool below(const char *path, const char *prefix, size_t len)
{
    return strncmp(path, prefix, len) == 0 && (path[len] == 0 || path[len] == '/');
}

const struct nf_prefix *nf_prefix_match(const struct nf_config *c, const char *path, const char **rest)
{
    const struct nf_prefix *best = NULL;
    size_t best_len = 0;
    for (size_t i = 0; i < c->n_prefix; i++) {
        const struct nf_prefix *p = &c->prefix[i];
        const char *kernel = __atomic_load_n(&p->kernel, __ATOMIC_ACQUIRE);
        const char *name = p->path;
        size_t len = p->path_len;
        if (kernel) {
            name = kernel;
            len = strlen(kernel);
        }
        if (below(path, name, len) && (!best || len > best_len)) {
            best = p;
            best_len = len;
        }
    }
    if (best)
        *rest = path + best_len;
    return best;
}
