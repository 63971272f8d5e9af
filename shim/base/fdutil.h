/*
 * What the kernel knows about a descriptor: its name, the locks it holds, who else in this process has the same file.
 */
#ifndef NF_BASE_FDUTIL_H
#define NF_BASE_FDUTIL_H

#include "base/ranges.h"

#include <stdbool.h>
#include <sys/types.h>

/*
 * The kernel's name for fd (/proc/self/fd/N) into buf, NUL-terminated. Returns its length, or -errno: -EBADF when fd
 * is not open, -ENAMETOOLONG when the name is longer than the kernel or buf can hold, -ENOENT without /proc.
 */
ssize_t nf_fd_name(int fd, char *buf, size_t size);

/*
 * Does the open file description behind fd hold an flock lock (`ofd`: an open file description lock) on inode ino? 'x', 's', 0 for none, or
 * -errno when it cannot be told (no /proc, no descriptor left).
 */
int nf_fd_lock_mode(int fd, ino_t ino, bool ofd);

/*
 * The byte ranges that path, /proc/locks or a description's /proc/self/fdinfo/N, tells of: those of this type ("POSIX", "OFDLCK")
 * and process (-1: of descriptions) on inode ino. Adds them to *out. 0, -errno.
 */
int nf_fd_ranges(const char *path, ino_t ino, const char *type, pid_t pid, struct nf_ranges *out);

/*
 * The first descriptor of this process that refers to the file dev:ino, is not to be skipped (asked first, must be
 * cheap) and for which test(fd, arg) is above 0. -ENOENT if there is none; another -errno, or what test() returned
 * below 0, when it cannot be told.
 */
int nf_fd_find(dev_t dev, ino_t ino, bool (*skip)(int fd), int (*test)(int fd, long arg), long arg);

/*
 * Calls seen() for every descriptor of this process, which it may close, until that does not return 0: then returns that. 0 at
 * the end, -errno when it cannot be told which are open.
 */
int nf_fd_each(int (*seen)(int fd, void *arg), void *arg);

/*
 * Does any process of this machine (`pid` not 0: a lock that this one took) hold a lock of that kind on inode ino (of any device:
 * /proc/locks names devices in ways that stat() does not)? 1, 0, or -errno. A yes may be about another device's inode of the same number; a
 * no is sure, except for processes in PID namespaces that this one does not see.
 */
int nf_inode_locked(ino_t ino, bool ofd, pid_t pid);

/*
 * Moves fd (which is closed in any case) to a high number with close-on-exec, out of the way of the numbers that
 * programs choose for themselves and of select(). Returns the new descriptor; fd itself when there is no room.
 */
int nf_fd_move_high(int fd);

#endif
