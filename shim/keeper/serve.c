/*
 * The shims' side of the keeper: tenures handed over, and requests to look at once. Main thread only.
 *
 * A message comes from a process of our own user (checked), but its lengths are still checked like anybody's.
 */
#include "keeper/keeper.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/sys.h"

#include "redis/ranges.h"

#include <bsd/string.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

void kfile_listen(struct kfile *f)
{
    struct sockaddr_un addr;
    f->listen = nf_sys.socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t len = nf_ho_address(&addr, f->dev, f->ino, f->names->key, f->names->key_len, &keeper.redis);
    if (f->listen >= 0 && (bind(f->listen, (struct sockaddr *)&addr, len) < 0 || listen(f->listen, 64) < 0)) {
        (void)nf_sys.close(f->listen);
        f->listen = -1;
    }
}

struct kfile *kfile_new(const struct nf_ho_tenure *m)
{
    struct kfile *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->names = nf_names_make(m->key, m->key_len);
    if (!f->names) {
        free(f);
        return NULL;
    }
    f->dev = m->dev;
    f->ino = m->ino;
    f->fresh = m->fresh_fd;
    f->ofd = m->ofd;
    TAILQ_INIT(&f->tenures);
    TAILQ_INIT(&f->records);
    nf_mutex_init(&f->mu);
    pthread_cond_init(&f->work, NULL);
    kfile_listen(f);
    TAILQ_INSERT_TAIL(&keeper.files, f, link);
    return f;
}

static struct kfile *find(const struct nf_ho_tenure *m)
{
    struct kfile *f;
    TAILQ_FOREACH (f, &keeper.files, link)
        if (f->dev == m->dev && f->ino == m->ino && f->names->key_len == m->key_len && memcmp(f->names->key, m->key, m->key_len) == 0)
            return f;
    return NULL;
}

/* Is this a whole message? Makes its strings end. */
static bool valid(struct nf_ho_tenure *m, ssize_t n)
{
    if (n < (ssize_t)NF_HO_TENURE_SIZE(0) || m->magic != NF_HO_MAGIC || m->key_len >= sizeof m->key ||
        n != (ssize_t)NF_HO_TENURE_SIZE(m->key_len))
        return false;
    m->fence[sizeof m->fence - 1] = 0;
    m->token[sizeof m->token - 1] = 0;
    return m->identity_len >= 0 && (size_t)m->identity_len <= strlen(m->token);
}

/* The name is taken: another keeper of this file was faster. It may as well have this tenure. */
static bool forward(const struct kfile *f, const struct nf_ho_tenure *m)
{
    char reply;
    return f->listen < 0 && m->hold_fd < 0 && nf_ho_ask(m, &keeper.redis, 1000, &reply) == 0 && reply == NF_HO_MINE;
}

bool kfile_give_away(struct kfile *f)
{
    static struct nf_ho_tenure m;
    struct kept *k;
    struct kept *next;
    for (k = TAILQ_FIRST(&f->tenures); k; k = next) {
        next = TAILQ_NEXT(k, link);
        m = (struct nf_ho_tenure){.magic = NF_HO_MAGIC,
                                  .type = NF_HO_GIVE,
                                  .dev = f->dev,
                                  .ino = f->ino,
                                  .renewed_ms = k->renewed_ms,
                                  .deadline_ms = k->deadline_ms,
                                  .hold_fd = k->hold,
                                  .identity_len = k->identity_len,
                                  .key_len = (uint32_t)f->names->key_len,
                                  .ofd = f->ofd,
                                  .mode = k->mode};
        memcpy(m.fence, k->fence, sizeof m.fence);
        memcpy(m.token, k->token, sizeof m.token);
        memcpy(m.key, f->names->key, f->names->key_len);
        if (!kfile_has_ended(f, k) && !k->lost && forward(f, &m))
            kept_drop(f, k);
    }
    return kfile_idle(f);
}

int64_t kfile_be_found(struct kfile *f)
{
    if (f->listen >= 0 || kfile_idle(f) || TAILQ_EMPTY(&f->tenures))
        return INT64_MAX;
    if (nf_now_ms() < f->listen_at_ms)
        return f->listen_at_ms;
    kfile_listen(f);
    if (f->listen >= 0)
        return INT64_MAX;
    if (kfile_give_away(f))
        return nf_now_ms(); /* perhaps nothing is left to do */
    /* Somebody has it for longer: another user, or a keeper that cannot take a stand-in over. */
    f->listen_pause_ms = f->listen_pause_ms == 0 ? 10 : f->listen_pause_ms < 5000 ? 2 * f->listen_pause_ms : 5000;
    f->listen_at_ms = nf_now_ms() + f->listen_pause_ms;
    return f->listen_at_ms;
}

