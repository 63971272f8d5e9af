/*
 * Connections, reused: see pool.h.
 */
#include "redis/pool.h"

#include "base/clock.h"
#include "base/mutex.h"
#include "base/sys.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>

/* A process whose threads all lock at once needs no more connections than this to keep Redis busy. */
#define IN_USE_MAX 16

/* Threads that wait come back for a connection all the time. So an idle one is kept for a while, and a few for good. */
#define IDLE_MS 5000
#define IDLE_MAX 4

static struct nf_mutex mu = NF_MUTEX_INITIALIZER;
static pthread_cond_t freed = PTHREAD_COND_INITIALIZER;
static struct nf_conn *open_list;
static struct nf_conn *idle_list;
static int n_exchanging; /* calls inside nf_pool_exchange; waiters that took a connection for themselves do not count */

/* Mutex held. */
static void unlink_open(struct nf_conn *c)
{
    struct nf_conn **p = &open_list;
    nf_mutex_owed(&mu);
    while (*p && *p != c)
        p = &(*p)->next_open;
    if (*p)
        *p = c->next_open;
}

void nf_pool_drop(struct nf_conn *c)
{
    nf_mutex_lock(&mu);
    unlink_open(c);
    nf_mutex_unlock(&mu);
    nf_conn_close(c);
}

/* Takes one off the idle list, NULL if that is empty. Mutex held. */
static struct nf_conn *pop_idle(void)
{
    struct nf_conn *c = idle_list;
    nf_mutex_owed(&mu);
    if (c)
        idle_list = c->next_idle;
    return c;
}

/* The idle list begins with what was used last. Its end is closed: what nobody has needed for IDLE_MS. */
void nf_pool_put(struct nf_conn *c)
{
    int64_t now = nf_now_ms();
    nf_mutex_lock(&mu);
    c->idle_since_ms = now;
    c->next_idle = idle_list;
    idle_list = c;
    struct nf_conn **end = &idle_list;
    for (int i = 0; *end && (i < IDLE_MAX || now - (*end)->idle_since_ms < IDLE_MS); i++)
        end = &(*end)->next_idle;
    struct nf_conn *surplus = *end;
    *end = NULL;
    for (c = surplus; c; c = c->next_idle)
        unlink_open(c);
    nf_mutex_unlock(&mu);
    while (surplus) {
        c = surplus;
        surplus = c->next_idle;
        nf_conn_close(c);
    }
}

/* An idle connection, or NULL. */
static struct nf_conn *take_idle(void)
{
    for (;;) {
        nf_mutex_lock(&mu);
        struct nf_conn *c = pop_idle();
        nf_mutex_unlock(&mu);
        if (!c || nf_conn_ours(c))
            return c;
        nf_pool_drop(c); /* the host has closed it */
    }
}

void nf_pool_post(const struct nf_redis_opts *opts, const struct nf_cmd *cmd)
{
    struct nf_conn *c = take_idle();
    if (!c)
        return;
    if (nf_conn_post(c, cmd, nf_now_ms() + opts->timeout_ms) == 0)
        nf_pool_put(c);
    else
        nf_pool_drop(c);
}

struct nf_conn *nf_pool_take(const struct nf_redis_opts *opts, int64_t deadline_ms, bool *reused, int *err, char *why, size_t why_size)
{
    struct nf_conn *c = take_idle();
    *reused = c != NULL;
    if (c)
        return c;
    c = nf_conn_open(opts, deadline_ms, err, why, why_size);
    if (!c)
        return NULL;
    nf_mutex_lock(&mu);
    c->next_open = open_list;
    open_list = c;
    nf_mutex_unlock(&mu);
    return c;
}

static int try_exchange(struct nf_conn *c, const struct nf_cmd *cmds, size_t n, redisReply **replies, int64_t deadline_ms)
{
    size_t got = 0;
    int r = nf_conn_send(c, cmds, n, deadline_ms);
    while (r == 0 && got < n) {
        r = nf_conn_reply(c, deadline_ms, &replies[got]);
        if (r == 0)
            got++;
    }
    while (r < 0 && got > 0)
        freeReplyObject(replies[--got]);
    return r;
}

/* Waits for a place among IN_USE_MAX; -ETIMEDOUT at the deadline. */
static int enter(int64_t deadline_ms)
{
    int r = 0;
    nf_mutex_lock(&mu);
    while (n_exchanging >= IN_USE_MAX && r == 0) {
        struct timespec until;
        int left = nf_left_ms(deadline_ms);
        if (left == 0) {
            r = -ETIMEDOUT;
            break;
        }
        clock_gettime(CLOCK_REALTIME, &until);
        int64_t ns = until.tv_nsec + (int64_t)(left < 100 ? left : 100) * 1000000;
        until.tv_sec += ns / 1000000000;
        until.tv_nsec = ns % 1000000000;
        (void)nf_mutex_wait(&mu, &freed, &until);
    }
    if (r == 0)
        n_exchanging++;
    nf_mutex_unlock(&mu);
    return r;
}

static void leave(void)
{
    nf_mutex_lock(&mu);
    n_exchanging--;
    pthread_cond_signal(&freed);
    nf_mutex_unlock(&mu);
}

int nf_pool_exchange(const struct nf_redis_opts *opts, const struct nf_cmd *cmds, size_t n, redisReply **replies, int64_t deadline_ms,
                     char *why, size_t why_size)
{
    bool reused = true;
    int r = enter(deadline_ms);
    if (r < 0) {
        (void)snprintf(why, why_size, "too many calls wait for an answer");
        return r;
    }
    for (r = -ECONNRESET; r < 0 && reused;) {
        struct nf_conn *c = nf_pool_take(opts, deadline_ms, &reused, &r, why, why_size);
        if (!c)
            break;
        r = try_exchange(c, cmds, n, replies, deadline_ms);
        if (r == 0) {
            nf_pool_put(c);
            break;
        }
        const char *unfit = r == -EPERM ? c->unfit : NULL;
        nf_pool_drop(c);
        if (unfit)
            r = -EACCES;
        (void)snprintf(why, why_size, "%s",
                       unfit             ? unfit
                       : r == -ETIMEDOUT ? "no answer within the time-out"
                       : r == -EPROTO    ? "the peer does not speak Redis' protocol"
                                         : "the connection was closed");
        if (r == -ETIMEDOUT || r == -EPROTO)
            break; /* alive, but not well: no second try on another connection */
    }
    leave();
    return r;
}

void nf_pool_trim(void)
{
    for (;;) {
        nf_mutex_lock(&mu);
        struct nf_conn *c = pop_idle();
        if (c)
            unlink_open(c);
        nf_mutex_unlock(&mu);
        if (!c)
            return;
        nf_conn_close(c);
    }
}

void nf_pool_fork_prepare(void)
{
    nf_mutex_lock(&mu);
}

void nf_pool_fork_parent(void)
{
    nf_mutex_unlock(&mu);
}

/* The structs of connections that were in use by other threads of the parent are left alone: their readers may have
   been copied in the middle of a change. */
void nf_pool_fork_child(void)
{
    for (struct nf_conn *c = open_list; c; c = c->next_open)
        if (nf_conn_ours(c))
            (void)nf_sys.close(c->fd);
    open_list = NULL;
    idle_list = NULL;
    n_exchanging = 0;
    nf_mutex_init(&mu);
    (void)pthread_cond_init(&freed, NULL);
}
