/*
 * The public calls of include/netflock.h.
 */
#include "netflock.h"

#include "export/export.h"
#include "lock/inquire.h"

#include <errno.h>

NF_EXPORT const char *netflock_version(void)
{
    return NF_VERSION;
}

static int answer(int r, int saved)
{
    errno = r < 0 ? -r : saved;
    return r < 0 ? -1 : 0;
}

NF_EXPORT int netflock_fence(int fd, uint64_t *token)
{
    struct nf_inquiry q;
    int saved = errno;
    int r = nf_inquire(fd, false, &q);
    if (r == 0)
        *token = q.fence;
    return answer(r, saved);
}

NF_EXPORT int netflock_lease(int fd, int64_t *remaining_ms)
{
    struct nf_inquiry q;
    int saved = errno;
    int r = nf_inquire(fd, true, &q);
    if (r == 0)
        *remaining_ms = q.left_ms;
    return answer(r, saved);
}
