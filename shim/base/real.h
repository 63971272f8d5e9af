/*
 * The functions that the shim wraps, as the program would have found them without it (RTLD_NEXT).
 *
 * Resolved once by the constructor; a library whose constructor runs earlier gets them resolved on the spot.
 */
#ifndef NF_BASE_REAL_H
#define NF_BASE_REAL_H

#include <dirent.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>

/* name, return type, parameters */
#define NF_REAL_TABLE(X)                                                                                                    \
    X(flock, int, (int, int))                                                                                               \
    X(close, int, (int))                                                                                                    \
    X(dup, int, (int))                                                                                                      \
    X(fcntl, int, (int, int, void *))                                                                                       \
    X(fcntl64, int, (int, int, void *))                                                                                     \
    X(__fcntl, int, (int, int, void *))                                                                                     \
    X(recvmsg, ssize_t, (int, struct msghdr *, int))                                                                        \
    X(recvmmsg, int, (int, struct mmsghdr *, unsigned, int, struct timespec *))                                             \
    X(dup2, int, (int, int))                                                                                                \
    X(dup3, int, (int, int, int))                                                                                           \
    X(close_range, int, (unsigned, unsigned, int))                                                                          \
    X(closefrom, void, (int))                                                                                               \
    X(fclose, int, (FILE *))                                                                                                \
    X(freopen, FILE *, (const char *, const char *, FILE *))                                                                \
    X(freopen64, FILE *, (const char *, const char *, FILE *))                                                              \
    X(closedir, int, (DIR *))                                                                                               \
    X(execve, int, (const char *, char *const[], char *const[]))                                                            \
    X(execv, int, (const char *, char *const[]))                                                                            \
    X(execvp, int, (const char *, char *const[]))                                                                           \
    X(execvpe, int, (const char *, char *const[], char *const[]))                                                           \
    X(fexecve, int, (int, char *const[], char *const[]))                                                                    \
    X(execveat, int, (int, const char *, char *const[], char *const[], int))                                                \
    X(posix_spawn, int,                                                                                                     \
      (pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[], char *const[])) \
    X(posix_spawnp, int,                                                                                                    \
      (pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[], char *const[])) \
    X(system, int, (const char *))                                                                                          \
    X(popen, FILE *, (const char *, const char *))                                                                          \
    X(_exit, void, (int))                                                                                                   \
    X(_Exit, void, (int))                                                                                                   \
    X(sendmsg, ssize_t, (int, const struct msghdr *, int))                                                                  \
    X(sendmmsg, int, (int, struct mmsghdr *, unsigned, int))

struct nf_real {
#define X(name, ret, args) ret(*name) args;
    NF_REAL_TABLE(X)
#undef X
};

extern struct nf_real nf_real_;

/* Fills in the table. Safe to call more than once and from several threads. */
void nf_real_init(void);

/* The table, filled in. */
static inline const struct nf_real *nf_real(void)
{
    if (__builtin_expect(!nf_real_.close, 0))
        nf_real_init();
    return &nf_real_;
}

#endif
