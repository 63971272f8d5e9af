/*
 * One line, one write: see log.h.
 */
#include "base/log.h"

#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

/*
 * Settings are changed a few times while the configuration is read, and other threads may be writing lines then: so each
 * has a place of its own, filled before it becomes the one that counts. When all are used up the last one stays.
 */
#define CONFS 8
static struct nf_log_conf confs[CONFS] = {{.level = NF_LOG_WARN, .where = 's'}};
static atomic_uint conf_now;

static dev_t start_dev;
static ino_t start_ino;

static const char *const level_name[] = {"error", "warning", "info", "debug"};

void nf_log_start(void)
{
    struct stat st;
    if (nf_sys.fstat(2, &st) == 0) {
        start_dev = st.st_dev;
        start_ino = st.st_ino;
    }
}

void nf_log_configure(const struct nf_log_conf *c)
{
    unsigned i = atomic_load_explicit(&conf_now, memory_order_relaxed);
    const struct nf_log_conf *now = &confs[i];
    if (i + 1 == CONFS || (c->level == now->level && c->where == now->where && strcmp(c->path, now->path) == 0))
        return;
    confs[i + 1] = *c;
    atomic_store_explicit(&conf_now, i + 1, memory_order_release);
}

/* Descriptor 2 is what it was, or something made for lines. A daemon that closed it may have a data file there. */
static int stderr_is_safe(void)
{
    struct stat st;
    if (nf_sys.fstat(2, &st) != 0)
        return 0;
    if (st.st_dev == start_dev && st.st_ino == start_ino)
        return 1;
    if (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) || S_ISCHR(st.st_mode))
        return 1;
    int flags = nf_sys.fcntl(2, F_GETFL, 0);
    return S_ISREG(st.st_mode) && flags >= 0 && (flags & O_APPEND);
}

/* A pipe whose reader has stalled would hold us up, and with us the renewals. */
static int stderr_has_room(void)
{
    struct pollfd p = {.fd = 2, .events = POLLOUT};
    return nf_sys.poll(&p, 1, 0) == 1 && (p.revents & POLLOUT);
}

static void to_syslog(enum nf_log_level level, const char *line, size_t len)
{
    static const int priority[] = {3 /* err */, 4 /* warning */, 6 /* info */, 7 /* debug */};
    struct sockaddr_un addr = {.sun_family = AF_UNIX, .sun_path = "/dev/log"};
    char packet[2200];
    int fd = nf_sys.socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return;
    int n = snprintf(packet, sizeof packet, "<%d>%.*s", 3 * 8 + priority[level], (int)len, line);
    if (nf_sys.connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0)
        (void)nf_sys.send(fd, packet, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)nf_sys.close(fd);
}

static void to_file(const char *path, const char *line, size_t len)
{
    int fd = nf_sys.open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0)
        return;
    (void)nf_sys.write(fd, line, len);
    (void)nf_sys.close(fd);
}

/* Copies src to dst with control characters as \xNN; returns the length, always below room. */
static size_t escape_line(char *dst, size_t room, const char *src)
{
    static const char hex[] = "0123456789abcdef";
    size_t n = 0;
    for (; *src && n + 5 < room; src++) {
        unsigned char c = (unsigned char)*src;
        if (c < 0x20 || c == 0x7f) {
            dst[n++] = '\\';
            dst[n++] = 'x';
            dst[n++] = hex[c >> 4];
            dst[n++] = hex[c & 15];
        } else {
            dst[n++] = (char)c;
        }
    }
    dst[n] = 0;
    return n;
}

void nf_log(enum nf_log_level level, const char *fmt, ...)
{
    const struct nf_log_conf *conf = &confs[atomic_load_explicit(&conf_now, memory_order_acquire)];
    if (level > conf->level)
        return;
    int saved = errno;
    char text[1024];
    char line[2048];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    int head = snprintf(line, sizeof line, "netflock[%d]: %s: ", (int)nf_sys.getpid(), level_name[level]);
    size_t n = (size_t)head + escape_line(line + head, sizeof line - (size_t)head - 1, text);
    line[n++] = '\n';
    if (conf->where == 'f')
        to_file(conf->path, line, n);
    else if (conf->where == 'y' || !stderr_is_safe() || !stderr_has_room())
        to_syslog(level, line, n - 1);
    else
        (void)nf_sys.write(2, line, n);
    errno = saved;
}
