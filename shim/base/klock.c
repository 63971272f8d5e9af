/*
 * See klock.h.
 */
#include "base/klock.h"

#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/file.h>

int nf_klock(int fd, int op, bool ofd)
{
    struct flock whole = {.l_whence = SEEK_SET};
    if (!ofd)
        return nf_sys.flock(fd, op);
    int kind = op & ~LOCK_NB;
    whole.l_type = kind == LOCK_EX ? F_WRLCK : kind == LOCK_SH ? F_RDLCK : F_UNLCK;
    int r = nf_sys.fcntl(fd, op & LOCK_NB || kind == LOCK_UN ? F_OFD_SETLK : F_OFD_SETLKW, (long)(intptr_t)&whole);
    return r == -EACCES ? -EWOULDBLOCK : r;
}