static void kfile_forget(struct kfile *f)
{
    TAILQ_REMOVE(&keeper.files, f, link);
    int fresh = kfile_fresh(f);
    if (fresh >= 0)
        (void)nf_sys.close(fresh);
    nf_mutex_destroy(&f->mu);
    nf_free(f->names);
    free(f);
}

static bool take_on(struct kfile *f, const struct nf_ho_tenure *m)
{
    if (nf_range_owner(m->mode)) {
        guard_outdated();
        return krec_add(f, m);
    }
    struct kept *k = calloc(1, sizeof *k);
    if (!k)
        return false;
    k->mode = m->mode == 's' ? 's' : 'x';
    k->identity_len = m->identity_len;
    k->renewed_ms = m->renewed_ms;
    k->deadline_ms = m->deadline_ms;
    k->hold = m->hold_fd;
    k->holder = (struct holder){.ours = m->held_fd, .pid = m->parent, .fd = m->parent_fd};
    (void)strlcpy(k->fence, m->fence, sizeof k->fence);
    (void)strlcpy(k->token, m->token, sizeof k->token);
    kfile_add(f, k);
    guard_outdated();
    return true;
}

int serve_start(int ctl)
{
    static struct nf_ho_hello hello;
    static struct nf_ho_tenure m;
    char reply = NF_HO_MINE;
    if (nf_sys.recv(ctl, &hello, sizeof hello, 0) != sizeof hello || hello.magic != NF_HO_MAGIC || hello.type != NF_HO_HELLO)
        return -EPROTO;
    keeper.redis = hello.redis;
    keeper.redis.check = NF_CHECK_OFF; /* the host has looked already */
    keeper.policy = hello.policy;
    if (hello.log.where == 's')
        hello.log.where = 'y'; /* the host's stderr is not ours */
    nf_log_configure(&hello.log);
    explicit_bzero(&hello.redis, sizeof hello.redis);
    for (uint32_t i = 0; i < hello.n; i++) {
        ssize_t n = nf_sys.recv(ctl, &m, sizeof m, 0);
        if (!valid(&m, n))
            return -EPROTO;
        struct kfile *f = find(&m);
        bool is_new = !f;
        if (m.mode == 'p')
            nf_pid_space(m.pids); /* to forward it; the host started us, so it is the same */
        if (is_new)
            f = kfile_new(&m);
        if (f && is_new && forward(f, &m)) {
            kfile_forget(f);
            continue;
        }
        if (!f || !take_on(f, &m))
            return -ENOMEM;
        if (is_new)
            kfile_watch_start(f);
    }
    (void)nf_sys.send(ctl, &reply, 1, MSG_NOSIGNAL); /* a host that died meanwhile left us its tenures */
    return 0;
}

/* Containers may share a file and a network: a process of another PID namespace goes by a number that is not for us. */
static bool same_pids(const struct nf_ho_tenure *m)
{
    char ours[NF_PID_SPACE_MAX];
    nf_pid_space(ours);
    return *ours && strncmp(ours, m->pids, sizeof ours) == 0;
}

static char respond(struct kfile *listener, struct nf_ho_tenure *m, ssize_t n)
{
    if (!valid(m, n) || find(m) != listener)
        return NF_HO_NO;
    m->hold_fd = m->held_fd = m->fresh_fd = -1; /* those numbers are a new keeper's */
    if (m->type == NF_HO_GIVE && m->mode == 'p' && !same_pids(m))
        return NF_HO_NO;
    if (m->type == NF_HO_GIVE)
        return take_on(listener, m) ? NF_HO_MINE : NF_HO_NO;
    if (m->type == NF_HO_ENDED)
        return kfile_ended(listener, m->token) || krec_ended(listener, m->token) ? NF_HO_IDLE : NF_HO_NO;
    if (m->type != NF_HO_SYNC)
        return NF_HO_NO;
    (void)krec_tend(listener);
    if (!kfile_look(listener) && kfile_has_live(listener))
        return NF_HO_HELD;
    tend_ended(listener);
    return NF_HO_IDLE;
}

void serve_listener(struct kfile *f)
{
    static struct nf_ho_tenure m;
    int fd = accept4(f->listen, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    /* The shim sends right after connecting; one that does not must not hold up the renewals. */
    if (nf_ho_peer_trusted(fd) && nf_sys.poll(&p, 1, 200) == 1) {
        ssize_t n = nf_sys.recv(fd, &m, sizeof m, MSG_DONTWAIT);
        char reply = respond(f, &m, n);
        (void)nf_sys.send(fd, &reply, 1, MSG_NOSIGNAL);
    }
    (void)nf_sys.close(fd);
}
