/*
 * The public calls of include/netflock.h.
 */
#include "netflock.h"

#include "base/clock.h"
#include "base/sigs.h"
#include "base/sys.h"
#include "export/export.h"
#include "lease/lease.h"

#include <errno.h>
#include <stdlib.h>

NF_EXPORT const char *netflock_version(void)
{
    return NF_VERSION;
}

/* Looks fd's tenure up; reads its fence and what is left of its lease. 0 or -errno. */
static int look_up(int fd, uint64_t *fence, int64_t *left_ms)
{
    struct stat st;
    struct nf_quiet quiet;
    int r = nf_sys.fstat(fd, &st);
    if (r < 0)
        return r;
    nf_quiet(&quiet);
    struct nf_tenure *t = nf_lease_of_fd(fd, st.st_dev, st.st_ino);
    nf_table_lock();
    if (t) {
        *fence = strtoull(t->fence, NULL, 10);
        *left_ms = t->lost ? 0 : nf_left_ms(t->deadline_ms);
        nf_tenure_unref(t);
    }
    nf_table_unlock();
    nf_loud(&quiet);
    return t ? 0 : -ENOLCK;
}

static int answer(int r)
{
    if (r < 0)
        errno = -r;
    return r < 0 ? -1 : 0;
}

NF_EXPORT int netflock_fence(int fd, uint64_t *token)
{
    int64_t left;
    return answer(look_up(fd, token, &left));
}

NF_EXPORT int netflock_lease(int fd, int64_t *remaining_ms)
{
    uint64_t fence;
    return answer(look_up(fd, &fence, remaining_ms));
}
