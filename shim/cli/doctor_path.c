/*
 * A file: its key, the file system that it lies on, and whether the kernel has locks there.
 *
 * Locks are tried on a file without a name (O_TMPFILE) in the same folder, so that no lock of anybody is touched; by a child,
 * as a lock call on a share whose server is away may never return.
 */
#include "cli/doctor.h"

#include "cli/cli.h"
#include "cli/view.h"

#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRY_MS 5000

struct mount {
    char where[PATH_MAX], type[64], options[4096];
};

/* The number of the mount that a descriptor is on, by /proc/self/fdinfo; -1. */
static long mount_number(int fd)
{
    char path[64];
    char line[256];
    long number = -1;
    (void)snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "mnt_id:", 7) == 0)
            number = strtol(line + 7, NULL, 10);
    if (file)
        (void)fclose(file);
    return number;
}

/* "NUMBER PARENT DEVICE ROOT WHERE OPTIONS [MORE...] - TYPE SOURCE OPTIONS" */
static bool parse_mount(char *line, long number, struct mount *m)
{
    char *save;
    char *field[6];
    if (strtol(line, NULL, 10) != number)
        return false;
    char *dash = strstr(line, " - ");
    if (!dash)
        return false;
    *dash = 0;
    for (size_t i = 0; i < 6; i++)
        if (!(field[i] = strtok_r(i ? NULL : line, " ", &save)))
            return false;
    const char *type = strtok_r(dash + 3, " \n", &save);
    const char *source = strtok_r(NULL, " \n", &save);
    const char *super = strtok_r(NULL, " \n", &save);
    if (!type || !source)
        return false;
    (void)snprintf(m->where, sizeof m->where, "%s", field[4]);
    (void)snprintf(m->type, sizeof m->type, "%s", type);
    (void)snprintf(m->options, sizeof m->options, "%s,%s", field[5], super ? super : "");
    return true;
}

static bool find_mount(int fd, struct mount *m)
{
    long number = mount_number(fd);
    char *line = NULL;
    size_t room = 0;
    bool got = false;
    FILE *file = number < 0 ? NULL : fopen("/proc/self/mountinfo", "re");
    while (file && !got && getline(&line, &room, file) > 0)
        got = parse_mount(line, number, m);
    if (file)
        (void)fclose(file);
    free(line);
    return got;
}

/* Is there an option, with the value that `is` (NULL: any)? *value gets what follows "=", up to the comma. */
static bool option(const struct mount *m, const char *name, const char **value)
{
    size_t len = strlen(name);
    for (const char *p = m->options; *p;) {
        size_t n = strcspn(p, ",");
        if (n >= len && strncmp(p, name, len) == 0 && (n == len || p[len] == '=')) {
            if (value)
                *value = p + len + (n > len);
            return true;
        }
        p += n + (p[n] != 0);
    }
    return false;
}

static bool type_begins(const struct mount *m, const char *with)
{
    return strncmp(m->type, with, strlen(with)) == 0;
}

static void say_travels(struct findings *f, const struct mount *m, const char *on)
{
    found(f, LEVEL_WARN, "path.filesystem", "%s is on %s (%s) whose locks travel already: each is taken from its server, too", f->subject,
          on, m->where);
    remedy(f, "NETFLOCK_LOCAL=off, or a folder of this host, does without that");
}

static void say_filesystem(struct findings *f, const struct mount *m)
{
    const char *local = "";
    const char *note = "";
    if (strcmp(m->type, "nfs") == 0 || strcmp(m->type, "nfs4") == 0) {
        bool nolock = option(m, "nolock", NULL);
        bool has = option(m, "local_lock", &local) && strncmp(local, "none", 4) != 0;
        if (!nolock && !has) {
            say_travels(f, m, m->type);
            return;
        }
        note = nolock ? ", nolock: its locks stay on this host, Redis carries them to the others"
                      : ", local_lock: those locks stay on this host, Redis carries them to the others";
    } else if (strcmp(m->type, "lustre") == 0) {
        if (option(m, "flock", NULL)) {
            say_travels(f, m, "lustre with -o flock");
            return;
        }
        note = option(m, "localflock", NULL) ? ", localflock: its locks stay on this host, Redis carries them to the others"
                                             : " without -o flock: the kernel has no lock there (NETFLOCK_LOCAL)";
    } else if (strcmp(m->type, "overlay") == 0) {
        note = ": what is written there stays on this machine or in this container; the lock is by the path all the same";
    } else if (strcmp(m->type, "tmpfs") == 0 || strcmp(m->type, "ramfs") == 0) {
        note = ", the memory of this machine: other hosts have a file of their own there; the lock is by the path all the same";
    } else if (type_begins(m, "fuse")) {
        note = ": whether the kernel has locks there is up to the program behind it";
    }
    found(f, LEVEL_OK, "path.filesystem", "%s is on %s (%s)%s", f->subject, m->type, m->where, note);
}

/* What the child found: 0, or a negative errno. */
struct tried {
    int file, flock, record;
};

