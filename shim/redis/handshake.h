/*
 * What is said first on a new connection.
 */
#ifndef NF_REDIS_HANDSHAKE_H
#define NF_REDIS_HANDSHAKE_H

#include "redis/conn.h"

/* AUTH, SELECT, and INFO for the server's run id, as far as wanted. 0, or -errno with one clause in why if that says more. */
int nf_handshake(struct nf_conn *c, const struct nf_redis_opts *opts, int64_t deadline_ms, char *why, size_t why_size);

#endif
