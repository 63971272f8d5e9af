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
#define PEOPLE_COUNT "5000"
#define TOKEN_LAST "319"

/* What is asked about one file, in this order (see source.c). */
enum question {
    Q_SET,
    Q_STRING,
    Q_PTTL,
    Q_FENCE,
    Q_QUEUE,
    Q_ALIVE,
    Q_OWNERS,
    Q_RANGES,
    Q_LEASES,
    Q_RQUEUE,
    Q_RALIVE,
    QUESTIONS,
};

struct answers {
    const redisReply *to[QUESTIONS]; /* NULL: not asked for */
};

/* Fills in the lock's holders and waiters. now_us is the server's time when it answered. */
void people_fill(struct lock *l, const struct answers *a, int64_t now_us);

/* The same for record locks. */
void records_fill(struct lock *l, const struct answers *a, int64_t now_us);

/* What both use. */

bool answer_is_error(const redisReply *r);

/* Pairs of strings out of an array that has one after the other (members and scores, fields and values), for look-up. */
struct pairs {
    struct pair {
        const redisReply *key, *value;
    } * v;
    size_t n;
};

struct pairs pairs_read(const redisReply *array); /* NULL, or no array: none */
const redisReply *pairs_find(const struct pairs *p, const char *key, size_t len);

/* A score as a whole number; what no clock can mean becomes `otherwise`. */
int64_t whole_score(const redisReply *score, int64_t otherwise);

/* Takes a token (of which 320 bytes are kept) apart; w has no times yet then. */
void who_set_token(struct who *w, const char *s, size_t len, char mode);
void who_set_since(struct who *w, int64_t since_ms, int64_t now_us);

/*
 * The waiters of a queue, to be freed, *n of them; `alive` may be an error. take_member() takes the token, the mode and what
 * else there is out of a member.
 */
struct who *people_waiting(const redisReply *queue, const redisReply *alive, int64_t now_us,
                           void (*take_member)(struct who *w, const char *s, size_t len), size_t *n, bool *truncated);

#endif
