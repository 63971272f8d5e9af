/*
 * See leave.h. A tenure whose end this process cannot see is given to a keeper while we still hold the kernel's lock.
 */
#include "lock/leave.h"

#include "base/fdset.h"
#include "base/process.h"
#include "base/sigs.h"
#include "lease/keeper.h"
#include "lease/lease.h"
#include "lease/record.h"
#include "lock/last.h"
#include "lock/shadow.h"
#include "redis/ranges.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

/* Of the thread that forks; guarded by the table's mutex, which it holds from prepare to parent or child. */
static struct nf_quiet forking;

static bool any_not_kept(void)
{
    for (struct nf_tenure *t = nf_tenure_any(NULL); t; t = nf_tenure_any(t))
        if (!t->kept && !t->lost && t->mode != 'p')
            return true;
    return false;
}

void nf_fork_prepare(void)
{
    struct nf_quiet quiet;
    int saved = errno;
    nf_quiet(&quiet);
    nf_fork_counted();
    /* Another thread may lock between the hand-over and the mutex: look again. */
    for (int i = 0;; i++) {
        int r = nf_keeper_give_all(NF_LEAVING_FORK);
        nf_lease_fork_prepare();
        if (r < 0 || i == 5 || nf_tenure_count() == 0 || nf_config()->policy.keeper == NF_KEEPER_NEVER || !any_not_kept())
            break;
        nf_lease_fork_parent();
    }
    forking = quiet;
    errno = saved;
}

void nf_fork_parent(void)
{
    struct nf_quiet quiet = forking;
    nf_share_open(NF_CHILD_FORK); /* now, that no other thread can have opened one unseen */
    nf_fork_counted();
    nf_lease_fork_parent();
    nf_loud(&quiet);
}

void nf_fork_child(void)
{
    struct nf_quiet quiet = forking;
    nf_lease_fork_child();
    nf_process_adopt();
    nf_share_open(NF_CHILD_FORK);
    nf_mark_inherited();
    nf_loud(&quiet);
}

void nf_fork_noticed(void)
{
    struct nf_quiet quiet;
    nf_quiet(&quiet);
    nf_lease_fork_child();
    nf_process_adopt();
    nf_loud(&quiet);
}

static void give(enum nf_leaving why)
{
    struct nf_quiet quiet;
    int saved = errno;
    nf_quiet(&quiet);
    nf_shadow_follow();
    (void)nf_keeper_give_all(why);
    nf_loud(&quiet);
    errno = saved;
}

void nf_spawn_prepare(bool any)
{
    if (!nf_config_maybe())
        return;
    nf_share_open(any ? NF_CHILD_FORK : NF_CHILD_SPAWN);
    nf_fork_counted();
    if (nf_tenure_count() > 0)
        give(any ? NF_LEAVING_FORK : NF_LEAVING_SPAWN);
}

/*
 * A vfork child shares our memory, and the thread that made it sleeps until the exec: it may use the table like that
 * thread could. What it looks at (close-on-exec, /proc/self/fd) is its own table of descriptors.
 */
void nf_exec_prepare(void)
{
    if (!nf_config_maybe())
        return;
    bool child = nf_process_where() == NF_VFORK_CHILD;
    if (child) {
        nf_share_open(NF_CHILD_SPAWN);
        nf_fork_counted();
    }
    if (nf_tenure_count() > 0)
        give(child ? NF_LEAVING_SPAWN : NF_LEAVING_EXEC);
}

/*
 * Without a keeper the destructor is the last moment: earlier than the kernel's own unlock. What another process may
 * still hold in the kernel is left to its lease.
 */
static void release_all(void)
{
    struct nf_quiet quiet;
    nf_quiet(&quiet);
    nf_record_release_all(INT64_MAX);
    for (;;) {
        nf_table_lock();
        struct nf_tenure *t = nf_tenure_any(NULL);
        while (t && (t->kept || nf_shared(t->fd)))
            t = nf_tenure_any(t);
        if (t)
            nf_tenure_ref(t);
        nf_table_unlock();
        if (!t)
            break;
        nf_lease_end(t);
        nf_table_lock();
        nf_tenure_unref(t);
        nf_table_unlock();
    }
    nf_loud(&quiet);
}

static void exit_prepare(void)
{
    int saved = errno;
    if (nf_process_where() != NF_HOME || nf_last_first())
        return;
    if (nf_tenure_count() > 0) {
        if (nf_config()->policy.keeper == NF_KEEPER_NEVER)
            release_all();
        else
            give(NF_LEAVING_EXIT);
    }
    errno = saved;
}

void nf_exit_now(void)
{
    int saved = errno;
    exit_prepare();
    if (nf_last_concerned())
        nf_last_end(false);
    errno = saved;
}

static void flush_and_end(void *unused)
{
    int saved = errno;
    (void)unused;
    nf_last_end(true);
    errno = saved;
}

/* Not atexit(): a handler of ours would run with our destructors, and so before those of libraries that come after us. */
extern int __cxa_atexit(void (*handler)(void *), void *arg, void *dso);

void nf_exit_begin(void)
{
    exit_prepare();
    if (nf_last_concerned())
        (void)__cxa_atexit(flush_and_end, NULL, NULL);
}
