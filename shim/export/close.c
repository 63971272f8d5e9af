/*
 * close(2) and its kin: everything that makes a descriptor's number mean something else.
 *
 * close() is hot and may be called in a signal handler: with nothing watched it costs one relaxed load.
 */
#include "base/fdset.h"
#include "base/real.h"
#include "export/export.h"
#include "lock/close.h"
#include "lock/record.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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
    NF_CLOSING(fd, r = nf_real()->close(fd), true);
    return r;
}

/* A duplicate is as shared with other processes as what it was made of. */
int nf_duplicated(int from, int to)
{
    if (to >= 0 && to != from && nf_watched(from))
        nf_marks_copy(from, to);
    return to;
}

NF_EXPORT int dup(int fd)
{
    return nf_duplicated(fd, nf_real()->dup(fd));
}

NF_EXPORT int dup2(int oldfd, int newfd)
{
    int r;
    if (oldfd == newfd || !nf_watched(newfd))
        r = nf_real()->dup2(oldfd, newfd);
    else
        NF_CLOSING(newfd, r = nf_real()->dup2(oldfd, newfd), r >= 0);
    return nf_duplicated(oldfd, r);
}

NF_EXPORT int dup3(int oldfd, int newfd, int flags)
{
    int r;
    if (oldfd == newfd || !nf_watched(newfd))
        r = nf_real()->dup3(oldfd, newfd, flags);
    else
        NF_CLOSING(newfd, r = nf_real()->dup3(oldfd, newfd, flags), r >= 0);
    return nf_duplicated(oldfd, r);
}

/* Several may go at once: the rest is closed by the innermost step, when all of them have been noted. */
static int close_span(unsigned first, unsigned last, int (*rest)(unsigned first, unsigned last, int flags), unsigned from, int flags)
{
    int fd = from > last ? -1 : nf_watch_next(from, last);
    int r;
    if (fd < 0)
        return rest(first, last, flags);
    NF_CLOSING_ONE(fd, r = close_span(first, last, rest, (unsigned)fd + 1, flags));
    return r;
}

static int close_all(unsigned first, unsigned last, int (*rest)(unsigned first, unsigned last, int flags), int flags)
{
    struct nf_record_closing records;
    nf_record_close_begin(first, last, &records);
    int r = close_span(first, last, rest, first, flags);
    nf_record_close_end(&records, r >= 0);
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
    return close_all(first, last, rest_close_range, flags);
}

NF_EXPORT void closefrom(int lowfd)
{
    unsigned first = lowfd < 0 ? 0 : (unsigned)lowfd;
    (void)close_all(first, ~0U, rest_closefrom, 0);
}

NF_EXPORT int closedir(DIR *dir)
{
    /* The C library answers NULL with EINVAL, though its header declares it as never NULL. */
    DIR *volatile given = dir;
    int fd = given ? dirfd(given) : -1;
    int r;
    if (!nf_watched(fd))
        return nf_real()->closedir(dir);
    NF_CLOSING(fd, r = nf_real()->closedir(dir), true);
    return r;
}
