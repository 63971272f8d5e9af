/*
 * fcntl(2) and lockf(3): the commands that lock, and those that duplicate. All others pass through with their argument.
 */
#include "base/real.h"
#include "export/export.h"
#include "lock/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <unistd.h>

static int answer(int r, int saved)
{
    errno = r < 0 ? -r : saved;
    return r < 0 ? -1 : 0;
}

#define NF_FCNTL(name)                                                              \
    NF_EXPORT int name(int fd, int cmd, ...)                                        \
    {                                                                               \
        va_list ap;                                                                 \
        va_start(ap, cmd);                                                          \
        void *arg = va_arg(ap, void *);                                             \
        va_end(ap);                                                                 \
        if (nf_record_cmd(cmd)) {                                                   \
            int saved = errno;                                                      \
            return answer(nf_record_fcntl(fd, cmd, arg), saved);                    \
        }                                                                           \
        int r = nf_real()->name(fd, cmd, arg);                                      \
        return cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC ? nf_duplicated(fd, r) : r; \
    }

#undef fcntl
#undef fcntl64
#undef lockf
#undef lockf64
NF_FCNTL(fcntl)
NF_FCNTL(fcntl64)
int __fcntl(int fd, int cmd, ...);
NF_FCNTL(__fcntl)

NF_EXPORT int lockf(int fd, int cmd, off_t len)
{
    int saved = errno;
    return answer(nf_record_lockf(fd, cmd, len), saved);
}

NF_EXPORT int lockf64(int fd, int cmd, off64_t len)
{
    int saved = errno;
    return answer(nf_record_lockf(fd, cmd, len), saved);
}
