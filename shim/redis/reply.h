/*
 * Reading replies: nothing in them is trusted, types and lengths come first.
 */
#ifndef NF_REDIS_REPLY_H
#define NF_REDIS_REPLY_H

#include "redis/ops.h"

/* Said where a server wants a password that was not given. */
#define NF_NOAUTH "NOAUTH a password is needed (NETFLOCK_URL or NETFLOCK_PASSWORD_FILE)"

/* What an error reply means: "not now", or "not at all". */
enum nf_outcome nf_reply_outcome(const char *error);

/* Notes an error in an answer. */
void nf_reply_error(struct nf_answer *a, enum nf_outcome outcome, const char *text);

/* The i-th element of an array reply, if it has this type (REDIS_REPLY_...); else NULL. */
const redisReply *nf_reply_element(const redisReply *r, size_t i, int type);

/* Copies a string of a reply, cut at size. */
void nf_reply_copy(char *dst, size_t size, const redisReply *s);

/* Is this negative errno that of a connection that was never made? Then nothing can have been sent through it. */
bool nf_reply_unsent(int err);

#endif
