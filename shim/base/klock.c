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

int nf_klock_ranges(int fd, int cmd, char kind, struct nf_ranges *out)
{
    struct nf_ranges todo = {0};
    int r = nf_ranges_reserve(&todo);
    if (r == 0)
        nf_ranges_set(&todo, 0, NF_RANGE_END, 'x');
    while (r == 0 && todo.n) {
        uint64_t start = todo.v[0].start;
        uint64_t end = todo.v[0].end;
        struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)start};
        fl.l_len = end == NF_RANGE_END ? 0 : (off_t)(end - start);
        r = nf_sys.fcntl(fd, cmd, (long)(intptr_t)&fl);
        if (r == 0 && fl.l_type != F_UNLCK) {
            start = (uint64_t)fl.l_start;
            end = fl.l_len ? start + (uint64_t)fl.l_len : NF_RANGE_END;
            /* A shared one of the other kind may hide one of those asked for. */
            bool wanted = (kind == 'o' ? fl.l_pid == -1 : fl.l_pid >= 0) || fl.l_type == F_RDLCK;
            if (wanted && (r = nf_ranges_reserve(out)) == 0)
                nf_ranges_set(out, start, end, 'x');
        }
        if (r == 0 && (r = nf_ranges_reserve(&todo)) == 0)
            nf_ranges_set(&todo, start, end, 0);
    }
    nf_ranges_clear(&todo);
    return r;
}
