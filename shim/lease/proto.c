/*
 * See proto.h.
 */
#include "lease/proto.h"

#include "base/clock.h"
#include "base/sys.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int nf_ho_pack(struct nf_ho_tenure *m, enum nf_ho_type type, const struct nf_tenure *t)
{
    if (t->names->key_len >= sizeof m->key)
        return -ENAMETOOLONG;
    memset(m, 0, offsetof(struct nf_ho_tenure, key));
    m->magic = NF_HO_MAGIC;
    m->type = type;
    m->dev = t->lock_dev;
    m->ino = t->lock_ino;
    m->hold_fd = m->held_fd = -1;
    m->ofd = t->shadow >= 0;
    m->renewed_ms = t->renewed_ms;
    m->deadline_ms = t->deadline_ms;
    m->fresh_fd = -1;
    m->parent = nf_sys.getpid();
    m->alone = t->alone;
    m->identity_len = t->identity_len;
    m->key_len = (uint32_t)t->names->key_len;
    m->mode = t->mode;
    memcpy(m->fence, t->fence, sizeof m->fence);
    memcpy(m->token, t->token, strlen(t->token) + 1);
    memcpy(m->key, t->names->key, t->names->key_len);
    return 0;
}

void nf_pid_space(char buf[NF_PID_SPACE_MAX])
{
    ssize_t n = nf_sys.readlink("/proc/self/ns/pid", buf, NF_PID_SPACE_MAX - 1);
    buf[n < 0 ? 0 : n] = 0;
}

/* FNV-1a: the name must only be unlikely to meet another file's; the keeper compares the whole key. */
static uint64_t hash(uint64_t h, const void *data, size_t len)
{
    const unsigned char *p = data;
    while (len--)
        h = (h ^ *p++) * 0x100000001b3u;
    return h;
}

socklen_t nf_ho_address(struct sockaddr_un *addr, uint64_t dev, uint64_t ino, const char *key, size_t key_len,
                        const struct nf_redis_opts *redis)
{
    char name[400];
    uint64_t h = hash(0xcbf29ce484222325u, key, key_len);
    nf_redis_name(redis, name, sizeof name);
    h = hash(h, name, strlen(name));
    h = hash(h, &redis->db, sizeof redis->db);
    memset(addr, 0, sizeof *addr);
    addr->sun_family = AF_UNIX;
    int n = snprintf(addr->sun_path + 1, sizeof addr->sun_path - 1, "netflock:%u:%llx:%llx:%016llx", (unsigned)syscall(SYS_geteuid),
                     (unsigned long long)dev, (unsigned long long)ino, (unsigned long long)h);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

bool nf_ho_peer_trusted(int fd)
{
    struct ucred cred;
    socklen_t len = sizeof cred;
    if (nf_sys.getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
        return false;
    return cred.uid == 0 || cred.uid == (uid_t)syscall(SYS_geteuid);
}

int nf_ho_send(int fd, const void *msg, size_t len)
{
    ssize_t r = nf_sys.send(fd, msg, len, MSG_NOSIGNAL);
    return r == (ssize_t)len ? 0 : r < 0 ? (int)r : -EIO;
}

int nf_ho_answer(int fd, int wait_ms)
{
    char bytes[2] = ""; /* more than one is not what a keeper says */
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int64_t deadline = nf_now_ms() + wait_ms;
    int r;
    do
        r = nf_sys.poll(&p, 1, nf_left_ms(deadline));
    while (r == -EINTR);
    if (r <= 0)
        return r == 0 ? -ETIMEDOUT : r;
    return nf_sys.recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) == 1 ? bytes[0] : -EPIPE;
}

int nf_ho_ask(const struct nf_ho_tenure *m, const struct nf_redis_opts *redis, int wait_ms, char *reply)
{
    struct sockaddr_un addr;
    socklen_t len = nf_ho_address(&addr, m->dev, m->ino, m->key, m->key_len, redis);
    int fd = nf_sys.socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    *reply = 0;
    if (fd < 0)
        return fd;
    int r = nf_sys.connect(fd, (struct sockaddr *)&addr, len);
    if (r == 0 && !nf_ho_peer_trusted(fd))
        r = -EPERM;
    int byte = r == 0 && nf_ho_send(fd, m, NF_HO_TENURE_SIZE(m->key_len)) == 0 ? nf_ho_answer(fd, wait_ms) : 0;
    *reply = byte > 0 ? (char)byte : 0;
    (void)nf_sys.close(fd);
    return r;
}
