/*
 * See shadow.h.
 */
#include "lock/shadow.h"

#include "base/fdset.h"
#include "base/fdutil.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

bool nf_shadow_wanted(const struct nf_config *c)
{
    return c->policy.local == NF_LOCAL_OFF || c->policy.local == NF_LOCAL_DIR;
}

bool nf_shadow_allowed(const struct nf_config *c, int err, const struct nf_file *f)
{
    static atomic_bool said;
    if (err != -ENOSYS && err != -ENOLCK && err != -EOPNOTSUPP)
        return false;
    if (c->policy.local != NF_LOCAL_AUTO)
        return false;
    if (!atomic_exchange(&said, true))
        nf_log(NF_LOG_WARN, "the kernel has no lock for %s (error %d): Redis alone decides, also between the processes of this host",
               f->key, -err);
    return true;
}

/* The folder must be ours (or root's), and nobody else's to write to: its names can be guessed. */
static int open_folder(const char *path)
{
    struct stat st;
    int dir = nf_sys.open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW, 0);
    if (dir == -ENOENT && syscall(SYS_mkdirat, AT_FDCWD, path, 0700) == 0)
        dir = nf_sys.open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW, 0);
    int r = dir < 0 ? dir : nf_sys.fstat(dir, &st);
    if (r >= 0 && ((st.st_uid != 0 && st.st_uid != (uid_t)syscall(SYS_geteuid)) || (st.st_mode & 022)))
        r = -EPERM;
    if (r >= 0)
        return dir;
    if (dir >= 0)
        (void)nf_sys.close(dir);
    nf_log(NF_LOG_ERROR,
           "NETFLOCK_LOCAL=\"%s\" cannot be used (error %d): it must be a folder of this user or root, writable by nobody else", path, -r);
    return r;
}

int nf_shadow_open(const struct nf_config *c, const struct nf_file *f)
{
    char name[64];
    int fd;
    if (c->policy.local == NF_LOCAL_DIR) {
        int dir = open_folder(c->local_dir);
        if (dir < 0)
            return -ENOLCK;
        (void)snprintf(name, sizeof name, "%llx-%llx.lock", (unsigned long long)f->dev, (unsigned long long)f->ino);
        fd = (int)syscall(SYS_openat, dir, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        fd = fd < 0 ? -errno : fd;
        (void)nf_sys.close(dir);
    } else {
        fd = (int)syscall(SYS_memfd_create, "netflock", MFD_CLOEXEC);
        fd = fd < 0 ? -errno : fd;
    }
    if (fd < 0) {
        nf_log(NF_LOG_ERROR, "no lock on %s (ENOLCK): no stand-in for the kernel's lock (error %d)", f->key, -fd);
        return -ENOLCK;
    }
    return nf_fd_move_high(fd);
}

/* Where kcmp(2) is not allowed, any descriptor of the file counts: the lock may then live too long, not too short. */
static int same_description(int other, long fd)
{
    return nf_sys.kcmp_file((int)fd, other) <= 0 && other != fd;
}

int nf_shadow_other(int fd, dev_t dev, ino_t ino)
{
    return nf_fd_find(dev, ino, nf_tenure_has_fd, same_description, fd);
}

void nf_shadow_follow(void)
{
    nf_table_lock();
    for (struct nf_tenure *t = nf_tenure_any(NULL); t; t = nf_tenure_any(t)) {
        if (t->shadow < 0)
            continue;
        int flags = t->fd < 0 ? FD_CLOEXEC : nf_sys.fcntl(t->fd, F_GETFD, 0);
        (void)nf_sys.fcntl(t->shadow, F_SETFD, flags < 0 ? FD_CLOEXEC : flags & FD_CLOEXEC);
    }
    nf_table_unlock();
}
