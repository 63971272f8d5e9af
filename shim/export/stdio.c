/*
 * fclose(3) and freopen(3): the C library closes the descriptor without going through our close().
 */
#include "base/fdset.h"
#include "base/real.h"
#include "export/export.h"
#include "lock/close.h"
#include "lock/record.h"

#include <errno.h>
#include <stdio.h>

#undef freopen
#undef freopen64

/* fileno() sets errno for a stream without a descriptor (open_memstream). */
static int fd_of(FILE *fp)
{
    int saved = errno;
    int fd = fp ? fileno(fp) : -1;
    errno = saved;
    return fd;
}

NF_EXPORT int fclose(FILE *fp)
{
    int fd = fd_of(fp);
    int r;
    if (!nf_watched(fd))
        return nf_real()->fclose(fp);
    NF_CLOSING(fd, r = nf_real()->fclose(fp), true);
    return r;
}

NF_EXPORT FILE *freopen(const char *path, const char *mode, FILE *fp)
{
    int fd = fd_of(fp);
    FILE *r;
    if (!nf_watched(fd))
        return nf_real()->freopen(path, mode, fp);
    NF_CLOSING(fd, r = nf_real()->freopen(path, mode, fp), true);
    return r;
}

NF_EXPORT FILE *freopen64(const char *path, const char *mode, FILE *fp)
{
    int fd = fd_of(fp);
    FILE *r;
    if (!nf_watched(fd))
        return nf_real()->freopen64(path, mode, fp);
    NF_CLOSING(fd, r = nf_real()->freopen64(path, mode, fp), true);
    return r;
}
