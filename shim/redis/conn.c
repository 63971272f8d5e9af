/*
 * Socket I/O with deadlines, and the hiredis reader with limits: see conn.h.
 */
#include "redis/conn.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fdutil.h"
#include "base/sigs.h"
#include "base/sys.h"
#include "redis/handshake.h"
#include "redis/resolve.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

/* More elements than any of our commands asks for is a hostile reply: refuse before memory is taken for it. */
#define ELEMENTS_MAX 20000

#if HIREDIS_MAJOR >= 1
typedef size_t element_count;
#else
typedef int element_count;
#endif

static redisReplyObjectFunctions limited_functions;
static void *(*hiredis_create_array)(const redisReadTask *, element_count);

static void *create_array(const redisReadTask *task, element_count elements)
{
    return (size_t)elements > ELEMENTS_MAX ? NULL : hiredis_create_array(task, elements);
}

static void limit_functions(void)
{
    redisReader *r = redisReaderCreate();
    if (!r)
        return;
    redisReplyObjectFunctions f = *r->fn;
    hiredis_create_array = f.createArray;
    f.createArray = create_array;
    limited_functions = f;
    redisReaderFree(r);
}

static redisReader *reader_create(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, limit_functions);
    return limited_functions.createArray ? redisReaderCreateWithFunctions(&limited_functions) : NULL;
}

const char nf_arg_run[] = "";

void nf_cmd_add(struct nf_cmd *cmd, const char *s, size_t len)
{
    if (cmd->argc < NF_REDIS_ARGS_MAX) {
        cmd->argv[cmd->argc] = s;
        cmd->len[cmd->argc++] = len;
    }
}

void nf_cmd_str(struct nf_cmd *cmd, const char *s)
{
    nf_cmd_add(cmd, s, strlen(s));
}

bool nf_conn_ours(const struct nf_conn *c)
{
    struct stat st;
    return c->fd >= 0 && nf_sys.fstat(c->fd, &st) == 0 && S_ISSOCK(st.st_mode) && st.st_ino == c->sock_ino;
}

void nf_conn_close(struct nf_conn *c)
{
    if (!c)
        return;
    if (nf_conn_ours(c))
        (void)nf_sys.close(c->fd);
    if (c->reader)
        redisReaderFree(c->reader);
    nf_free(c);
}

static int set_timeout(struct nf_conn *c, int ms)
{
    if (ms == c->timeout_ms)
        return 0;
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    int r = nf_sys.setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    if (r == 0)
        r = nf_sys.setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    c->timeout_ms = r == 0 ? ms : -1;
    return r;
}

/* The socket's time-out for what is left until the deadline; a small difference is not worth two system calls. */
static int arm(struct nf_conn *c, int64_t deadline_ms)
{
    int left = nf_left_ms(deadline_ms);
    if (left == 0)
        return -ETIMEDOUT;
    if (c->timeout_ms > 0 && c->timeout_ms <= left && c->timeout_ms >= left - left / 8)
        return 0;
    return set_timeout(c, left > 16 ? left - left / 16 : left);
}

static int connect_to(int fd, const struct sockaddr *addr, socklen_t len, int64_t deadline_ms)
{
    int r = nf_sys.connect(fd, addr, len);
    if (r != -EINPROGRESS && r != -EAGAIN)
        return r;
    if (r == -EAGAIN) {
        /* A unix socket whose backlog is full: there is no event to wait for. */
        while (r == -EAGAIN && nf_left_ms(deadline_ms) > 0) {
            (void)nf_sys.poll(NULL, 0, 5);
            r = nf_sys.connect(fd, addr, len);
        }
        return r == -EAGAIN ? -ETIMEDOUT : r;
    }
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    r = nf_sys.poll(&p, 1, nf_left_ms(deadline_ms));
    if (r == 0)
        return -ETIMEDOUT;
    if (r < 0)
        return r;
    int err = 0;
    socklen_t size = sizeof err;
    r = nf_sys.getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &size);
    return r < 0 ? r : -err;
}

static int socket_to(const struct sockaddr *addr, socklen_t len, int64_t deadline_ms)
{
    int fd = nf_sys.socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return fd;
    fd = nf_fd_move_high(fd);
    int r = connect_to(fd, addr, len, deadline_ms);
    int flags = r < 0 ? r : nf_sys.fcntl(fd, F_GETFL, 0);
    if (flags >= 0)
        r = nf_sys.fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    if (r < 0) {
        (void)nf_sys.close(fd);
        return r;
    }
    if (addr->sa_family != AF_UNIX) {
        static const int on = 1;
        static const int idle = 5;
        static const int interval = 2;
        static const int count = 4;
        (void)nf_sys.setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        /* A waiter sits in recv() without time-out: a dead network must end it. */
        (void)nf_sys.setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        (void)nf_sys.setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
        (void)nf_sys.setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
        (void)nf_sys.setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    }
    return fd;
}

/* A connected socket, or -errno. Every address that a name has is tried in turn. */
static int dial(const struct nf_redis_opts *opts, int64_t deadline_ms)
{
    if (opts->unix_path[0]) {
        struct sockaddr_un un = {.sun_family = AF_UNIX};
        memcpy(un.sun_path, opts->unix_path, sizeof un.sun_path);
        return socket_to((struct sockaddr *)&un, sizeof un, deadline_ms);
    }
    struct nf_addrs addrs;
    int r =
        opts->look_nothing_up ? nf_resolve_known(opts->host, opts->port, &addrs) : nf_resolve(opts->host, opts->port, deadline_ms, &addrs);
    if (r < 0)
        return r;
    int fd = -EHOSTUNREACH;
    for (size_t i = 0; i < addrs.n && fd < 0; i++) {
        int64_t until = nf_now_ms() + nf_left_ms(deadline_ms) / (int)(addrs.n - i);
        fd = socket_to((struct sockaddr *)&addrs.addr[i], addrs.len[i], until);
    }
    return fd;
}

