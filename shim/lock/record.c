/*
 * See record.h, and docs/design.md for the states.
 *
 * Kernel first, then Redis, under the file's mutex; what Redis refuses is put back in the kernel as it was, which only ever
 * weakens locks there and therefore cannot fail. While we wait for another host we hold nothing: neither the kernel's lock,
 * which would make local processes believe in a holder that is none, nor the mutex.
 */
#include "lock/record.h"

#include "base/alloc.h"
#include "base/process.h"
#include "base/real.h"
#include "base/sigs.h"
#include "base/sys.h"
#include "lease/lease.h"
#include "lock/leave.h"
#include "lock/match.h"
#include "lock/record_ask.h"
#include "lock/record_kernel.h"
#include "lock/shadow.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(off_t) == 8, "offsets of 64 bits");

#define OFFSET_MAX INT64_MAX

/*
 * The range of *fl on fd as [start, end), by the kernel's rules (fs/locks.c, flock64_to_posix_lock). False where the
 * kernel would say EINVAL or EOVERFLOW.
 */
static bool resolve(int fd, const struct flock *fl, uint64_t *start, uint64_t *end)
{
    struct stat st;
    int64_t at = 0;
    int64_t first;
    int64_t last;
    if (fl->l_whence == SEEK_CUR)
        at = lseek(fd, 0, SEEK_CUR);
    else if (fl->l_whence == SEEK_END)
        at = nf_sys.fstat(fd, &st) == 0 ? st.st_size : 0;
    else if (fl->l_whence != SEEK_SET)
        return false;
    at = at < 0 ? 0 : at; /* no such thing as a position */
    if (fl->l_start > OFFSET_MAX - at)
        return false;
    first = at + fl->l_start;
    if (first < 0)
        return false;
    if (fl->l_len > 0) {
        if (fl->l_len - 1 > OFFSET_MAX - first)
            return false;
        last = first + (fl->l_len - 1);
    } else if (fl->l_len < 0) {
        if (first + fl->l_len < 0)
            return false;
        last = first - 1;
        first += fl->l_len;
    } else {
        last = OFFSET_MAX;
    }
    *start = (uint64_t)first;
    *end = (uint64_t)last + 1;
    return true;
}

static int real_fcntl(int fd, int cmd, struct flock *fl)
{
    return nf_real()->fcntl(fd, cmd, fl) == 0 ? 0 : -errno;
}

static void tell(struct flock *fl, const struct nf_range_answer *a)
{
    struct nf_token_info info;
    fl->l_type = a->a.holder_mode == 's' ? F_RDLCK : F_WRLCK;
    fl->l_whence = SEEK_SET;
    fl->l_start = (off_t)a->start;
    fl->l_len = a->end == NF_RANGE_END ? 0 : (off_t)(a->end - a->start);
    /* As Linux says of a process that it cannot name: negative for another host's (lockd), -1 for a description. */
    fl->l_pid = -1;
    if (nf_token_parse(a->a.holder, &info) == 0 && info.pid > 0 && a->a.holder[info.identity_len] == 'p')
        fl->l_pid = (pid_t)-info.pid;
}

/* F_GETLK: of this host the kernel tells, of the others Redis. */
static int get(struct nf_record_call *k, int cmd, struct flock *fl)
{
    struct nf_quiet quiet;
    struct flock copy = *fl;
    k->alone = nf_shadow_wanted(k->c);
    nf_record_absolute(&copy, k->start, k->end);
    int r = k->alone ? 0 : real_fcntl(k->fd, cmd, &copy);
    if (r < 0 && !nf_record_alone(k, r))
        return r;
    if (k->alone)
        copy.l_type = F_UNLCK;
    if (copy.l_type != F_UNLCK) {
        *fl = copy;
        return 0;
    }
    if (k->c->broken)
        return -ENOLCK;
    struct nf_range_answer *a = NULL; /* large */
    nf_quiet(&quiet);
    r = nf_record_file_open(k) ? nf_record_test(k, &a) : -ENOLCK;
    nf_record_file_close(k);
    if (r == -EAGAIN) {
        tell(fl, a);
        r = 0;
    } else if (r == 0) {
        fl->l_type = F_UNLCK;
    }
    nf_free(a);
    nf_loud(&quiet);
    return r;
}

int nf_record_fcntl(int fd, int cmd, struct flock *fl)
{
    struct nf_record_call k = {.fd = fd, .kind = cmd >= F_OFD_GETLK ? 'o' : 'p'};
    bool getting = cmd == F_GETLK || cmd == F_OFD_GETLK;
    bool unlocking = !getting && fl && fl->l_type == F_UNLCK;
    enum nf_match match = nf_match(fd, &k.f);
    if (match == NF_MATCH_NO || (match == NF_MATCH_DOUBT && unlocking) || !fl)
        return real_fcntl(fd, cmd, fl);
    if (match == NF_MATCH_DOUBT)
        return -ENOLCK;
    /* What the kernel will not hear of is for it to say. */
    if ((fl->l_type != F_RDLCK && fl->l_type != F_WRLCK && !unlocking) || (k.kind == 'o' && fl->l_pid != 0) ||
        !resolve(fd, fl, &k.start, &k.end))
        return real_fcntl(fd, cmd, fl);
    k.c = nf_config();
    k.mode = fl->l_type == F_RDLCK ? 's' : fl->l_type == F_WRLCK ? 'x' : 'u';
    k.wait = cmd == F_SETLKW || cmd == F_OFD_SETLKW;
    switch (nf_process_where()) {
    case NF_VFORK_CHILD:
        /* It shares its parent's memory: our state is not its own to change. */
        return unlocking || getting ? real_fcntl(fd, cmd, fl) : -ENOLCK;
    case NF_FORKED:
        nf_fork_noticed();
        break;
    case NF_HOME:
        break;
    }
    if (getting)
        return get(&k, cmd, fl);
    return unlocking ? nf_record_unlock(&k) : nf_record_lock(&k);
}

int nf_record_lockf(int fd, int cmd, off_t len)
{
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_CUR, .l_len = len};
    int r;
    switch (cmd) {
    case F_TEST:
        fl.l_type = F_RDLCK; /* as the C library asks */
        r = nf_record_fcntl(fd, F_GETLK, &fl);
        return r < 0 ? r : fl.l_type == F_UNLCK || fl.l_pid == nf_sys.getpid() ? 0 : -EACCES;
    case F_ULOCK:
        fl.l_type = F_UNLCK;
        return nf_record_fcntl(fd, F_SETLK, &fl);
    case F_LOCK:
        return nf_record_fcntl(fd, F_SETLKW, &fl);
    case F_TLOCK:
        return nf_record_fcntl(fd, F_SETLK, &fl);
    default:
        return -EINVAL;
    }
}
