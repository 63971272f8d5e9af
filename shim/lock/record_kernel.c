/*
 * See record_kernel.h.
 */
#include "lock/record_kernel.h"

#include "base/fdset.h"
#include "base/fdutil.h"
#include "base/real.h"
#include "base/sys.h"
#include "lock/shadow.h"

#include <errno.h>
#include <stdio.h>

void nf_record_absolute(struct flock *fl, uint64_t start, uint64_t end)
{
    fl->l_whence = SEEK_SET;
    fl->l_start = (off_t)start;
    fl->l_len = end == NF_RANGE_END ? 0 : (off_t)(end - start);
}

bool nf_record_alone(struct nf_record_call *k, int err)
{
    if (!k->alone && err < 0)
        k->alone = nf_shadow_allowed(k->c, err, &k->f);
    return k->alone;
}

/* The kernel's step. `mode` may be 'u'. 0 or -errno. */
int nf_rk_set(struct nf_record_call *k, uint64_t start, uint64_t end, char mode, bool wait)
{
    struct flock fl = {.l_type = mode == 'x' ? F_WRLCK : mode == 's' ? F_RDLCK : F_UNLCK};
    int nb = k->kind == 'o' ? F_OFD_SETLK : F_SETLK;
    int blocking = k->kind == 'o' ? F_OFD_SETLKW : F_SETLKW;
    if (k->alone)
        return 0;
    nf_record_absolute(&fl, start, end);
    int r = nf_real()->fcntl(k->fd, wait ? blocking : nb, &fl) == 0 ? 0 : -errno;
    return r < 0 && nf_record_alone(k, r) ? 0 : r == -EACCES ? -EAGAIN : r;
}

/* What the kernel says of a descriptor that is not open for this, where it is not asked. */
int nf_rk_check_mode(const struct nf_record_call *k)
{
    int flags = nf_sys.fcntl(k->fd, F_GETFL, 0);
    int access = flags & O_ACCMODE;
    if (flags < 0 || flags & O_PATH)
        return -EBADF;
    return (k->mode == 'x' && access == O_RDONLY) || (k->mode == 's' && access == O_WRONLY) ? -EBADF : 0;
}

static bool none(int fd)
{
    (void)fd;
    return false;
}

static int readable(int fd, long unused)
{
    int flags = nf_sys.fcntl(fd, F_GETFL, 0);
    (void)unused;
    return flags >= 0 && !(flags & O_PATH) && (flags & O_ACCMODE) != O_WRONLY;
}

/* Through a descriptor that is only open for writing a shared lock cannot be had back: the process has another, which it took it by. */
static void share_otherwise(struct nf_record_call *k, uint64_t start, uint64_t end)
{
    int fd = k->fd;
    k->fd = nf_fd_find(k->f.dev, k->f.ino, none, readable, 0);
    if (k->fd >= 0)
        (void)nf_rk_set(k, start, end, 's', false);
    k->fd = fd;
}

/* The kernel gets back what it had before: never more than it has now. */
void nf_rk_restore(struct nf_record_call *k, uint64_t start, uint64_t end)
{
    uint64_t next;
    for (uint64_t at = start; at < end; at = next) {
        char mode = nf_ranges_at(k->had, at, &next);
        next = next < end ? next : end;
        if (nf_rk_set(k, at, next, mode ? mode : 'u', false) == -EBADF && mode == 's' && k->kind == 'p')
            share_otherwise(k, at, next);
    }
}

/*
 * Takes the range in the kernel, but for what would weaken something there: were Redis to refuse the rest, that could not
 * be had back.
 */
int nf_rk_take(struct nf_record_call *k)
{
    uint64_t next;
    k->piece_start = k->start;
    k->piece_end = k->end;
    if (k->mode == 'x')
        return nf_rk_set(k, k->start, k->end, 'x', false);
    for (uint64_t at = k->start; at < k->end; at = next) {
        char mode = nf_ranges_at(k->had, at, &next);
        next = next < k->end ? next : k->end;
        int e = mode == 'x' ? 0 : nf_rk_set(k, at, next, 's', false);
        if (e < 0) {
            k->piece_start = at;
            k->piece_end = next;
            nf_rk_restore(k, k->start, at);
            return e;
        }
    }
    return 0;
}

