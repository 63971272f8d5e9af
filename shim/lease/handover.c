/*
 * Giving tenures away: see keeper.h.
 *
 * Crash points. Before the keeper's answer we renew; it may already renew too, which does no harm: renewing is
 * idempotent and compares tokens. After the answer only the keeper does. If we die before the answer and it has got
 * the message, it watches the kernel's lock and ends the tenure with it; if it has not, the lease ends by itself.
 */
#include "lease/keeper.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fdset.h"
#include "base/fdutil.h"
#include "base/process.h"
#include "base/sys.h"
#include "lease/lease.h"
#include "lease/pending.h"
#include "lease/proto.h"
#include "redis/ranges.h"

#include <bsd/string.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void mark_kept(struct nf_tenure *t)
{
    nf_table_lock();
    t->kept = true;
    nf_table_unlock();
}

static atomic_bool stranger_said, failure_said; /* once is enough: a program may fork often */

/*
 * A stand-in's description dies with the processes that inherited it from us. But a descriptor that we got from our
 * parent, it still has (a shell's `exec 9>file; flock 9`): the lock must live as long as anybody has that one. Table
 * locked.
 */
static bool outlives_us(const struct nf_tenure *t)
{
    nf_table_owed();
    return t->shadow >= 0 && nf_marked(NF_MARK_INHERITED, t->fd) && getppid() > 1;
}

/* To the keeper that is already there, unless it must be one of its own: true if it has taken the tenure on. */
static bool give_to_existing(const struct nf_tenure *t, struct nf_ho_tenure *m)
{
    char reply;
    nf_table_lock();
    int r = outlives_us(t) ? -ENOTSUP : nf_ho_pack(m, NF_HO_GIVE, t);
    nf_table_unlock();
    if (r == 0 && m->mode == 'p')
        nf_pid_space(m->pids);
    if (r == 0)
        r = nf_ho_ask(m, &nf_config()->redis, NF_HO_ANSWER_MS, &reply);
    if (r == -EPERM && !atomic_exchange(&stranger_said, true))
        nf_log(NF_LOG_WARN, "a process of another user has the address of the keeper of %s: each lock gets a keeper of its own",
               t->names->key);
    return r == 0 && reply == NF_HO_MINE;
}

static bool never(int fd)
{
    (void)fd;
    return false;
}

static int any(int fd, long unused)
{
    (void)unused;
    return fd >= 0;
}

/* To a keeper of their own, whose answer is waited for, or collected later (pending.h). */
static int give_to_new(struct nf_tenure **list, size_t n, struct nf_ho_tenure *m, bool wait)
{
    const struct nf_config *c = nf_config();
    struct nf_keeper_fds *files = nf_calloc(n, sizeof *files);
    if (!files)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        if (nf_range_owner(list[i]->mode)) /* any descriptor of the file will do */
            files[i].fd = nf_fd_find(list[i]->dev, list[i]->ino, never, any, 0);
    nf_table_lock();
    for (size_t i = 0; i < n; i++)
        files[i] = (struct nf_keeper_fds){.fd = nf_range_owner(list[i]->mode) ? files[i].fd
                                                : list[i]->shadow >= 0        ? list[i]->shadow
                                                                              : list[i]->fd,
                                          .dev = list[i]->lock_dev,
                                          .ino = list[i]->lock_ino,
                                          .ofd = list[i]->shadow >= 0,
                                          .fresh = -1,
                                          .hold = outlives_us(list[i]) ? list[i]->shadow : -1,
                                          .held = outlives_us(list[i]) ? list[i]->fd : -1};
    nf_table_unlock();
    int ctl = nf_keeper_spawn(files, n);
    int r = ctl < 0 ? ctl : 0;
    if (r == 0) {
        struct nf_ho_hello hello = {
            .magic = NF_HO_MAGIC, .type = NF_HO_HELLO, .n = (uint32_t)n, .redis = c->redis, .policy = c->policy, .log = c->log};
        r = nf_ho_send(ctl, &hello, sizeof hello);
        explicit_bzero(&hello, sizeof hello);
    }
    for (size_t i = 0; r == 0 && i < n; i++) {
        nf_table_lock();
        r = nf_ho_pack(m, NF_HO_GIVE, list[i]);
        nf_table_unlock();
        m->fresh_fd = files[i].fresh;
        m->hold_fd = files[i].hold;
        m->held_fd = files[i].held;
        if (files[i].held >= 0)
            m->parent = getppid();
        m->parent_fd = files[i].held;
        if (r == 0)
            r = nf_ho_send(ctl, m, NF_HO_TENURE_SIZE(m->key_len));
    }
    nf_free(files);
    if (r == 0 && !wait && nf_pending_add(ctl, list, n))
        return 0;
    int byte = r == 0 ? nf_ho_answer(ctl, NF_HO_ANSWER_MS) : 0;
    if (r == 0 && byte != NF_HO_MINE)
        r = byte < 0 ? byte : -EPROTO;
    if (ctl >= 0)
        (void)nf_sys.close(ctl);
    for (size_t i = 0; r == 0 && i < n; i++)
        mark_kept(list[i]);
    return r;
}

