/*
 * sendmsg(2), recvmsg(2): a descriptor passed between processes (SCM_RIGHTS) shares its open file description, and its
 * lock, on both sides.
 */
#include "base/fdset.h"
#include "base/real.h"
#include "export/export.h"
#include "lock/close.h"

#include <string.h>
#include <sys/socket.h>

/* Calls share() for each descriptor in m's control data. */
static void each_right(const struct msghdr *m, void (*share)(int fd))
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR((struct msghdr *)m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0))
            continue;
        size_t room = (size_t)((char *)m->msg_control + m->msg_controllen - (char *)CMSG_DATA(c));
        size_t len = c->cmsg_len - CMSG_LEN(0) < room ? c->cmsg_len - CMSG_LEN(0) : room;
        size_t n = len / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            share(fd);
        }
    }
}

/* The kernel goes first: it judges the pointers. */
NF_EXPORT ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
    ssize_t n = nf_real()->sendmsg(fd, m, flags);
    if (n >= 0 && m->msg_control && m->msg_controllen)
        each_right(m, nf_close_share);
    return n;
}

NF_EXPORT int sendmmsg(int fd, struct mmsghdr *vec, unsigned int n, int flags)
{
    int sent = nf_real()->sendmmsg(fd, vec, n, flags);
    for (int i = 0; i < sent; i++)
        if (vec[i].msg_hdr.msg_control && vec[i].msg_hdr.msg_controllen)
            each_right(&vec[i].msg_hdr, nf_close_share);
    return sent;
}

NF_EXPORT ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
    ssize_t n = nf_real()->recvmsg(fd, m, flags);
    if (n >= 0 && m->msg_control && m->msg_controllen)
        each_right(m, nf_share);
    return n;
}

NF_EXPORT int recvmmsg(int fd, struct mmsghdr *vec, unsigned int n, int flags, struct timespec *timeout)
{
    int got = nf_real()->recvmmsg(fd, vec, n, flags, timeout);
    for (int i = 0; i < got; i++)
        if (vec[i].msg_hdr.msg_control && vec[i].msg_hdr.msg_controllen)
            each_right(&vec[i].msg_hdr, nf_share);
    return got;
}
