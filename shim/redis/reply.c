/*
 * See reply.h.
 */
#include "redis/reply.h"

#include <bsd/string.h>
#include <errno.h>
#include <string.h>

/* Error replies that mean "not now". All others mean "not at all". */
enum nf_outcome nf_reply_outcome(const char *error)
{
    static const char *const passing[] = {"LOADING",    "BUSY",    "MASTERDOWN", "READONLY",    "OOM",
                                          "NOREPLICAS", "MISCONF", "TRYAGAIN",   "CLUSTERDOWN", "ERR max number of clients"};
    for (size_t i = 0; i < sizeof passing / sizeof passing[0]; i++)
        if (strncmp(error, passing[i], strlen(passing[i])) == 0)
            return NF_DOWN;
    /* Redis before 7 wraps an error that a script met. */
    if (strstr(error, "-OOM ") || strstr(error, "-READONLY ") || strstr(error, "-NOREPLICAS "))
        return NF_DOWN;
    return NF_REFUSED;
}

void nf_reply_error(struct nf_answer *a, enum nf_outcome outcome, const char *text)
{
    a->outcome = outcome;
    /* A server that wants a password refuses our longer commands before it gets to saying so plainly. */
    if (strstr(text, "unauthenticated") || strncmp(text, "NOAUTH", 6) == 0)
        text = NF_NOAUTH;
    (void)strlcpy(a->why, text, sizeof a->why);
}

/* The i-th element of an array reply, if it has this type. */
const redisReply *nf_reply_element(const redisReply *r, size_t i, int type)
{
    return r->type == REDIS_REPLY_ARRAY && i < (size_t)r->elements && r->element[i] && r->element[i]->type == type ? r->element[i] : NULL;
}

/* Copies a string of the reply, cut at size; control characters are for the log to escape. */
void nf_reply_copy(char *dst, size_t size, const redisReply *s)
{
    size_t len = (size_t)s->len < size - 1 ? (size_t)s->len : size - 1;
    memcpy(dst, s->str, len);
    dst[len] = 0;
}

/* Errors of a connection that was never made: nothing can have been sent through it. */
bool nf_reply_unsent(int err)
{
    switch (err) {
    case -ECONNREFUSED:
    case -ENOENT:
    case -EACCES:
    case -ENXIO:
    case -EMFILE:
    case -ENFILE:
    case -EHOSTUNREACH:
    case -ENETUNREACH:
        return true;
    default:
        return false;
    }
}
