/*
 * Record locks between hosts: fcntl's F_SETLK, F_SETLKW, F_GETLK, their F_OFD_ kin, and lockf(3).
 */
#ifndef NF_LOCK_RECORD_H
#define NF_LOCK_RECORD_H

#include "base/sigs.h"
#include "lease/record.h"

#include <fcntl.h>
#include <stdbool.h>
#include <sys/types.h>

/* Is cmd one of the six that lock? */
static inline bool nf_record_cmd(int cmd)
{
    return cmd == F_SETLK || cmd == F_SETLKW || cmd == F_GETLK || (cmd >= F_OFD_GETLK && cmd <= F_OFD_SETLKW);
}

/*
 * As fcntl(fd, cmd, fl) with one of them, with a negative errno instead of -1 and errno. Beyond the kernel's errors:
 * -EAGAIN when another host holds (part of) the range, -EDEADLK when waiting would close a circle through other hosts,
 * -ENOLCK when nobody can tell, or Redis is away and the policy says so, -EINTR when a handler without SA_RESTART ran while
 * we waited for another host.
 */
int nf_record_fcntl(int fd, int cmd, struct flock *fl);

/* As lockf(fd, cmd, len). */
int nf_record_lockf(int fd, int cmd, off_t len);

/* fd's description has been passed to another process: a keeper is to see its end. Signals blocked. */
void nf_record_share(int fd);

/* Around a close of the descriptors first...last: see record_close.c. */
struct nf_record_closing {
    unsigned first, last;
    struct nf_record_file *files; /* whose mutex we hold */
    struct nf_quiet quiet;
};

/* Notes which records the close may end, and holds their files until the end. Keeps errno. */
void nf_record_close_begin(unsigned first, unsigned last, struct nf_record_closing *c);
/* It is done (`closed`), or failed. Keeps errno. */
void nf_record_close_end(struct nf_record_closing *c, bool closed);

#endif
