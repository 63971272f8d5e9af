/*
 * flock(2).
 */
#include "export/export.h"
#include "lock/flock.h"

#include <errno.h>
#include <sys/file.h>

NF_EXPORT int flock(int fd, int operation)
{
    int saved = errno;
    int r = nf_flock(fd, operation);
    errno = r < 0 ? -r : saved;
    return r < 0 ? -1 : 0;
}
