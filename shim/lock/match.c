/*
 * From descriptor to key: see match.h.
 *
 * A NO is remembered until the descriptor is closed: a program that locks files elsewhere in a loop pays for one
 * fstat(). That compares device, inode and change time, for a close that no wrapper saw, and for a file that is renamed
 * while it is open.
 */
#include "lock/match.h"

#include "base/config.h"
#include "base/fdset.h"
#include "base/fdutil.h"
#include "base/log.h"
#include "base/prefix.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#define REMEMBERED 256

/* A sequence lock per entry: odd while it is written. Torn entries are not believed. */
static struct {
    atomic_uint seq;
    atomic_ulong dev, ino, ctime_sec, ctime_nsec;
} outside[REMEMBERED];

static bool remembered(int fd, const struct stat *st)
{
    if (!nf_marked(NF_MARK_OUTSIDE, fd))
        return false;
    unsigned seq = atomic_load_explicit(&outside[fd].seq, memory_order_acquire);
    if (seq == 0 || seq & 1)
        return false;
    bool same = outside[fd].dev == st->st_dev && outside[fd].ino == st->st_ino &&
                outside[fd].ctime_sec == (unsigned long)st->st_ctim.tv_sec && outside[fd].ctime_nsec == (unsigned long)st->st_ctim.tv_nsec;
    return same && atomic_load_explicit(&outside[fd].seq, memory_order_acquire) == seq;
}

static void remember(int fd, const struct stat *st)
{
    if ((unsigned)fd >= REMEMBERED)
        return;
    unsigned seq = atomic_load_explicit(&outside[fd].seq, memory_order_relaxed);
    if (seq & 1 || !atomic_compare_exchange_strong(&outside[fd].seq, &seq, seq + 1))
        return;
    outside[fd].dev = st->st_dev;
    outside[fd].ino = st->st_ino;
    outside[fd].ctime_sec = (unsigned long)st->st_ctim.tv_sec;
    outside[fd].ctime_nsec = (unsigned long)st->st_ctim.tv_nsec;
    atomic_store_explicit(&outside[fd].seq, seq + 2, memory_order_release);
    nf_mark(NF_MARK_OUTSIDE, fd);
}

/* The kernel adds " (deleted)" to the name of an unlinked file: the lock still goes by the name it had. */
static void strip_deleted(char *name, const struct stat *st)
{
    static const char mark[] = " (deleted)";
    size_t len = strlen(name);
    size_t tail = sizeof mark - 1;
    if (len <= tail || strcmp(name + len - tail, mark) != 0)
        return;
    /* A file may really be called so. */
    if (st->st_nlink > 0) {
        int fd = nf_sys.open(name, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0);
        bool same = fd >= 0 && nf_fd_is(fd, st->st_dev, st->st_ino);
        if (fd >= 0)
            (void)nf_sys.close(fd);
        if (same)
            return;
    }
    name[len - tail] = 0;
}

/* A doubt is worth a line, but not one per call. */
static enum nf_match doubt(const char *why)
{
    static atomic_bool said;
    if (!atomic_exchange(&said, true))
        nf_log(NF_LOG_ERROR, "a lock call fails (ENOLCK): %s", why);
    return NF_MATCH_DOUBT;
}

/* Prefixes whose folder did not exist when they were last looked up. Rare, and cheap when there are none. */
static void resolve_prefixes(struct nf_config *c)
{
    for (size_t i = 0; i < c->n_prefix; i++)
        if (!__atomic_load_n(&c->prefix[i].kernel, __ATOMIC_ACQUIRE))
            nf_prefix_resolve(&c->prefix[i]);
}

static int make_key(struct nf_file *out, const struct nf_prefix *p, const char *rest)
{
    size_t rest_len = strlen(rest);
    if (5 + p->name_len + rest_len >= sizeof out->key)
        return -ENAMETOOLONG;
    memcpy(out->key, "lock:", 5);
    memcpy(out->key + 5, p->name, p->name_len);
    memcpy(out->key + 5 + p->name_len, rest, rest_len + 1);
    out->key_len = 5 + p->name_len + rest_len;
    return 0;
}

enum nf_match nf_match(int fd, struct nf_file *out)
{
    struct nf_config *c;
    struct stat st;
    char name[PATH_MAX + 1];
    const char *rest;
    int saved = errno;
    enum nf_match result = NF_MATCH_NO;
    enum nf_known prefixes = nf_config_prefixes(&c);
    if (prefixes == NF_KNOWN_NONE || nf_sys.fstat(fd, &st) < 0)
        goto out;
    if (prefixes == NF_KNOWN_NOT) {
        result = doubt("the configuration cannot be read now, for want of a descriptor or of memory");
        goto out;
    }
    if (remembered(fd, &st))
        goto out;
    if (c->prefix_broken) {
        result = NF_MATCH_DOUBT; /* said when it was read */
        goto out;
    }
    ssize_t n = nf_fd_name(fd, name, sizeof name);
    if (n == -EBADF)
        goto out;
    if (n < 0) {
        result = doubt(n == -ENAMETOOLONG ? "the file's path is longer than PATH_MAX" : "/proc is needed and cannot be read");
        goto out;
    }
    if (name[0] == '/') {
        strip_deleted(name, &st);
        resolve_prefixes(c);
        const struct nf_prefix *p = nf_prefix_match(c, name, &rest);
        /* Whether all is switched off may stand in the file, which is read now at the latest. */
        if (p && nf_config()->disabled)
            goto out;
        if (p) {
            out->dev = out->lock_dev = st.st_dev;
            out->ino = out->lock_ino = st.st_ino;
            out->shadow = -1;
            result = make_key(out, p, rest) == 0 ? NF_MATCH_YES : doubt("the name of the key is too long");
            goto out;
        }
    }
    remember(fd, &st);
out:
    errno = saved;
    return result;
}
