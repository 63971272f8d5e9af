/*
 * Out of the control group of the program. A service manager, a batch system or a runtime that ends a job kills every process of
 * the job's group at one blow; the keeper in there would die before it has seen that the lock is free. So it leaves, where it
 * may: it is root, and the hierarchies can be written. What fails changes nothing, and is a line for debugging.
 *
 * It leaves what serves to find processes, and no limit on resources:
 *   name=systemd (v1)  systemd's own; has no controller at all
 *   freezer (v1)       batch systems find a job's processes by it. A frozen job keeps its locks then, too: its keeper renews
 *   v2                 one tree for all. Its limits cannot be told apart, and go too: a keeper is small, and sleeps
 * A v1 hierarchy that another controller shares is left alone.
 *
 * To where: in v1 to the root, which is always there and has no rule about who may be in it. In v2 to a group of our own,
 * "netflock", below the root as we see it. The root itself is no place: in a container it may be an inner group, in
 * which no process may be while it divides resources, and whoever wants to divide them finds it occupied. The group stays when the
 * last keeper has gone: no member of it can remove it, and nobody else knows.
 *
 * When: a v1 group is left by a single thread for 0.02 ms ("tasks"), so at the start. In v2 only a whole process can move
 * ("cgroup.procs"), for which the kernel waits until all processors have passed a quiet point: 6 to 50 ms. The guard has the
 * time, so it moves itself and the keeper, when there is one: locks shorter than that never pay for it.
 */
#include "keeper/keeper.h"

#include "base/log.h"
#include "base/procs.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOP "/sys/fs/cgroup"
#define OURS "/netflock"
#define FIRST_CGROUPS "cgroup:[4026531835]" /* the namespace of the machine: a constant of the kernel */

static int left_v1; /* a negative errno, told when there is a log */

/* /proc/self/cgroup, a line "ID:CONTROLLERS:PATH" for each hierarchy. */
static void read_groups(char *buf, size_t size)
{
    ssize_t n = -1;
    int fd = nf_sys.open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC, 0);
    if (fd >= 0) {
        n = nf_sys.read(fd, buf, size - 1);
        (void)nf_sys.close(fd);
    }
    buf[n > 0 ? n : 0] = 0;
}

/* Are we in a group of this hierarchy other than `home`, and below the root as we see it? */
static bool away(const char *groups, const char *controllers, const char *home)
{
    size_t clen = strlen(controllers);
    for (const char *line = groups; *line;) {
        const char *end = line + strcspn(line, "\n");
        const char *c = line + strcspn(line, ":\n");
        if (*c == ':' && strncmp(c + 1, controllers, clen) == 0 && c[1 + clen] == ':') {
            const char *path = c + 2 + clen;
            size_t len = (size_t)(end - path);
            bool above = len >= 3 && strncmp(path, "/..", 3) == 0;
            return !above && (len != strlen(home) || strncmp(path, home, len) != 0);
        }
        line = *end ? end + 1 : end;
    }
    return false;
}

/*
 * In a PID namespace everything ends with its first process. If it has no cgroup namespace, what we see is the machine's tree:
 * to be moved about in there would help nobody, and hide us from the runtime.
 */
static bool in_a_strange_tree(void)
{
    char name[64];
    ssize_t n = nf_sys.readlink("/proc/self/ns/cgroup", name, sizeof name - 1);
    name[n > 0 ? n : 0] = 0;
    return strcmp(name, FIRST_CGROUPS) == 0 && nf_pid_namespaced();
}

static int move(const char *file, pid_t pid)
{
    char number[16];
    int fd = nf_sys.open(file, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    int len = snprintf(number, sizeof number, "%d", (int)pid);
    ssize_t r = nf_sys.write(fd, number, (size_t)len);
    (void)nf_sys.close(fd);
    return r < 0 ? (int)r : 0;
}

void cgroup_leave(void)
{
    static const char *const v1[][2] = {{"name=systemd", TOP "/systemd/tasks"}, {"freezer", TOP "/freezer/tasks"}};
    char groups[8192];
    if (geteuid() != 0)
        return;
    read_groups(groups, sizeof groups);
    for (size_t i = 0; i < sizeof v1 / sizeof v1[0]; i++) {
        if (!away(groups, v1[i][0], "/") || in_a_strange_tree())
            continue;
        int r = move(v1[i][1], 0); /* 0, ourselves: another number would cost what v2 costs */
        left_v1 = r < 0 ? r : left_v1;
    }
}

static int leave_v2(pid_t keeper_pid)
{
    static const char *const tops[] = {TOP, TOP "/unified"};
    char dir[64];
    char procs[96];
    size_t i = 0;
    /* A folder is made in such a tree alone. */
    do {
        (void)snprintf(procs, sizeof procs, "%s/cgroup.procs", tops[i]);
    } while (access(procs, F_OK) < 0 && ++i < 2);
    if (i == 2)
        return -ENOENT;
    (void)snprintf(dir, sizeof dir, "%s" OURS, tops[i]);
    (void)snprintf(procs, sizeof procs, "%s" OURS "/cgroup.procs", tops[i]);
    if (mkdir(dir, 0755) < 0 && errno != EEXIST)
        return -errno;
    int r = move(procs, 0);
    /* While it is our parent its number is no other's. */
    if (r == 0 && getppid() == keeper_pid)
        r = move(procs, keeper_pid);
    return r;
}

void cgroup_leave_both(pid_t keeper_pid)
{
    char groups[8192];
    int r = left_v1;
    if (geteuid() != 0)
        return;
    read_groups(groups, sizeof groups);
    if (away(groups, "", OURS) && away(groups, "", "/") && !in_a_strange_tree()) {
        int v2 = leave_v2(keeper_pid);
        r = v2 < 0 ? v2 : r;
    }
    if (r < 0)
        nf_log(NF_LOG_DEBUG, "the keeper stays in its control group: %s", strerror(-r));
}
