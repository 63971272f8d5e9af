/*
 * receive FILE FOLDER: gets a descriptor of FILE from a child with recvmmsg(2), which keeps its own; locks the received
 * one and closes it. Makes FOLDER/closed then, and both end when there is a FOLDER/end.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

union rights {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int))];
};

static struct mmsghdr message(struct iovec *v, union rights *r)
{
    struct mmsghdr m = {.msg_hdr = {.msg_iov = v, .msg_iovlen = 1, .msg_control = r, .msg_controllen = sizeof *r}};
    return m;
}

static void until(const char *folder, const char *mark)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", folder, mark);
    while (access(path, F_OK) != 0)
        usleep(10000);
}

int main(int argc, char **argv)
{
    char byte = 0, path[4096];
    struct iovec v = {&byte, 1};
    union rights r;
    int pair[2], fd;

    memset(&r, 0, sizeof r);
    if (argc < 3 || socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) < 0)
        return 2;
    struct mmsghdr m = message(&v, &r);
    if (fork() == 0) {
        fd = open(argv[1], O_RDWR | O_CREAT, 0666);
        r.head.cmsg_level = SOL_SOCKET, r.head.cmsg_type = SCM_RIGHTS, r.head.cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(&r.head), &fd, sizeof fd);
        if (sendmmsg(pair[0], &m, 1, 0) != 1)
            _exit(3);
        until(argv[2], "end");
        _exit(0);
    }
    if (recvmmsg(pair[1], &m, 1, 0, NULL) != 1 || r.head.cmsg_type != SCM_RIGHTS)
        return 4;
    memcpy(&fd, CMSG_DATA(&r.head), sizeof fd);
    if (flock(fd, LOCK_EX) < 0 || close(fd) < 0)
        return 5;
    (void)snprintf(path, sizeof path, "%s/closed", argv[2]);
    if (mkdir(path, 0777) < 0)
        return 6;
    until(argv[2], "end");
    return 0;
}