static void try_locks(const char *folder, struct tried *t)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    int fd = nf_sys.open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    t->file = fd < 0 ? fd : 0;
    if (fd < 0)
        return;
    t->flock = nf_sys.flock(fd, LOCK_EX | LOCK_NB);
    t->record = nf_sys.fcntl(fd, F_SETLK, (long)&range);
}

/* 0, or -errno: -ETIMEDOUT when the calls do not return. */
static int try_in_child(const char *folder, struct tried *t)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    pid_t child = fork();
    if (child == 0) {
        try_locks(folder, t);
        _exit(write(ends[1], t, sizeof *t) != (ssize_t)sizeof *t);
    }
    int r = child < 0 ? -errno : 0;
    (void)close(ends[1]);
    struct pollfd p = {.fd = ends[0], .events = POLLIN};
    if (r == 0 && poll(&p, 1, TRY_MS) != 1)
        r = -ETIMEDOUT;
    if (r == 0 && read(ends[0], t, sizeof *t) != (ssize_t)sizeof *t)
        r = -EIO;
    (void)close(ends[0]);
    if (child > 0 && r == -ETIMEDOUT)
        (void)kill(child, SIGKILL); /* in vain, perhaps, and not waited for: it hangs in the kernel */
    else if (child > 0)
        (void)waitpid(child, NULL, 0);
    return r;
}

/* err: of the kernel's lock call. */
static void say_lock(struct findings *f, const struct nf_config *c, const char *id, const char *what, int err)
{
    bool none = err == -ENOSYS || err == -ENOLCK || err == -EOPNOTSUPP;
    if (err == 0) {
        found(f, LEVEL_OK, id, "%s: the kernel's %s works there", f->subject, what);
    } else if (none && c->policy.local == NF_LOCAL_AUTO) {
        found(f, LEVEL_WARN, id, "%s: the kernel has no %s there (%s): Redis alone decides, also between processes of this host",
              f->subject, what, strerror(-err));
        remedy(f, "NETFLOCK_LOCAL=FOLDER, a folder of this host, is stricter");
    } else {
        found(f, LEVEL_FAIL, id, "%s: the kernel's %s fails there: %s", f->subject, what, strerror(-err));
        remedy(f, "%s", none ? "NETFLOCK_LOCAL=auto, off, or a folder of this host" : "look at the file system");
    }
}

static void say_locks(struct findings *f, const struct nf_config *c, const char *folder)
{
    struct tried t = {0};
    if (c->policy.local == NF_LOCAL_OFF || c->policy.local == NF_LOCAL_DIR) {
        found(f, LEVEL_OK, "path.flock", "%s: the kernel's locks there are not asked (NETFLOCK_LOCAL)", f->subject);
        return;
    }
    int r = try_in_child(folder, &t);
    if (r == -ETIMEDOUT) {
        found(f, LEVEL_FAIL, "path.flock", "%s: a lock call does not return there within %d s", f->subject, TRY_MS / 1000);
        remedy(f, "look at the share's server; NETFLOCK_LOCAL=off, or a folder of this host, does without its locks");
    } else if (r < 0 || t.file < 0) {
        found(f, LEVEL_OK, "path.flock", "%s: the kernel's locks were not tried: no file without a name can be made in %s (%s)", f->subject,
              folder, strerror(r < 0 ? -r : -t.file));
    } else {
        say_lock(f, c, "path.flock", "flock()", t.flock);
        say_lock(f, c, "path.record", "record lock", t.record);
    }
}

static void say_key(struct findings *f, const struct nf_config *c, const char *name)
{
    char *key = name_to_key(c, name);
    if (key) {
        found(f, LEVEL_OK, "path.key", "%s has the key %s", f->subject, key);
    } else {
        found(f, LEVEL_FAIL, "path.key", "%s (%s) is below no prefix: its locks are the kernel's alone", f->subject, name);
        remedy(f, "add its folder to NETFLOCK_PREFIX");
    }
    free(key);
}

void doctor_path(struct findings *f, const struct nf_config *c, const char *path)
{
    char name[PATH_MAX];
    struct mount m;
    struct stat st;
    int r = path_name(path, name);
    if (r < 0) {
        found(f, LEVEL_FAIL, "path.key", "%s: %s", path, strerror(-r));
        return;
    }
    say_key(f, c, name);
    bool there = stat(name, &st) == 0;
    if (there && S_ISREG(st.st_mode) && st.st_nlink > 1) {
        found(f, LEVEL_WARN, "path.links", "%s has %" PRIuMAX " names (hard links), and each is a lock of its own", path,
              (uintmax_t)st.st_nlink);
        remedy(f, "lock it by one name only");
    }
    char folder[PATH_MAX];
    (void)snprintf(folder, sizeof folder, "%s", name);
    if (!there || !S_ISDIR(st.st_mode)) {
        char *slash = strrchr(folder, '/');
        if (slash)
            slash[slash == folder] = 0;
    }
    int fd = open(there ? name : folder, O_PATH | O_CLOEXEC);
    if (fd >= 0 && find_mount(fd, &m))
        say_filesystem(f, &m);
    else
        found(f, LEVEL_WARN, "path.filesystem", "%s: its mount is not to be found in /proc/self/mountinfo", path);
    if (fd >= 0)
        (void)close(fd);
    say_locks(f, c, folder);
}