static bool not_inherited(int fd)
{
    return !nf_shared(fd);
}

static int any(int fd, long unused)
{
    (void)unused;
    return fd >= 0;
}

/* Does the kernel have locks of this process that were taken before its exec? Those stay with the descriptors that it inherited. */
bool nf_rk_is_heir(const struct nf_record_call *k)
{
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return k->kind == 'p' && !k->alone && nf_real()->fcntl(k->fd, F_OFD_GETLK, &fl) == 0 && fl.l_type != F_UNLCK &&
           nf_fd_find(k->f.dev, k->f.ino, not_inherited, any, 0) >= 0;
}

/*
 * Is what we hold of the range gone from the kernel, by a close that nobody saw? Then another process of this host may have had
 * it meanwhile, and Redis does not have it for us any more. Shared locks of others may hide ours: in doubt it is there.
 */
static bool vanished(const struct nf_record_call *k)
{
    struct flock fl = {.l_type = F_WRLCK};
    nf_record_absolute(&fl, k->start, k->end);
    if (nf_real()->fcntl(k->fd, k->kind == 'p' ? F_OFD_GETLK : F_GETLK, &fl) != 0)
        return false;
    return fl.l_type == F_UNLCK || (fl.l_type == F_WRLCK && k->kind == 'p' && fl.l_pid != nf_sys.getpid());
}

/* Some of what was held is not any more: if nothing is left, the owner has ended. */
static void end_if_nothing_left(struct nf_record *r)
{
    if (r->held.n)
        return;
    nf_record_drop(r, false);
    if (!r->refs)
        (void)nf_record_new_token(r);
}

/* What somebody else has unlocked, or made shared, through the same description. */
static void forget_unlocked(struct nf_record *r, const struct nf_ranges *kernel)
{
    uint64_t next;
    uint64_t there;
    bool had = r->held.n > 0;
    for (uint64_t at = 0; at < NF_RANGE_END; at = next) {
        char ours = nf_ranges_at(&r->held, at, &next);
        char now = nf_ranges_at(kernel, at, &there);
        next = there < next ? there : next;
        if (ours && ours != now && now != 'x' && nf_ranges_reserve(&r->held) == 0) {
            nf_ranges_set(&r->held, at, next, now);
            r->dirty = true;
        }
    }
    if (had)
        end_if_nothing_left(r);
}

/*
 * What the owner has in the kernel may be more than this process knows of: another one has taken ranges through the same
 * description, or the program that this process was before; or less. The kernel is asked then; where it does not tell, what we
 * know counts. A part that it has just let us have after a wait is as it was before.
 */
void nf_rk_look_before(struct nf_record_call *k, struct nf_record *r)
{
    char path[48] = "/proc/locks";
    struct nf_ranges now = {0};
    pid_t pid = k->kind == 'p' ? nf_sys.getpid() : -1;
    uint64_t next;
    bool waited = k->waited;
    k->had = &r->held;
    k->waited = false;
    if (!k->alone && nf_ranges_cover(&r->held, k->start, k->end, 's') && vanished(k)) {
        nf_record_trim(r, k->fd);
        if (nf_ranges_reserve(&r->held) == 0)
            nf_ranges_set(&r->held, k->start, k->end, 0);
        r->dirty = true;
        end_if_nothing_left(r);
    }
    if (k->alone || !(k->kind == 'p' ? r->heir : nf_shared(k->fd)))
        return;
    if (k->kind == 'o')
        (void)snprintf(path, sizeof path, "/proc/thread-self/fdinfo/%d", k->fd);
    int e = nf_fd_ranges(path, k->f.ino, k->kind == 'p' ? "POSIX" : "OFDLCK", pid, &now);
    for (uint64_t at = k->piece_start; e == 0 && waited && at < k->piece_end; at = next) {
        char mode = nf_ranges_at(&k->asked, at, &next);
        next = next < k->piece_end ? next : k->piece_end;
        if ((e = nf_ranges_reserve(&now)) == 0)
            nf_ranges_set(&now, at, next, mode);
    }
    if (e == 0) {
        nf_ranges_clear(&k->asked);
        k->asked = now;
        k->had = &k->asked;
        forget_unlocked(r, &now);
    } else {
        nf_ranges_clear(&now);
    }
}
