/*
 * Making and reading tokens: see identity.h.
 */
#include "base/identity.h"

#include "base/clock.h"
#include "base/sys.h"

#include <bsd/stdlib.h>
#include <bsd/string.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/utsname.h>

#define BOOT_LEN 32

/* The boot id without its dashes. Written once, by the first thread that has read it. */
static char boot_id[BOOT_LEN + 1];
static atomic_int boot_state;
enum { BOOT_UNKNOWN, BOOT_WRITING, BOOT_KNOWN };

static int get_boot_id(char out[BOOT_LEN + 1])
{
    char text[64];
    size_t n = 0;
    int unknown = BOOT_UNKNOWN;
    if (atomic_load_explicit(&boot_state, memory_order_acquire) == BOOT_KNOWN) {
        memcpy(out, boot_id, BOOT_LEN + 1);
        return 0;
    }
    int fd = nf_sys.open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    ssize_t r = nf_sys.read(fd, text, sizeof text);
    (void)nf_sys.close(fd);
    for (ssize_t i = 0; i < r && n < BOOT_LEN; i++)
        if (strchr("0123456789abcdef", text[i]) && text[i])
            out[n++] = text[i];
    if (n != BOOT_LEN)
        return -EIO;
    out[n] = 0;
    if (atomic_compare_exchange_strong(&boot_state, &unknown, BOOT_WRITING)) {
        memcpy(boot_id, out, BOOT_LEN + 1);
        atomic_store_explicit(&boot_state, BOOT_KNOWN, memory_order_release);
    }
    return 0;
}

/* Copies a word into a token's field: what is not plainly printable, or would end the field, becomes '_'. */
static void field(char *dst, size_t room, const char *src)
{
    size_t n = 0;
    for (; *src && n + 1 < room; src++) {
        unsigned char c = (unsigned char)*src;
        dst[n++] = c <= ' ' || c >= 0x7f || c == ':' || c == '"' || c == '\\' ? '_' : (char)c;
    }
    if (n == 0)
        dst[n++] = '_';
    dst[n] = 0;
}

int nf_token_make(char *buf, const char *host_extra, dev_t dev, ino_t ino)
{
    char text[33];
    uint64_t nonce[2];
    arc4random_buf(nonce, sizeof nonce);
    (void)snprintf(text, sizeof text, "%016llx%016llx", (unsigned long long)nonce[0], (unsigned long long)nonce[1]);
    return nf_token_make_as(buf, host_extra, dev, ino, text);
}

int nf_token_make_as(char *buf, const char *host_extra, dev_t dev, ino_t ino, const char *nonce)
{
    struct utsname uts;
    char comm[17] = "";
    char host[NF_FIELD_MAX];
    char command[NF_FIELD_MAX];
    char boot[BOOT_LEN + 1];
    int r = get_boot_id(boot);
    if (r < 0)
        return r;
    /* A process may change both its own name and its host's: asked each time. */
    (void)prctl(PR_GET_NAME, comm, 0, 0, 0);
    field(command, sizeof command, comm);
    field(host, sizeof host, uname(&uts) == 0 ? uts.nodename : "");
    int identity = snprintf(buf, NF_TOKEN_MAX, "nf1:%s%s%s:%llx:%llx:", boot, *host_extra ? "-" : "", host_extra, (unsigned long long)dev,
                            (unsigned long long)ino);
    (void)snprintf(buf + identity, NF_TOKEN_MAX - (size_t)identity, "%s:%s:%d:%s:%lld", nonce, host, (int)nf_sys.getpid(), command,
                   (long long)nf_wall_ms());
    return identity;
}

int nf_token_parse(const char *token, struct nf_token_info *out)
{
    const char *start[9];
    size_t len[9];
    const char *p = token;
    if (strlen(token) >= NF_TOKEN_MAX || strncmp(token, "nf1:", 4) != 0)
        return -EINVAL;
    for (int i = 0; i < 9; i++) {
        start[i] = p;
        len[i] = strcspn(p, ":");
        p += len[i];
        if (i < 8 && *p++ != ':')
            return -EINVAL;
    }
    if (*p || len[5] >= NF_FIELD_MAX || len[7] >= NF_FIELD_MAX)
        return -EINVAL;
    char *end;
    long pid = strtol(start[6], &end, 10);
    if (end != start[6] + len[6] || len[6] == 0)
        return -EINVAL;
    long long ms = strtoll(start[8], &end, 10);
    if (*end || len[8] == 0)
        return -EINVAL;
    (void)strlcpy(out->host, start[5], len[5] + 1);
    (void)strlcpy(out->command, start[7], len[7] + 1);
    out->pid = pid;
    out->start_ms = ms;
    out->identity_len = (int)(start[4] - token);
    return 0;
}
