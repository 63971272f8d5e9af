/*
 * From Redis' answers to holders and waiters.
 */
#ifndef NF_CLI_PEOPLE_H
#define NF_CLI_PEOPLE_H

#include "cli/view.h"

#include <hiredis/hiredis.h>

/* How many members of a set are read, and how much of a string: last indices, as Redis wants them. */
#define PEOPLE_LAST "4999"
#define PEOPLE_MAX 5000
#define TOKEN_LAST "319"

struct answers {
    const redisReply *set, *string, *pttl, *fence; /* of the key, and of its fence */
    const redisReply *queue, *alive;               /* NULL: not asked for, there is none */
};

/* Fills in the lock's holders and waiters. now_us is the server's time when it answered. */
void people_fill(struct lock *l, const struct answers *a, int64_t now_us);

#endif
