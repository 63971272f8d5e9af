/*
 * close(2) and its kin: everything that makes a descriptor's number mean something else.
 *
 * close() is hot and may be called in a signal handler: with nothing watched it costs one relaxed load.
 */
#include "base/fdset.h"
#include "base/real.h"
#include "export/export.h"
#include "lock/close.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

NF_EXPORT int close(int fd)
{
    int r;
    if (!nf_watched(fd))
        return nf_real()->close(fd);
    NF_CLOSING(fd, r = nf_real()->close(fd));
    return r;
}

/* A duplicate is as shared with other processes as what it was made of. */
static int duplicated(int from, int to)
{
    if (to >= 0 && to != from && nf_watched(from))
        nf_marks_copy(from, to);
    return to;
}

NF_EXPORT int dup(int fd)
{
    return duplicated(fd, nf_real()->dup(fd));
}

/* Of fcntl only the two commands that duplicate are looked at; all others pass through with their argument. */
#define NF_FCNTL(name)                                                           \
    NF_EXPORT int name(int fd, int cmd, ...)                                     \
    {                                                                            \
        va_list ap;                                                              \
        va_start(ap, cmd);                                                       \
        void *arg = va_arg(ap, void *);                                          \
        va_end(ap);                                                              \
        int r = nf_real()->name(fd, cmd, arg);                                   \
        return cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC ? duplicated(fd, r) : r; \
    }

#undef fcntl
#undef fcntl64
NF_FCNTL(fcntl)
NF_FCNTL(fcntl64)

NF_EXPORT int dup2(int oldfd, int newfd)
{
    int r;
    if (oldfd == newfd || !nf_watched(newfd))
        r = nf_real()->dup2(oldfd, newfd);
    else
        NF_CLOSING(newfd, r = nf_real()->dup2(oldfd, newfd));
    return duplicated(oldfd, r);
}

NF_EXPORT int dup3(int oldfd, int newfd, int flags)
{
    int r;
    if (oldfd == newfd || !nf_watched(newfd))
        r = nf_real()->dup3(oldfd, newfd, flags);
    else
        NF_CLOSING(newfd, r = nf_real()->dup3(oldfd, newfd, flags));
    return duplicated(oldfd, r);
}

/* Several may go at once: the rest is closed by the innermost step, when all of them have been noted. */
static int close_span(unsigned first, unsigned last, int (*rest)(unsigned first, unsigned last, int flags), unsigned from, int flags)
{
    int fd = from > last ? -1 : nf_watch_next(from, last);
    int r;
    if (fd < 0)
        return rest(first, last, flags);
    NF_CLOSING(fd, r = close_span(first, last, rest, (unsigned)fd + 1, flags));
    return r;
}

static int rest_close_range(unsigned first, unsigned last, int flags)
{
    return nf_real()->close_range(first, last, flags);
}

static int rest_closefrom(unsigned first, unsigned last, int flags)
{
    (void)last;
    (void)flags;
    nf_real()->closefrom((int)first);
    return 0;
}

NF_EXPORT int close_range(unsigned int first, unsigned int last, int flags)
{
    if (first > last || flags & (int)CLOSE_RANGE_CLOEXEC)
        return nf_real()->close_range(first, last, flags);
    return close_span(first, last, rest_close_range, first, flags);
}

NF_EXPORT void closefrom(int lowfd)
{
    unsigned first = lowfd < 0 ? 0 : (unsigned)lowfd;
    (void)close_span(first, ~0U, rest_closefrom, first, 0);
}

NF_EXPORT int closedir(DIR *dir)
{
    /* The C library answers NULL with EINVAL, though its header declares it as never NULL. */
    DIR *volatile given = dir;
    int fd = given ? dirfd(given) : -1;
    int r;
    if (!nf_watched(fd))
        return nf_real()->closedir(dir);
    NF_CLOSING(fd, r = nf_real()->closedir(dir));
    return r;
}
