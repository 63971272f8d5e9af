/*
 * Is what a record stands for still there? Asked of the kernel: see record.h.
 */
#include "lease/record.h"

#include "base/fdutil.h"
#include "base/klock.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>

/* Is any descriptor of the file open in this process? fd, -ENOENT, -errno. */
static bool none(int fd)
{
    (void)fd;
    return false;
}

static int any(int fd, long unused)
{
    (void)unused;
    return fd >= 0;
}

/* Is the description behind fd that of `arg`? */
static int same(int fd, long arg)
{
    return nf_record_same_description((const struct nf_record *)arg, fd);
}

/*
 * A process's locks are asked for as an open file description, and the
 * other way round: an owner is not told of its own locks. In doubt it is held: another's shared lock may hide ours.
 */
void nf_record_trim(struct nf_record *r, int fd)
{
    struct nf_ranges kernel = {0};
    uint64_t start = 0;
    uint64_t end;
    nf_mutex_owed(&r->file->mu);
    int err = nf_klock_ranges(fd, r->kind == 'p' ? F_OFD_GETLK : F_GETLK, r->kind, &kernel);
    while (err == 0 && nf_ranges_missing(&r->held, &kernel, &start, &end) && nf_ranges_reserve(&r->held) == 0) {
        nf_ranges_set(&r->held, start, end, 0);
        r->dirty = true;
        start = end;
    }
    nf_ranges_clear(&kernel);
}

/* A process: the close of any descriptor of the file drops all it has there. */
static bool process_gone(struct nf_record *r)
{
    int fd = nf_fd_is(r->fd, r->file->dev, r->file->ino) ? r->fd : nf_fd_find(r->file->dev, r->file->ino, none, any, 0);
    r->fd = fd < 0 ? -1 : fd;
    if (fd >= 0 && !r->alone)
        nf_record_trim(r, fd);
    return fd == -ENOENT || r->held.n == 0;
}

static bool description_gone(struct nf_record *r)
{
    int fd = r->fd >= 0 && nf_fd_is(r->fd, r->file->dev, r->file->ino) ? r->fd : -ENOENT;
    if (fd < 0 && r->fd >= 0)
        fd = r->fd = nf_fd_find(r->file->dev, r->file->ino, none, same, (long)r);
    if (fd >= 0 && !r->alone)
        nf_record_trim(r, fd);
    /* Not in this process; another one may have it. */
    return r->held.n == 0 || (fd == -ENOENT && (r->alone || nf_inode_locked(r->file->ino, true, 0) == 0));
}

bool nf_record_gone(struct nf_record *r)
{
    nf_mutex_owed(&r->file->mu);
    return r->kind == 'p' ? process_gone(r) : description_gone(r);
}

struct beside {
    const struct nf_record *r;
    unsigned first, last;
};

static int beside(int fd, long arg)
{
    const struct beside *b = (const struct beside *)arg;
    return ((unsigned)fd < b->first || (unsigned)fd > b->last) && nf_record_same_description(b->r, fd);
}

int nf_record_other_fd(const struct nf_record *r, unsigned first, unsigned last)
{
    struct beside b = {r, first, last};
    nf_mutex_owed(&r->file->mu);
    return nf_fd_find(r->file->dev, r->file->ino, none, beside, (long)&b);
}

bool nf_record_verify(const struct nf_tenure *t)
{
    bool gone = false;
    struct nf_record_file *f = nf_record_file_find(t->dev, t->ino);
    if (!f)
        return false;
    /* Held: somebody is at work with the file just now, and will see for himself. */
    if (nf_mutex_trylock(&f->mu) == 0) {
        struct nf_record *r;
        TAILQ_FOREACH (r, &f->records, link)
            if (r->t == t)
                break;
        if (r && r->held.n) {
            gone = nf_record_gone(r);
            if (gone) {
                nf_record_drop(r, false);
                nf_record_tidy(r);
            } else {
                nf_record_sync(r);
            }
        }
        nf_mutex_unlock(&f->mu);
    }
    nf_record_file_put(f);
    return gone;
}
