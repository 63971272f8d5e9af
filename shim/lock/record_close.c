/*
 * The close of any descriptor of a file drops all that the process holds in it; that of the last one of a description, what
 * the description holds.
 *
 * The file's mutex is held over the real close: a range that another thread sets meanwhile, through another descriptor, is
 * either gone in the kernel and then in Redis, or comes after both. Several files are taken in the order of their lists.
 */
#include "lock/record.h"

#include "base/fdset.h"
#include "base/fdutil.h"
#include "base/process.h"
#include "base/sys.h"
#include "lease/keeper.h"

#include <errno.h>
#include <fcntl.h>

struct span {
    unsigned first, last;
};

static bool none(int fd)
{
    (void)fd;
    return false;
}

/* The close of an O_PATH descriptor drops nothing. */
static bool can_hold(int fd)
{
    int flags = nf_sys.fcntl(fd, F_GETFL, 0);
    return flags < 0 || !(flags & O_PATH);
}

static int inside(int fd, long arg)
{
    const struct span *s = (const struct span *)arg;
    return (unsigned)fd >= s->first && (unsigned)fd <= s->last && can_hold(fd);
}

/* The next file, after `after` (whose reference is given back), of which a descriptor is to be closed; referenced. */
static struct nf_record_file *next_concerned(struct nf_record_file *after, unsigned first, unsigned last)
{
    struct stat st;
    struct span s = {first, last};
    struct nf_record_file *f;
    if (first == last) {
        if (after)
            nf_record_file_put(after);
        return after || nf_sys.fstat((int)first, &st) < 0 || !can_hold((int)first) ? NULL : nf_record_file_find(st.st_dev, st.st_ino);
    }
    for (f = nf_record_file_next(after); f; f = nf_record_file_next(f))
        if (nf_fd_find(f->dev, f->ino, none, inside, (long)&s) != -ENOENT)
            break;
    return f;
}

static bool has_fd(const struct nf_record *r, const struct nf_record_closing *c)
{
    return r->kind == 'o' && r->fd >= 0 && (unsigned)r->fd >= c->first && (unsigned)r->fd <= c->last;
}

void nf_record_close_begin(unsigned first, unsigned last, struct nf_record_closing *c)
{
    int saved = errno;
    struct nf_record_file **tail = &c->files;
    c->files = NULL;
    if (atomic_load_explicit(&nf_record_count, memory_order_relaxed) == 0 || nf_process_where() != NF_HOME)
        return;
    c->first = first;
    c->last = last;
    nf_quiet(&c->quiet);
    for (struct nf_record_file *f = next_concerned(NULL, first, last); f; f = next_concerned(f, first, last)) {
        struct nf_record *r;
        (void)nf_record_file_find(f->dev, f->ino); /* a reference that lasts until the end */
        nf_mutex_lock(&f->mu);
        f->closing = NULL;
        *tail = f;
        tail = &f->closing;
        TAILQ_FOREACH (r, &f->records, link)
            if (has_fd(r, c)) {
                int other = nf_record_other_fd(r, first, last);
                r->shared = nf_shared(r->fd);
                r->next_fd = other >= 0 ? other : -1;
                /* Perhaps not the last of its kind, and only the kernel will know: a keeper can wait for that, we cannot. */
                if (other < 0 && r->shared && r->held.n && nf_config()->policy.keeper != NF_KEEPER_NEVER && !nf_tenure_kept(r->t))
                    (void)nf_keeper_give(&r->t, 1);
            }
    }
    if (!c->files)
        nf_loud(&c->quiet);
    errno = saved;
}

static void end_file(struct nf_record_file *f, const struct nf_record_closing *c)
{
    struct nf_record *next;
    for (struct nf_record *r = TAILQ_FIRST(&f->records); r; r = next) {
        next = TAILQ_NEXT(r, link);
        if (r->kind == 'o') {
            if (!has_fd(r, c))
                continue;
            r->fd = r->next_fd;
            /* Another process may have the description: then nothing but a look at all the machine's locks can tell. */
            if (r->fd >= 0)
                continue;
            if (r->shared && nf_tenure_kept(r->t)) {
                nf_record_leave(r);
                continue;
            }
            if (r->shared && !nf_record_gone(r))
                continue;
        }
        if (r->held.n)
            nf_record_drop(r, false);
        nf_record_tidy(r);
    }
}

void nf_record_close_end(struct nf_record_closing *c, bool closed)
{
    struct nf_record_file *next;
    int saved = errno;
    if (!c->files)
        return;
    for (struct nf_record_file *f = c->files; f; f = next) {
        next = f->closing;
        if (closed)
            end_file(f, c);
        nf_mutex_unlock(&f->mu);
        nf_record_file_put(f);
    }
    nf_loud(&c->quiet);
    errno = saved;
}

void nf_record_share(int fd)
{
    struct stat st;
    struct nf_record_file *f = nf_sys.fstat(fd, &st) == 0 ? nf_record_file_find(st.st_dev, st.st_ino) : NULL;
    if (!f)
        return;
    nf_mutex_lock(&f->mu);
    struct nf_record *r = nf_record_find(f, 'o', fd);
    if (r && r->held.n && !r->alone && !nf_tenure_kept(r->t))
        (void)nf_keeper_give(&r->t, 1);
    nf_mutex_unlock(&f->mu);
    nf_record_file_put(f);
}
