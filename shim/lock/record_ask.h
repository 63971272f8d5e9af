/*
 * One call for a byte range: the kernel, then Redis, then perhaps waiting.
 */
#ifndef NF_LOCK_RECORD_ASK_H
#define NF_LOCK_RECORD_ASK_H

#include "lease/record.h"
#include "lock/match.h"
#include "redis/ranges.h"

#include <fcntl.h>
#include <signal.h>

struct nf_record_call {
    const struct nf_config *c;
    struct nf_file f;
    int fd;
    char kind; /* the owner: 'p' or 'o' */
    char mode; /* 'x', 's', 'u' */
    bool wait;
    bool alone; /* Redis alone decides */
    uint64_t start, end;
    struct nf_record_file *file;
    uint64_t piece_start, piece_end; /* the part that the kernel refused */
    bool waited;                     /* the kernel has let us have that part meanwhile */
    bool queued;                     /* Redis may know that we wait */
    const struct nf_ranges *had;     /* what the owner had in the kernel before this try */
    struct nf_ranges asked;          /* the same, where the kernel had to be asked */
    const sigset_t *mask;
    unsigned forks; /* nf_fork_count() from before the kernel was asked */
};

/* k->file, referenced and locked; false when out of memory. Signals blocked from before open to after close. */
bool nf_record_file_open(struct nf_record_call *k);
void nf_record_file_close(struct nf_record_call *k);

/* -EAGAIN: another host keeps us from the range; *a (to be freed) tells. 0, -ENOLCK. With the file open. */
int nf_record_test(struct nf_record_call *k, struct nf_range_answer **a);

/* 0 or -errno. */
int nf_record_unlock(struct nf_record_call *k);
int nf_record_lock(struct nf_record_call *k);

/*
 * For record_wait.c, with the file open: the parts of a call.
 */

/* What a try can come to, besides 0 and a negative errno that is final. */
enum { NF_TRY_KERNEL_BUSY = 1, NF_TRY_REDIS_BUSY, NF_TRY_REDIS_DOWN, NF_TRY_GRACE, NF_TRY_AGAIN };

/* The owner's record, made if it is not there; NULL when out of memory. */
struct nf_record *nf_record_owner(struct nf_record_call *k);

/* One try: the kernel, then Redis; with a ticket the caller is queued when Redis is busy. */
int nf_record_try(struct nf_record_call *k, struct nf_record *r, const struct nf_ticket *ticket, struct nf_range_answer *a);

/* Whatever may have arrived in Redis is undone in the background. A waiter asks again: that supersedes it. */
void nf_record_undo(struct nf_record *r, const struct nf_ticket *ticket);

/* The request for k's range, under the owner's next seq; and asking it. */
struct nf_range_request nf_record_request(const struct nf_record_call *k, struct nf_record *r);
void nf_record_ask(const struct nf_record_call *k, const struct nf_range_request *q, struct nf_range_answer *a);

#endif
