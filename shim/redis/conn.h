/*
 * One connection to Redis: our own socket, hiredis for the protocol.
 *
 * The socket is close-on-exec, at a high number, written and read with send() and recv() alone: should the host have
 * closed it and opened a data file under its number, the call fails with ENOTSOCK and no file is touched. Before
 * each use the socket's inode is compared with the one it was made with.
 *
 * Callers have all signals blocked; nf_conn_wait_reply() alone lets them in, while it sleeps.
 */
#ifndef NF_REDIS_CONN_H
#define NF_REDIS_CONN_H

#include "base/url.h"

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define NF_REDIS_ARGS_MAX 20
#define NF_REPLY_BYTES_MAX (1024 * 1024)

struct nf_conn {
    int fd;
    ino_t sock_ino;
    redisReader *reader;
    size_t reply_bytes;        /* read since the last command was sent */
    size_t reply_max;          /* more than this is a hostile reply */
    char run[17];              /* the beginning of the server's run id; "" unknown, or not wanted */
    int owed;                  /* replies to nf_conn_post(), which are skipped */
    const char *unfit;         /* the server should not keep locks: why; see check.h */
    int timeout_ms;            /* what SO_RCVTIMEO and SO_SNDTIMEO are set to; 0 for none */
    struct nf_conn *next_open; /* every open connection, guarded by pool.c's mutex */
    struct nf_conn *next_idle; /* the idle ones, likewise */
    int64_t idle_since_ms;     /* when it was put there */
};

/* One command: argv with lengths, since paths and tokens may hold any byte but NUL. */
struct nf_cmd {
    int argc;
    bool taking; /* asks for a lock: not to be sent to a server that is unfit (NETFLOCK_CHECK=strict) */
    const char *argv[NF_REDIS_ARGS_MAX];
    size_t len[NF_REDIS_ARGS_MAX];
};

/* As an argument (compared by address): the run id of the server that the command goes to. */
extern const char nf_arg_run[];

void nf_cmd_add(struct nf_cmd *cmd, const char *s, size_t len);
void nf_cmd_str(struct nf_cmd *cmd, const char *s);

/*
 * Connects, and says what is to be said first (handshake.h), before deadline_ms (CLOCK_BOOTTIME). Returns NULL with *err a negative errno
 * and `why` one clear clause without any password: -ECONNREFUSED, -ETIMEDOUT, -EACCES (AUTH refused), ...
 */
struct nf_conn *nf_conn_open(const struct nf_redis_opts *opts, int64_t deadline_ms, int *err, char *why, size_t why_size);

/* Closes the socket, if it is still ours, and frees all. */
void nf_conn_close(struct nf_conn *c);

/* True while the descriptor is still the socket that was made. */
bool nf_conn_ours(const struct nf_conn *c);

/* Sends n commands in one go. 0 or -errno (-EPERM: the server is unfit for one of them, see unfit); after an error the connection must be
 * closed. */
int nf_conn_send(struct nf_conn *c, const struct nf_cmd *cmds, size_t n, int64_t deadline_ms);

/* Sends a command whose reply will be skipped. 0 or -errno; after an error the connection must be closed. */
int nf_conn_post(struct nf_conn *c, const struct nf_cmd *cmd, int64_t deadline_ms);

/* The next reply; to be freed with freeReplyObject(). 0 or -errno (-EPROTO for what is not Redis' protocol). */
int nf_conn_reply(struct nf_conn *c, int64_t deadline_ms, redisReply **out);

/*
 * The next reply, however long it takes: one plain recv() without time-out, so that the kernel applies SA_RESTART as
 * it does for flock(2), with the host's signal mask. -EINTR when a handler without SA_RESTART ran, or is to run.
 */
int nf_conn_wait_reply(struct nf_conn *c, const sigset_t *mask, redisReply **out);

#endif
