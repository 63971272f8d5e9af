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
    const struct nf_ranges *had;     /* what the owner had in the kernel before this try */
    struct nf_ranges asked;          /* the same, where the kernel had to be asked */
    const sigset_t *mask;
    unsigned forks; /* nf_fork_count() from before the kernel was asked */
};

/* fl with an absolute range. */
void nf_record_absolute(struct flock *fl, uint64_t start, uint64_t end);

/* The kernel has no record locks for this file (err), or is not to be asked: does Redis alone decide? */
bool nf_record_alone(struct nf_record_call *k, int err);

/* k->file, referenced and locked; false when out of memory. Signals blocked from before open to after close. */
bool nf_record_file_open(struct nf_record_call *k);
void nf_record_file_close(struct nf_record_call *k);

/* -EAGAIN: another host keeps us from the range; *a (to be freed) tells. 0, -ENOLCK. With the file open. */
int nf_record_test(struct nf_record_call *k, struct nf_range_answer **a);

/* 0 or -errno. */
int nf_record_unlock(struct nf_record_call *k);
int nf_record_lock(struct nf_record_call *k);

#endif
