/*
 * The system calls that netflock itself makes, in one table.
 *
 * Every call goes straight to the kernel (syscall(2)), never to a libc function of the same name: the host program,
 * or another preloaded library, may define its own connect() or open(). One table also lets a test make the N-th call
 * of a kind fail. Each entry returns what the kernel returns: >= 0, or a negative errno.
 *
 * Must never: be a cancellation point that unwinds (callers disable cancellation), touch stdio or locale.
 */
#ifndef NF_BASE_SYS_H
#define NF_BASE_SYS_H

#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

struct nf_sys {
    int (*open)(const char *path, int flags, mode_t mode);
    int (*close)(int fd);
    ssize_t (*read)(int fd, void *buf, size_t len);
    ssize_t (*write)(int fd, const void *buf, size_t len);
    ssize_t (*readlink)(const char *path, char *buf, size_t len);
    int (*fstat)(int fd, struct stat *st);
    int (*fcntl)(int fd, int cmd, long arg);
    int (*flock)(int fd, int op);
    ssize_t (*getdents)(int fd, void *buf, size_t len);
    int (*socket)(int domain, int type, int protocol);
    int (*socketpair)(int domain, int type, int protocol, int fds[2]);
    int (*connect)(int fd, const struct sockaddr *addr, socklen_t len);
    int (*setsockopt)(int fd, int level, int name, const void *value, socklen_t len);
    int (*getsockopt)(int fd, int level, int name, void *value, socklen_t *len);
    ssize_t (*send)(int fd, const void *buf, size_t len, int flags);
    ssize_t (*recv)(int fd, void *buf, size_t len, int flags);
    int (*poll)(struct pollfd *fds, nfds_t n, int timeout_ms);
    int (*kcmp_file)(int fd1, int fd2); /* 0 same open file description, > 0 another, < 0 cannot be told */
    int (*kill)(pid_t pid, int sig);
    pid_t (*getpid)(void);
};

extern struct nf_sys nf_sys;

/* fstat's st_dev and st_ino of fd name the same file as dev and ino. */
int nf_fd_is(int fd, dev_t dev, ino_t ino);

#endif