int nf_conn_send(struct nf_conn *c, const struct nf_cmd *cmds, size_t n, int64_t deadline_ms)
{
    c->reply_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        char *wire = NULL;
        struct nf_cmd cmd = cmds[i];
        if (cmd.taking && c->unfit)
            return -EPERM;
        for (int k = 0; k < cmd.argc; k++)
            if (cmd.argv[k] == nf_arg_run) {
                cmd.argv[k] = c->run;
                cmd.len[k] = strlen(c->run);
            }
        int len = redisFormatCommandArgv(&wire, cmd.argc, cmd.argv, cmd.len);
        if (len < 0)
            return -ENOMEM;
        int r = 0;
        for (int at = 0; at < len;) {
            r = arm(c, deadline_ms);
            ssize_t sent = r < 0 ? r : nf_sys.send(c->fd, wire + at, (size_t)(len - at), MSG_NOSIGNAL | (i + 1 < n ? MSG_MORE : 0));
            if (sent == -EINTR)
                continue;
            r = sent == -EAGAIN ? -ETIMEDOUT : (int)sent;
            if (r < 0)
                break;
            at += (int)sent;
        }
        redisFreeCommand(wire);
        if (r < 0)
            return r;
    }
    return 0;
}

int nf_conn_post(struct nf_conn *c, const struct nf_cmd *cmd, int64_t deadline_ms)
{
    int r = nf_conn_send(c, cmd, 1, deadline_ms);
    c->owed += r == 0;
    return r;
}

/* Takes a reply out of what has been read; 1 if there is one, 0 if more is needed, -EPROTO. */
static int take_reply(struct nf_conn *c, redisReply **out)
{
    void *reply = NULL;
    for (;;) {
        if (redisReaderGetReply(c->reader, &reply) != REDIS_OK)
            return -EPROTO;
        if (!reply || c->owed == 0)
            break;
        freeReplyObject(reply);
        c->owed--;
    }
    *out = reply;
    return reply != NULL;
}

static int feed(struct nf_conn *c, const char *buf, ssize_t n)
{
    if (n == 0)
        return -ECONNRESET;
    c->reply_bytes += (size_t)n;
    if (c->reply_bytes > c->reply_max)
        return -EPROTO;
    return redisReaderFeed(c->reader, buf, (size_t)n) == REDIS_OK ? 0 : -EPROTO;
}

int nf_conn_reply(struct nf_conn *c, int64_t deadline_ms, redisReply **out)
{
    char buf[4096];
    int r;
    while ((r = take_reply(c, out)) == 0) {
        r = arm(c, deadline_ms);
        if (r < 0)
            return r;
        ssize_t n = nf_sys.recv(c->fd, buf, sizeof buf, 0);
        if (n == -EINTR)
            continue;
        if (n < 0)
            return n == -EAGAIN ? -ETIMEDOUT : (int)n;
        r = feed(c, buf, n);
        if (r < 0)
            return r;
    }
    return r < 0 ? r : 0;
}

int nf_conn_wait_reply(struct nf_conn *c, const sigset_t *mask, redisReply **out)
{
    char buf[4096];
    int r = set_timeout(c, 0);
    while (r == 0 && (r = take_reply(c, out)) == 0) {
        if (nf_sigs_interrupting(mask))
            return -EINTR;
        /* Not a moment longer: a handler that calls close() must not meet our allocator's lock. */
        nf_sigs_restore(mask);
        ssize_t n = nf_sys.recv(c->fd, buf, sizeof buf, 0);
        nf_sigs_block(NULL);
        r = n < 0 ? (int)n : feed(c, buf, n);
    }
    return r < 0 ? r : 0;
}

static const char *connect_error(int err)
{
    switch (err) {
    case -ECONNREFUSED:
        return "connection refused";
    case -ETIMEDOUT:
        return "no answer within the connect time-out";
    case -ENOENT:
        return "no such socket";
    case -EACCES:
    case -EPERM:
        return "permission denied";
    case -EMFILE:
    case -ENFILE:
        return "no descriptor left";
    case -EAI_UNKNOWN:
        return "the host name does not resolve";
    case -ECONNRESET:
    case -EPIPE:
        return "the connection was closed";
    case -EPROTO:
        return "the peer does not speak Redis' protocol";
    default:
        return "the connection failed";
    }
}

struct nf_conn *nf_conn_open(const struct nf_redis_opts *opts, int64_t deadline_ms, int *err, char *why, size_t why_size)
{
    struct stat st;
    struct nf_conn *c = nf_calloc(1, sizeof *c);
    why[0] = 0;
    *err = c ? 0 : -ENOMEM;
    if (c) {
        c->fd = *err = dial(opts, deadline_ms);
        c->reply_max = NF_REPLY_BYTES_MAX;
        if (c->fd >= 0) {
            *err = nf_sys.fstat(c->fd, &st);
            c->sock_ino = st.st_ino;
            c->reader = reader_create();
            if (!c->reader)
                *err = -ENOMEM;
        }
    }
    if (*err >= 0)
        *err = nf_handshake(c, opts, deadline_ms, why, why_size);
    if (*err >= 0)
        return c;
    if (!why[0])
        (void)snprintf(why, why_size, "%s", connect_error(*err));
    nf_conn_close(c);
    return NULL;
}
