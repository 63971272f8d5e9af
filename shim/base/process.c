/*
 * See process.h. One page is wiped by the kernel in a forked copy (MADV_WIPEONFORK, Linux 4.14) but is the same page
 * in a vfork child: together with the pid it tells the three cases apart.
 */
#include "base/process.h"

#include "base/sys.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

static pid_t home;
static volatile char *mark;
static atomic_uint forks;

void nf_process_adopt(void)
{
    home = nf_sys.getpid();
    if (!mark) {
        char *page = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page != MAP_FAILED && madvise(page, 1, MADV_WIPEONFORK) == 0)
            mark = page;
        else if (page != MAP_FAILED)
            (void)munmap(page, 1);
    }
    if (mark)
        *mark = 1;
}

enum nf_where nf_process_where(void)
{
    /* The page alone tells of a child in a new PID namespace, whose number may be the same. */
    if (mark && !*mark)
        return NF_FORKED;
    return nf_sys.getpid() == home || home == 0 ? NF_HOME : NF_VFORK_CHILD;
}

unsigned nf_fork_count(void)
{
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

void nf_fork_counted(void)
{
    atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
}

bool nf_process_over(void)
{
    char buf[512];
    struct stat st;
    int fd = nf_sys.open("/proc/self/stat", O_RDONLY | O_CLOEXEC, 0);
    ssize_t n = fd < 0 ? fd : nf_sys.read(fd, buf, sizeof buf - 1);
    if (fd >= 0)
        (void)nf_sys.close(fd);
    buf[n < 0 ? 0 : n] = 0;
    const char *state = strrchr(buf, ')');
    if (!state || strncmp(state, ") Z", 3) != 0)
        return false;
    /* The folder has a link for "." and "..", the dead leader and each thread. */
    fd = nf_sys.open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    bool over = fd >= 0 && nf_sys.fstat(fd, &st) == 0 && st.st_nlink <= 4;
    if (fd >= 0)
        (void)nf_sys.close(fd);
    return over;
}
