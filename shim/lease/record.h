/*
 * The owners of byte ranges in this process, and what each holds.
 *
 * A record is one owner's ranges in one file: the process as a whole ('p', fcntl's F_SETLK and lockf) or one open file
 * description ('o', F_OFD_SETLK). Its lease is an nf_tenure, in the table while the owner holds anything, and renewed with
 * the others; the tenure's own fd stays -1.
 *
 * The mutex of an nf_record_file serialises what this process does with the file's record locks, in the kernel and in
 * Redis, so that both see one order. It guards the file's records with all their fields; `t` points to a tenure, whose own
 * fields are the table's. It is held over an exchange with Redis or a keeper, and never over a wait for a lock: who waits
 * keeps the record by `refs` and the tenure by a reference, for another thread may give the record a new one. It is taken
 * with all signals blocked. Order: a file's mutex, then the table's, then the pool's. A close of many descriptors takes several
 * files' in the order of their list. The list of files has a mutex of its own, inside which no other is taken.
 *
 * In a forked child all records are gone: a process's locks are not inherited, and a description's are a keeper's work.
 */
#ifndef NF_LEASE_RECORD_H
#define NF_LEASE_RECORD_H

#include "base/mutex.h"
#include "base/ranges.h"
#include "lease/tenure.h"

#include <bsd/sys/queue.h>
#include <stdatomic.h>

struct nf_record {
    TAILQ_ENTRY(nf_record) link;
    struct nf_record_file *file;
    char kind; /* 'p' or 'o' */
    int fd;    /* one descriptor of the file ('o': of the description); -1 none known, and it may have been closed */
    int refs;  /* waiting threads that will come back to it */
    char base[40];
    struct nf_ranges held;
    uint64_t seq;        /* of the last request */
    int next_fd;         /* during a close */
    bool shared;         /* likewise: another process may have the description */
    bool alone;          /* the kernel has no such locks for this file: Redis alone decides */
    bool heir;           /* 'p': the kernel has locks of the program that this process was before its exec */
    bool dirty;          /* Redis may have more for us than `held` says */
    struct nf_tenure *t; /* the record has a reference */
};

struct nf_record_file {
    LIST_ENTRY(nf_record_file) link;
    dev_t dev;
    ino_t ino;
    int refs; /* guarded by the list's mutex */
    struct nf_mutex mu;
    struct nf_record_file *closing;  /* the next of those that a close is about; guarded by mu */
    TAILQ_HEAD(, nf_record) records; /* guarded by mu */
};

LIST_HEAD(nf_record_file_list, nf_record_file);

/* How many records there are: while there are any, every close needs a closer look. */
extern atomic_int nf_record_count;

/* The file, referenced, made if it is not there; NULL when out of memory. */
struct nf_record_file *nf_record_file_get(dev_t dev, ino_t ino);
/* Only if it is there. */
struct nf_record_file *nf_record_file_find(dev_t dev, ino_t ino);
/* The first file, or the one after `after` (whose reference is given back); always in the same order. */
struct nf_record_file *nf_record_file_next(struct nf_record_file *after);
void nf_record_file_put(struct nf_record_file *f);

/* With the file's mutex held, from here on. */

/* The owner of a lock through fd; NULL if it has none. */
struct nf_record *nf_record_find(struct nf_record_file *f, char kind, int fd);

/* A new owner, without a lease yet; NULL when out of memory or without a boot id. `key` is copied. */
struct nf_record *nf_record_new(struct nf_record_file *f, char kind, int fd, const char *key, size_t key_len);

/* The owner holds nothing under its token any more, or nobody knows: from now on it goes by a new one. -ENOMEM, -errno. */
int nf_record_new_token(struct nf_record *r);

/* Gives up what Redis may have for the owner: now, or in the background (`later`: only there). `held` is empty then. */
void nf_record_drop(struct nf_record *r, bool later);

/* A keeper has it, and will find out when it ends: this process has nothing to do with it any more. */
void nf_record_leave(struct nf_record *r);

/* Frees the owner if it holds nothing and nobody waits for it. */
void nf_record_tidy(struct nf_record *r);

/* A granted request: enters the lease into the table, or extends it. -errno when there can be no thread to renew it. */
int nf_record_leased(struct nf_record *r, int64_t sent_ms, const char *fence);

/* Has the lease been lost meanwhile? Then what was held is forgotten. */
bool nf_record_check_lost(struct nf_record *r);

/* Sends what is held, if Redis may have more. */
void nf_record_sync(struct nf_record *r);

/* A ticket for one wait of this owner: its token, and that token's NONCE. */
struct nf_ticket {
    char token[NF_TOKEN_MAX];
    char nonce[80];
};
int nf_record_ticket(const struct nf_record *r, struct nf_ticket *out);

/* Redis has forgotten the owner's lease: says so, applies the policy; what was held is forgotten here too. */
void nf_record_forgotten(struct nf_record *r);

/* What the kernel does not have any more is not held. fd: any descriptor of the file; a description's own. */
void nf_record_trim(struct nf_record *r, int fd);

/* Asks the kernel whether the locks behind r are gone. In doubt, no. */
bool nf_record_gone(struct nf_record *r);

/* Is this record's description the one behind fd? */
bool nf_record_same_description(const struct nf_record *r, int fd);

/* Another descriptor of r's description outside first...last; -ENOENT, -errno. */
int nf_record_other_fd(const struct nf_record *r, unsigned first, unsigned last);

/* Without any of these locks: */

/* end.c asks: is anything left of what stands behind t? Takes a look at the kernel; ends t and returns true if not. */
bool nf_record_verify(const struct nf_tenure *t);

/* Redis has forgotten what stands behind t, and lets old holders have it first: takes it back. False: it is lost. */
bool nf_record_reclaim(const struct nf_tenure *t);

/* Releases all that this process owns: the end of the process, without a keeper. */
void nf_record_release_all(int64_t until_ms);

void nf_record_fork_child(void);

#endif
