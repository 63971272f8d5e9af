/*
 * Is the server fit to keep locks? NETFLOCK_CHECK.
 *
 * A server that evicts keys may evict a lock, and one before 6.0 has not all that the scripts need. Both are in what INFO says.
 * With "warn" that is looked at once a process, with "strict" on each new connection: there a lock that is asked for through
 * it fails, while what is held goes on being renewed. What the server does not tell counts as fit.
 */
#ifndef NF_REDIS_CHECK_H
#define NF_REDIS_CHECK_H

#include "redis/conn.h"

#include <stdbool.h>

/* Is a new connection to be looked at? */
bool nf_check_due(const struct nf_redis_opts *opts);

/*
 * Judges by the answers to INFO server and INFO memory; in words what is wrong, if locks are to be refused for it, else NULL (and
 * a line in the log, once a process).
 */
const char *nf_check(const struct nf_redis_opts *opts, const redisReply *server, const redisReply *memory);

#endif
