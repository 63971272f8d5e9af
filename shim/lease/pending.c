/*
 * Hand-overs whose answer is still to come.
 *
 * fork() need not wait for a keeper to start: the keeper's program is running, and the message lies in its socket, when
 * the hand-over returns. From then on the tenure counts as kept, but we renew it too, until the answer is there; the
 * renewal thread collects it. Whatever asks a keeper, hands over again, or ends this program, waits for it first, so
 * that nobody finds a keeper that is not there yet.
 *
 * The list is guarded by the table's mutex. Looking for an answer does not block.
 */
#include "lease/pending.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/process.h"
#include "base/sys.h"
#include "lease/keeper.h"
#include "lease/orphan.h"
#include "lease/proto.h"

#include <bsd/sys/queue.h>
#include <errno.h>
#include <stdatomic.h>

struct pending {
    TAILQ_ENTRY(pending) link;
    int ctl;
    dev_t dev; /* of the socket: the host may close it, and get the number for a file of its own */
    ino_t ino;
    int64_t until_ms;
    size_t n;
    struct nf_tenure *list[];
};

static TAILQ_HEAD(, pending) waiting = TAILQ_HEAD_INITIALIZER(waiting);
static atomic_int count;

int64_t nf_pending_next(void)
{
    nf_table_owed();
    return TAILQ_EMPTY(&waiting) ? INT64_MAX : nf_now_ms() + NF_PENDING_LOOK_MS;
}

bool nf_pending_add(int ctl, struct nf_tenure **list, size_t n)
{
    struct stat st;
    struct pending *p = nf_calloc(1, sizeof *p + n * sizeof(struct nf_tenure *));
    if (!p || nf_sys.fstat(ctl, &st) < 0) {
        nf_free(p);
        return false;
    }
    p->ctl = ctl;
    p->dev = st.st_dev;
    p->ino = st.st_ino;
    p->until_ms = nf_now_ms() + NF_HO_ANSWER_MS;
    p->n = n;
    nf_table_lock();
    for (size_t i = 0; i < n; i++) {
        p->list[i] = list[i];
        list[i]->kept = list[i]->unsure = true;
        nf_tenure_ref(list[i]);
    }
    TAILQ_INSERT_TAIL(&waiting, p, link);
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    (void)nf_lease_run(p->until_ms - NF_HO_ANSWER_MS + NF_PENDING_LOOK_MS);
    nf_table_unlock();
    return true;
}

/* Off the list: taken on, or not. Table locked. */
static void settle(struct pending *p, bool kept)
{
    nf_table_owed();
    TAILQ_REMOVE(&waiting, p, link);
    atomic_fetch_sub_explicit(&count, 1, memory_order_relaxed);
    if (nf_fd_is(p->ctl, p->dev, p->ino))
        (void)nf_sys.close(p->ctl);
    for (size_t i = 0; i < p->n; i++) {
        p->list[i]->kept = kept;
        p->list[i]->unsure = false;
    }
}

/* Like settle(); what has ended meanwhile is not ours to release if the keeper may have it after all. Table locked. */
static void settle_by(struct pending *p, int answer)
{
    settle(p, answer == NF_HO_MINE);
    for (size_t i = 0; i < p->n && answer == -EBADF; i++)
        p->list[i]->kept = !p->list[i]->listed;
}

static void release(struct pending *p)
{
    for (size_t i = 0; i < p->n; i++)
        nf_tenure_unref(p->list[i]);
    nf_free(p);
}

/* One that has been answered, or never will be, off the list; NULL if there is none. *fd: one that has not. Table locked. */
static struct pending *answered(int *fd, int *answer)
{
    struct pending *p;
    nf_table_owed();
    *fd = -1;
    TAILQ_FOREACH (p, &waiting, link) {
        *answer = nf_fd_is(p->ctl, p->dev, p->ino) ? nf_ho_answer(p->ctl, 0) : -EBADF;
        if (*answer != -ETIMEDOUT || nf_now_ms() >= p->until_ms) {
            settle_by(p, *answer);
            return p;
        }
        *fd = p->ctl;
    }
    return NULL;
}

void nf_pending_settle(bool wait)
{
    while (atomic_load_explicit(&count, memory_order_relaxed) > 0 && nf_process_where() == NF_HOME) {
        int answer = 0;
        struct pollfd open = {.events = POLLIN};
        nf_table_lock();
        struct pending *p = answered(&open.fd, &answer);
        nf_table_unlock();
        /* If the host has closed our socket, the keeper may well have it: we go on, and the next hand-over will tell. */
        if (p && answer != NF_HO_MINE && answer != -EBADF)
            nf_keeper_failed(p->list[0]->names->key, answer < 0 ? answer : -EPROTO);
        if (p) {
            nf_table_lock();
            release(p);
            nf_table_unlock();
        } else if (!wait) {
            return;
        } else {
            (void)nf_sys.poll(&open, 1, 5); /* in slices: another thread may collect the answer meanwhile */
        }
    }
}

void nf_pending_fork_child(void)
{
    struct pending *p;
    while ((p = TAILQ_FIRST(&waiting))) {
        settle(p, true);
        release(p);
    }
}
