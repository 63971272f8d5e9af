/*
 * noflock ERRNO CMD...: runs CMD with a kernel that refuses flock with this error, as Lustre (ENOSYS) and NFS
 * without a lock manager (ENOLCK) do. A filter on the system call; no tracer is involved, so timing stays real.
 * With "ERRNO:EX" only exclusive requests are refused (NFSv4 on a read-only descriptor says EBADF to those).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int number(const char *name)
{
    for (int e = 1; e < 134; e++)
        if (strerrorname_np(e) && !strcmp(strerrorname_np(e), name))
            return e;
    return atoi(name);
}

int main(int argc, char **argv)
{
    char *only;
    unsigned err;

    if (argc < 3)
        return 2;
    only = strchr(argv[1], ':');
    if (only)
        *only = 0;
    err = (unsigned)number(argv[1]);
    struct sock_filter all[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_flock, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | err),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_filter exclusive[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_flock, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, LOCK_EX, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | err),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {only ? 6 : 4, only ? exclusive : all};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog)) {
        perror("seccomp");
        return 2;
    }
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    return 127;
}