/* Marks those of the list that are to be given away; returns how many, moved to `out`. */
static size_t begin_giving(struct nf_tenure **list, size_t n, struct nf_tenure **out)
{
    size_t left = 0;
    nf_table_lock();
    for (size_t i = 0; i < n; i++)
        if (list[i]->listed && !list[i]->kept && !list[i]->lost) {
            list[i]->giving = true;
            out[left++] = list[i];
        }
    nf_table_unlock();
    return left;
}

/*
 * The mark is taken off. A tenure that another thread ended meanwhile was left to the keeper; if no keeper has
 * it, that is for us to do.
 */
static void end_giving(struct nf_tenure **list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        nf_table_lock();
        list[i]->giving = false;
        bool left_over = !list[i]->listed && !list[i]->kept;
        nf_table_unlock();
        struct nf_names *names = left_over ? nf_names_make(list[i]->names->key, list[i]->names->key_len) : NULL;
        if (names)
            nf_lease_orphan(names, list[i]->token, list[i]->mode, nf_now_ms() + nf_config()->policy.ttl_ms);
    }
}

void nf_keeper_failed(const char *key, int err)
{
    if (!atomic_exchange(&failure_said, true))
        nf_log(NF_LOG_ERROR, "netflock-keeper could not take over %s (error %d): the lock will not outlive this process", key, -err);
}

static int give_list(struct nf_tenure **list, size_t n, bool wait)
{
    size_t left = 0;
    nf_pending_settle(true); /* the keeper of these files may be about to start */
    struct nf_ho_tenure *m = nf_malloc(sizeof *m);
    struct nf_tenure **given = nf_calloc(n ? 2 * n : 1, sizeof(struct nf_tenure *));
    struct nf_tenure **rest = given ? given + n : NULL;
    size_t n_given = m && given ? begin_giving(list, n, given) : 0;
    int r = m && given ? 0 : -ENOMEM;
    for (size_t i = 0; i < n_given; i++) {
        if (give_to_existing(given[i], m))
            mark_kept(given[i]);
        else
            rest[left++] = given[i];
    }
    if (left)
        r = give_to_new(rest, left, m, wait);
    if (r < 0)
        nf_keeper_failed(n ? list[0]->names->key : "", r);
    end_giving(given, n_given);
    nf_free(m);
    nf_free(given);
    return r;
}

int nf_keeper_give(struct nf_tenure **list, size_t n)
{
    return give_list(list, n, true);
}

static int survives_exec(int fd, long unused)
{
    (void)unused;
    int flags = nf_sys.fcntl(fd, F_GETFD, 0);
    return flags < 0 ? flags : !(flags & FD_CLOEXEC);
}

/*
 * Sorts out those that no descriptor without close-on-exec may stand for: not only the one that the tenure is known by,
 * for a vfork child may have made a duplicate of it (a lock file as its standard output). The file decides, not the
 * description; erring means a keeper too many. Many at once are not worth so many looks.
 */
