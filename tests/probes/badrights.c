/* badrights: sendmsg(2) with a message that is none, and with rights that claim to be longer than their room. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static void say(ssize_t r)
{
    printf("%d %s\n", (int)r, r < 0 ? strerror(errno) : "");
}

int main(void)
{
    char room[64], byte = 0;
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = CMSG_SPACE(sizeof(int))};
    struct msghdr *volatile none = (struct msghdr *)(uintptr_t)8;
    int pair[2];

    memset(room, 0, sizeof room);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
        return 2;
    *CMSG_FIRSTHDR(&m) = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = 1 << 28};
    say(sendmsg(pair[0], &m, 0));
    say(sendmsg(pair[0], none, 0));
    return 0;
}
