/*
 * See sleep.h: a blocking read(2) of a timerfd restarts as the kernel's lock calls do.
 */
#include "base/sleep.h"

#include "base/sigs.h"
#include "base/sys.h"

#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

int nf_sleep(int ms, const sigset_t *mask)
{
    struct itimerspec when = {.it_value = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000L + 1}};
    uint64_t ticks;
    ssize_t r;
    if (nf_sigs_interrupting(mask))
        return -EINTR;
    int fd = (int)syscall(SYS_timerfd_create, CLOCK_MONOTONIC, TFD_CLOEXEC);
    if (fd < 0) {
        /* No descriptor left: in small steps, each of which looks for signals. */
        for (int left = ms; left > 0; left -= 20) {
            (void)nf_sys.poll(NULL, 0, left < 20 ? left : 20);
            if (nf_sigs_interrupting(mask))
                return -EINTR;
        }
        return 0;
    }
    (void)syscall(SYS_timerfd_settime, fd, 0, &when, NULL);
    nf_sigs_restore(mask);
    r = nf_sys.read(fd, &ticks, sizeof ticks);
    nf_sigs_block(NULL);
    (void)nf_sys.close(fd);
    return r == -EINTR ? -EINTR : 0;
}