static size_t keep_inheritable(struct nf_tenure **list, size_t n)
{
    size_t kept = 0;
    if (n > 16)
        return n;
    for (size_t i = 0; i < n; i++) {
        int r = nf_fd_find(list[i]->dev, list[i]->ino, never, survives_exec, 0);
        if (r != -ENOENT) {
            list[kept++] = list[i];
            continue;
        }
        nf_table_lock();
        nf_tenure_unref(list[i]);
        nf_table_unlock();
    }
    return kept;
}

/* A process's record locks are not inherited: they stay with it, until it ends or becomes another program. */
static bool concerned(const struct nf_tenure *t, enum nf_leaving why)
{
    nf_table_owed();
    if (t->kept || t->lost)
        return false;
    if (t->mode == 'p')
        return why == NF_LEAVING_EXEC || why == NF_LEAVING_EXIT;
    return nf_range_owner(t->mode) ? !t->alone : t->fd >= 0;
}

int nf_keeper_give_all(enum nf_leaving why)
{
    size_t n = 0;
    size_t room = (size_t)nf_tenure_count();
    /* Who collects an answer later? Nobody when the program goes; and a vfork child's descriptors go with it. */
    bool leaves = why == NF_LEAVING_EXEC || why == NF_LEAVING_EXIT;
    bool wait = leaves || nf_process_where() != NF_HOME;
    if (room == 0 || nf_config()->policy.keeper == NF_KEEPER_NEVER)
        return 0;
    if (leaves)
        nf_pending_settle(true);
    struct nf_tenure **list = nf_calloc(room, sizeof(struct nf_tenure *));
    if (!list)
        return -ENOMEM;
    nf_table_lock();
    for (struct nf_tenure *t = nf_tenure_any(NULL); t && n < room; t = nf_tenure_any(t)) {
        if (!concerned(t, why))
            continue;
        nf_tenure_ref(t);
        list[n++] = t;
    }
    nf_table_unlock();
    if (why == NF_LEAVING_SPAWN)
        n = keep_inheritable(list, n);
    int r = n ? give_list(list, n, wait) : 0;
    nf_table_lock();
    for (size_t i = 0; i < n; i++)
        nf_tenure_unref(list[i]);
    nf_table_unlock();
    nf_free(list);
    return r;
}

/* One message about a file, one answer; 0 if there is no keeper, or it left while we asked. */
static char talk(enum nf_ho_type type, dev_t dev, ino_t ino, const char *key, size_t key_len, const char *token, bool *there)
{
    char reply = 0;
    struct nf_ho_tenure *m = nf_calloc(1, sizeof *m);
    *there = false;
    nf_pending_settle(true);
    if (m && key_len < sizeof m->key) {
        m->magic = NF_HO_MAGIC;
        m->type = type;
        m->dev = dev;
        m->ino = ino;
        m->key_len = (uint32_t)key_len;
        (void)strlcpy(m->token, token, sizeof m->token);
        memcpy(m->key, key, key_len);
        *there = nf_ho_ask(m, &nf_config()->redis, NF_KEEPER_WAIT_MS, &reply) == 0;
    }
    nf_free(m);
    return reply;
}

enum nf_keeper_state nf_keeper_sync(dev_t dev, ino_t ino, const char *key, size_t key_len)
{
    bool there;
    char byte = talk(NF_HO_SYNC, dev, ino, key, key_len, "", &there);
    if (!there)
        return NF_KEEPER_NONE;
    /* A keeper that leaves while we ask had nothing left to keep. */
    return byte == NF_HO_HELD ? NF_KEEPER_HELD : NF_KEEPER_IDLE;
}

bool nf_keeper_ended(dev_t dev, ino_t ino, const char *key, size_t key_len, const char *token)
{
    bool there;
    (void)talk(NF_HO_ENDED, dev, ino, key, key_len, token, &there);
    return there;
}
