/*
 * The kernel behind struct nf_sys: see sys.h.
 */
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

static long result(long r)
{
    return r < 0 ? -(long)errno : r;
}

static int k_open(const char *path, int flags, mode_t mode)
{
    return (int)result(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

static int k_close(int fd)
{
    return (int)result(syscall(SYS_close, fd));
}

static ssize_t k_read(int fd, void *buf, size_t len)
{
    return result(syscall(SYS_read, fd, buf, len));
}

static ssize_t k_write(int fd, const void *buf, size_t len)
{
    return result(syscall(SYS_write, fd, buf, len));
}

static ssize_t k_readlink(const char *path, char *buf, size_t len)
{
    return result(syscall(SYS_readlinkat, AT_FDCWD, path, buf, len));
}

static int k_fcntl(int fd, int cmd, long arg)
{
    return (int)result(syscall(SYS_fcntl, fd, cmd, arg));
}

static int k_flock(int fd, int op)
{
    return (int)result(syscall(SYS_flock, fd, op));
}

static ssize_t k_getdents(int fd, void *buf, size_t len)
{
    return result(syscall(SYS_getdents64, fd, buf, len));
}

static int k_socket(int domain, int type, int protocol)
{
    return (int)result(syscall(SYS_socket, domain, type, protocol));
}

static int k_socketpair(int domain, int type, int protocol, int fds[2])
{
    return (int)result(syscall(SYS_socketpair, domain, type, protocol, fds));
}

static int k_connect(int fd, const struct sockaddr *addr, socklen_t len)
{
    return (int)result(syscall(SYS_connect, fd, addr, len));
}

static int k_setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
    return (int)result(syscall(SYS_setsockopt, fd, level, name, value, len));
}

static int k_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    return (int)result(syscall(SYS_getsockopt, fd, level, name, value, len));
}

static ssize_t k_send(int fd, const void *buf, size_t len, int flags)
{
    return result(syscall(SYS_sendto, fd, buf, len, flags, NULL, 0));
}

static ssize_t k_recv(int fd, void *buf, size_t len, int flags)
{
    return result(syscall(SYS_recvfrom, fd, buf, len, flags, NULL, NULL));
}

static int k_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    struct timespec ts = {.tv_sec = timeout_ms / 1000, .tv_nsec = (long)(timeout_ms % 1000) * 1000000L};
    return (int)result(syscall(SYS_ppoll, fds, n, timeout_ms < 0 ? NULL : &ts, NULL, 0));
}

static pid_t k_getpid(void)
{
    return (pid_t)syscall(SYS_getpid);
}

static int k_kcmp_file(int fd1, int fd2)
{
    pid_t me = k_getpid();
    return (int)result(syscall(SYS_kcmp, me, me, KCMP_FILE, fd1, fd2));
}

static int k_kill(pid_t pid, int sig)
{
    return (int)result(syscall(SYS_kill, pid, sig));
}

#ifdef SYS_fstat
/* The kernel's and glibc's struct stat are one and the same on the 64-bit machines that have this call; glibc's own
   fstat() goes through the slower newfstatat since 2.33. */
static int k_fstat(int fd, struct stat *st)
{
    return (int)result(syscall(SYS_fstat, fd, st));
}
#else
static int k_fstat(int fd, struct stat *st)
{
    return fstat(fd, st) < 0 ? -errno : 0;
}
#endif

struct nf_sys nf_sys = {
    .open = k_open,
    .close = k_close,
    .read = k_read,
    .write = k_write,
    .readlink = k_readlink,
    .fstat = k_fstat,
    .fcntl = k_fcntl,
    .flock = k_flock,
    .getdents = k_getdents,
    .socket = k_socket,
    .socketpair = k_socketpair,
    .connect = k_connect,
    .setsockopt = k_setsockopt,
    .getsockopt = k_getsockopt,
    .send = k_send,
    .recv = k_recv,
    .poll = k_poll,
    .kcmp_file = k_kcmp_file,
    .kill = k_kill,
    .getpid = k_getpid,
};

int nf_fd_is(int fd, dev_t dev, ino_t ino)
{
    struct stat st;
    return fd >= 0 && nf_sys.fstat(fd, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}
