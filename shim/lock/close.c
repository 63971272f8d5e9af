/*
 * See close.h. Between the two steps the tenure has no descriptor (fd == -1) and is marked as being decided on, so
 * that the renewal thread goes on renewing it and leaves the verdict to us. Another thread may get the same number
 * for a new file meanwhile: only the tenure noted before is looked at.
 */
#include "lock/close.h"

#include "base/fdset.h"
#include "base/fdutil.h"
#include "base/process.h"
#include "base/sigs.h"
#include "base/sys.h"
#include "lease/keeper.h"
#include "lease/lease.h"
#include "lock/record.h"
#include "lock/shadow.h"

#include <errno.h>
#include <stdbool.h>

/* The tenure whose descriptor is fd, marked as being decided on, referenced. */
static struct nf_tenure *claim(int fd)
{
    struct stat st;
    struct nf_tenure *t = NULL;
    if (nf_tenure_count() == 0 || nf_sys.fstat(fd, &st) < 0)
        return NULL;
    nf_table_lock();
    for (t = nf_tenure_first(st.st_dev, st.st_ino); t; t = nf_tenure_next(t))
        if (t->fd == fd && !t->deciding)
            break;
    if (t) {
        nf_tenure_ref(t);
        t->deciding = true;
    }
    nf_table_unlock();
    return t;
}

void nf_close_begin(int fd, struct nf_closing *c)
{
    struct nf_quiet quiet;
    c->errno_saved = errno;
    c->tenure = NULL;
    if (nf_process_where() != NF_HOME)
        return; /* a vfork child closes its own descriptors, not ours */
    if (fd < NF_WATCH_MAX && !nf_marked(NF_MARK_TENURE, fd)) {
        nf_marks_forget(fd);
        return;
    }
    nf_quiet(&quiet);
    struct nf_tenure *t = c->tenure = claim(fd);
    bool shared = (c->shared = t && nf_shared(fd));
    nf_marks_forget(fd);
    c->other = t && t->shadow >= 0 ? nf_shadow_other(fd, t->dev, t->ino) : -ENOENT;
    if (t) {
        /* Perhaps not the last of its kind, and only the kernel will know: a keeper can wait for that, we cannot. */
        if (shared && nf_config()->policy.keeper != NF_KEEPER_NEVER && !nf_tenure_kept(t))
            (void)nf_keeper_give(&t, 1);
        nf_table_lock();
        if (t->listed)
            nf_tenure_set_fd(t, -1);
        nf_table_unlock();
    }
    nf_loud(&quiet);
    errno = c->errno_saved;
}

void nf_close_end(struct nf_closing *c)
{
    struct nf_quiet quiet;
    struct nf_tenure *t = c->tenure;
    int saved = errno;
    if (!t)
        return;
    nf_quiet(&quiet);
    int other = t->shadow >= 0 ? c->other : nf_lease_other_fd(t);
    nf_table_lock();
    t->deciding = false;
    bool kept = nf_tenure_with_keeper(t);
    /* Shared, and no keeper could be had: nothing but a look at all the machine's locks can tell. */
    bool unsure = t->listed && other == -ENOENT && c->shared && !kept;
    bool ended = t->listed && other == -ENOENT && !unsure;
    if (t->listed && other >= 0)
        nf_tenure_set_fd(t, other);
    if (ended && kept)
        nf_tenure_remove(t);
    nf_table_unlock();
    if (ended && kept)
        (void)nf_keeper_sync(t->lock_dev, t->lock_ino, t->names->key, t->names->key_len);
    else if (ended)
        nf_lease_end(t);
    else if (unsure)
        (void)nf_lease_verify(t);
    nf_table_lock();
    nf_tenure_unref(t);
    nf_table_unlock();
    nf_loud(&quiet);
    errno = saved;
}

void nf_close_share(int fd)
{
    struct nf_quiet quiet;
    int saved = errno;
    if (!nf_config_maybe())
        return;
    nf_share(fd);
    if (nf_tenure_count() > 0 && nf_process_where() == NF_HOME && nf_config()->policy.keeper != NF_KEEPER_NEVER) {
        struct stat st;
        nf_quiet(&quiet);
        struct nf_tenure *t = nf_sys.fstat(fd, &st) == 0 ? nf_lease_of_fd(fd, st.st_dev, st.st_ino) : NULL;
        if (t && !nf_tenure_kept(t))
            (void)nf_keeper_give(&t, 1);
        nf_table_lock();
        nf_tenure_unref(t);
        nf_table_unlock();
        nf_record_share(fd);
        nf_loud(&quiet);
    }
    errno = saved;
}
