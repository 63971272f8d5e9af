/*
 * The process's connections to Redis: a few idle ones are kept, the number in use is bounded.
 *
 * The pool's mutex guards its lists and is never held over I/O. No other is taken under it. It nests inside a file's of
 * record locks, and inside the table's around fork() alone.
 * A forked child drops all it inherited (nf_pool_fork_child).
 */
#ifndef NF_REDIS_POOL_H
#define NF_REDIS_POOL_H

#include "redis/conn.h"

/*
 * Sends n commands over a pooled connection, pipelined, and reads their n replies into replies[] (all of them set, to
 * be freed by the caller, or none). A connection that turns out to be dead is replaced once: every command must be
 * safe to repeat. Returns 0, or -errno with one clause in why. All signals blocked, cancellation disabled.
 */
int nf_pool_exchange(const struct nf_redis_opts *opts, const struct nf_cmd *cmds, size_t n, redisReply **replies, int64_t deadline_ms,
                     char *why, size_t why_size);

/* Sends a command over an idle connection, if there is one, and leaves; its reply is skipped later. */
void nf_pool_post(const struct nf_redis_opts *opts, const struct nf_cmd *cmd);

/* A connection for one's own use (a blocking wait); given back with nf_pool_put or nf_pool_drop. */
struct nf_conn *nf_pool_take(const struct nf_redis_opts *opts, int64_t deadline_ms, bool *reused, int *err, char *why, size_t why_size);
void nf_pool_put(struct nf_conn *c);
void nf_pool_drop(struct nf_conn *c);

/* Closes the idle connections. */
void nf_pool_trim(void);

/* Around fork(): the mutex is taken before, released in the parent; the child closes its copies of every socket. */
void nf_pool_fork_prepare(void);
void nf_pool_fork_parent(void);
void nf_pool_fork_child(void);

#endif
