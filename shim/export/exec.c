/*
 * The exec family, and what starts a child that keeps descriptors: posix_spawn, system, popen. (fork and vfork
 * themselves are not wrapped: fork has its handlers, and a wrapped vfork returns twice through our frame.)
 *
 * glibc's execl* do not go through execve, so each is wrapped.
 */
#include "base/process.h"
#include "base/real.h"
#include "export/export.h"
#include "lock/leave.h"

#include <errno.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

NF_EXPORT int execve(const char *path, char *const argv[], char *const envp[])
{
    nf_exec_prepare();
    return nf_real()->execve(path, argv, envp);
}

NF_EXPORT int execv(const char *path, char *const argv[])
{
    nf_exec_prepare();
    return nf_real()->execv(path, argv);
}

NF_EXPORT int execvp(const char *file, char *const argv[])
{
    nf_exec_prepare();
    return nf_real()->execvp(file, argv);
}

NF_EXPORT int execvpe(const char *file, char *const argv[], char *const envp[])
{
    nf_exec_prepare();
    return nf_real()->execvpe(file, argv, envp);
}

NF_EXPORT int fexecve(int fd, char *const argv[], char *const envp[])
{
    nf_exec_prepare();
    return nf_real()->fexecve(fd, argv, envp);
}

NF_EXPORT int execveat(int dirfd, const char *path, char *const argv[], char *const envp[], int flags)
{
    nf_exec_prepare();
    return nf_real()->execveat(dirfd, path, argv, envp, flags);
}

/* How many arguments from the first on, the NULL at the end included. */
static size_t count_args(const char *first, va_list ap)
{
    size_t n = 1;
    while (first) {
        first = va_arg(ap, const char *);
        n++;
    }
    return n;
}

/* On the stack, like the C library: after vfork() nothing may be allocated. */
#define NF_COLLECT(argv, first)                  \
    va_list ap;                                  \
    va_start(ap, first);                         \
    size_t n_args = count_args(first, ap);       \
    va_end(ap);                                  \
    char *argv[n_args];                          \
    va_start(ap, first);                         \
    argv[0] = (char *)first;                     \
    for (size_t arg_ = 1; arg_ < n_args; arg_++) \
    argv[arg_] = va_arg(ap, char *)

NF_EXPORT int execl(const char *path, const char *arg, ...)
{
    NF_COLLECT(argv, arg);
    va_end(ap);
    return execv(path, argv);
}

NF_EXPORT int execlp(const char *file, const char *arg, ...)
{
    NF_COLLECT(argv, arg);
    va_end(ap);
    return execvp(file, argv);
}

NF_EXPORT int execle(const char *path, const char *arg, ...)
{
    NF_COLLECT(argv, arg);
    char *const *envp = va_arg(ap, char *const *);
    va_end(ap);
    return execve(path, argv, envp);
}

NF_EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attr,
                          char *const argv[], char *const envp[])
{
    nf_spawn_prepare(actions != NULL);
    return nf_real()->posix_spawn(pid, path, actions, attr, argv, envp);
}

NF_EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attr,
                           char *const argv[], char *const envp[])
{
    nf_spawn_prepare(actions != NULL);
    return nf_real()->posix_spawnp(pid, file, actions, attr, argv, envp);
}

NF_EXPORT int system(const char *command)
{
    nf_spawn_prepare(false);
    return nf_real()->system(command);
}

NF_EXPORT FILE *popen(const char *command, const char *type)
{
    nf_spawn_prepare(false);
    return nf_real()->popen(command, type);
}

NF_EXPORT void _exit(int status)
{
    nf_exit_now();
    nf_real()->_exit(status);
    __builtin_unreachable();
}

NF_EXPORT void _Exit(int status)
{
    nf_exit_now();
    nf_real()->_Exit(status);
    __builtin_unreachable();
}
