/*
 * See inquire.h.
 */
#include "lock/inquire.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fdutil.h"
#include "base/identity.h"
#include "base/process.h"
#include "base/sigs.h"
#include "base/sys.h"
#include "lease/lease.h"
#include "lease/record.h"
#include "lock/leave.h"
#include "lock/match.h"
#include "redis/look.h"

#include <errno.h>
#include <stdlib.h>

/* What is left, by what Redis said: with the margin of every lease. */
static int64_t deadline_of(const struct nf_look *look)
{
    int ttl_ms = nf_config()->policy.ttl_ms;
    return nf_lease_deadline(look->sent_ms, ttl_ms) - ttl_ms + look->left_ms;
}

/*
 * Somebody else renews t: Redis tells how it stands. If it gives no answer, or has forgotten the lock (for now: its
 * keeper may bring it back), what was known before goes on to count.
 */
static void refresh(struct nf_tenure *t)
{
    struct nf_look look;
    const struct nf_config *c = nf_config();
    bool owner = t->mode == 'p' || t->mode == 'o';
    int64_t now = nf_now_ms();
    nf_table_lock();
    int64_t known = t->deadline_ms;
    bool ask = t->kept && !t->unsure && !t->lost;
    nf_table_unlock();
    if (!ask)
        return;
    /* An exchange that hangs must not keep the caller from what it is told in time. */
    int64_t give_up = now + c->redis.timeout_ms;
    give_up = known > now && known < give_up ? known : give_up;
    nf_op_look(&c->redis, t->names, t->token, t->identity_len, owner, give_up, &look);
    nf_table_lock();
    if (look.result == NF_LOOK_OURS)
        t->deadline_ms = deadline_of(&look);
    else if (look.result == NF_LOOK_OTHER)
        t->lost = true;
    nf_table_unlock();
}

static void read_tenure(const struct nf_tenure *t, struct nf_inquiry *out)
{
    nf_table_lock();
    out->fence = strtoull(t->fence, NULL, 10);
    out->left_ms = t->lost ? 0 : nf_left_ms(t->deadline_ms);
    nf_table_unlock();
}

static int ask_tenure(struct nf_tenure *t, bool lease, struct nf_inquiry *out)
{
    nf_table_lock();
    bool look = lease && t->kept;
    nf_table_unlock();
    /* A process that shares the description may have unlocked it. */
    if (look && nf_lease_verify(t))
        return -ENOLCK;
    if (look)
        refresh(t);
    read_tenure(t, out);
    return 0;
}

/* The owner's record locks of the file, if it has any. */
static int ask_record(char kind, int fd, const struct stat *st, bool lease, struct nf_inquiry *out)
{
    struct nf_record_file *f = nf_record_file_find(st->st_dev, st->st_ino);
    struct nf_tenure *t = NULL;
    if (!f)
        return -ENOLCK;
    nf_mutex_lock(&f->mu);
    struct nf_record *r = nf_record_find(f, kind, fd);
    nf_table_lock();
    if (r && r->held.n && r->t->listed) {
        t = r->t;
        nf_tenure_ref(t);
    }
    nf_table_unlock();
    nf_mutex_unlock(&f->mu);
    nf_record_file_put(f);
    if (!t)
        return -ENOLCK;
    if (lease)
        refresh(t);
    read_tenure(t, out);
    nf_table_lock();
    nf_tenure_unref(t);
    nf_table_unlock();
    return 0;
}

/* This process has not taken it; but the kernel may say that fd's description has a lock, and Redis that our host has. */
static int ask_redis(int fd, struct nf_inquiry *out)
{
    struct nf_file f;
    struct nf_look look;
    char token[NF_TOKEN_MAX];
    const struct nf_config *c = nf_config();
    if (nf_match(fd, &f) != NF_MATCH_YES || c->broken || nf_fd_lock_mode(fd, f.ino, false) <= 0)
        return -ENOLCK;
    int identity_len = nf_token_make(token, c->policy.host_extra, f.dev, f.ino);
    struct nf_names *names = identity_len < 0 ? NULL : nf_names_make(f.key, f.key_len);
    if (!names)
        return -ENOLCK;
    nf_op_look(&c->redis, names, token, identity_len, false, nf_now_ms() + c->redis.timeout_ms, &look);
    nf_free(names);
    if (look.result == NF_LOOK_DOWN || look.result == NF_LOOK_REFUSED)
        return -EIO;
    if (look.result != NF_LOOK_OURS || !look.fence[0])
        return -ENOLCK;
    out->fence = strtoull(look.fence, NULL, 10);
    out->left_ms = nf_left_ms(deadline_of(&look));
    return 0;
}

static int ask(int fd, const struct stat *st, bool lease, struct nf_inquiry *out)
{
    struct nf_tenure *t = nf_lease_of_fd(fd, st->st_dev, st->st_ino);
    if (t) {
        int r = ask_tenure(t, lease, out);
        nf_table_lock();
        nf_tenure_unref(t);
        nf_table_unlock();
        return r;
    }
    int r = ask_record('o', fd, st, lease, out);
    if (r == -ENOLCK)
        r = ask_record('p', fd, st, lease, out);
    return r == -ENOLCK ? ask_redis(fd, out) : r;
}

int nf_inquire(int fd, bool lease, struct nf_inquiry *out)
{
    struct stat st;
    struct nf_quiet quiet;
    int r = nf_sys.fstat(fd, &st);
    if (r < 0)
        return r;
    switch (nf_process_where()) {
    case NF_VFORK_CHILD:
        return -ENOLCK;
    case NF_FORKED:
        nf_fork_noticed();
        break;
    case NF_HOME:
        break;
    }
    nf_quiet(&quiet);
    r = ask(fd, &st, lease, out);
    nf_loud(&quiet);
    return r;
}
