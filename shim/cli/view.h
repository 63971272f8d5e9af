/*
 * What Redis knows about locks, as `netflock status` shows it.
 */
#ifndef NF_CLI_VIEW_H
#define NF_CLI_VIEW_H

#include "base/identity.h"
#include "base/url.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Times that are not known, and leases that never end. */
#define MS_UNKNOWN (-1)
#define MS_FOREVER (-2)

/* A holder, or a waiter. */
struct who {
    char *token;
    size_t token_len;
    char mode;           /* 'x' or 's' */
    bool ours;           /* the token is netflock's, and `info` holds its parts; else some other client's value */
    bool dead;           /* a waiter that has not been heard of in time, and will be passed over */
    bool ranged;         /* of bytes [start, end) of the file */
    bool unconfirmed;    /* a waiter that was given its bytes, and has not yet said that it knows */
    char owner;          /* ranged: 'p' a process, 'o' an open file description, 0 not known */
    uint64_t start, end; /* ranged; an end of NF_RANGE_END or more means all that follows */
    struct nf_token_info info;
    int64_t age_ms;   /* holds, or waits, since; MS_UNKNOWN */
    int64_t since_ms; /* the same as a date, ms since 1970; MS_UNKNOWN */
    int64_t left_ms;  /* a holder's lease, or how long a waiter's place is kept; MS_UNKNOWN, MS_FOREVER */
    uint64_t fence;   /* 0: not known */
};

/* What there may be about a file. */
enum {
    ASK_LOCK = 1,
    ASK_QUEUE = 2,
    ASK_RANGES = 4,
    ASK_RQUEUE = 8,
    ASK_ALL = 15,
};

struct lock {
    char *key;
    size_t key_len;
    unsigned ask;        /* ASK_..., together */
    bool truncated;      /* there are more than are listed here */
    const char *problem; /* why this cannot be shown as a lock, or NULL */
    struct who *holders, *waiters;
    size_t n_holders, n_waiters;
    struct who *owners, *range_waiters; /* the same for record locks: one for each range of each owner, by range */
    size_t n_owners, n_range_waiters;
};

/* Sorted by key, each key once. */
struct view {
    struct lock *locks;
    size_t n, room;
};

/* Adds a key to be looked at; sort with view_sort() when all have been added. */
void view_add(struct view *v, const char *key, size_t len, unsigned ask);
void view_sort(struct view *v);
void view_free(struct view *v);
void view_free_lock(struct lock *l);

struct source;

/* Connects. NULL with one clause in why (no password in it). */
struct source *source_open(const struct nf_redis_opts *opts, char *why, size_t why_size);
void source_close(struct source *s);

/* Adds every key that is a lock, or has record locks or waiters. 0, or -errno with one clause in why. */
int source_scan(struct source *s, struct view *v, char *why, size_t why_size);

/* Fills in holders and waiters. What has neither is dropped from the view. 0, or -errno with one clause in why. */
int source_fill(struct source *s, struct view *v, char *why, size_t why_size);

void show_table(const struct view *v);
void show_json(const struct view *v);

/*
 * The key of the file at path, to be freed; NULL after a complaint that begins with `verb`. The file need not exist; its folder
 * must.
 */
char *path_to_key(const struct nf_config *c, const char *verb, const char *path);

/* The kernel's name of the file at path, or what it would be, into name (PATH_MAX bytes). 0, or -errno. */
int path_name(const char *path, char *name);

#endif
