/*
 * sendmsg(2): a descriptor passed to another process (SCM_RIGHTS) shares its open file description, and its lock.
 */
#include "base/real.h"
#include "export/export.h"
#include "lock/close.h"

#include <string.h>
#include <sys/socket.h>

static void share_rights(const struct msghdr *m)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR((struct msghdr *)m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0))
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            nf_close_share(fd);
        }
    }
}

NF_EXPORT ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
    if (m && m->msg_control && m->msg_controllen)
        share_rights(m);
    return nf_real()->sendmsg(fd, m, flags);
}

NF_EXPORT int sendmmsg(int fd, struct mmsghdr *vec, unsigned int n, int flags)
{
    for (unsigned i = 0; vec && i < n; i++)
        if (vec[i].msg_hdr.msg_control && vec[i].msg_hdr.msg_controllen)
            share_rights(&vec[i].msg_hdr);
    return nf_real()->sendmmsg(fd, vec, n, flags);
}
