/*
 * Host names, with a deadline that getaddrinfo() does not have.
 */
#ifndef NF_REDIS_RESOLVE_H
#define NF_REDIS_RESOLVE_H

#include <netdb.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define NF_ADDRS_MAX 8
/* The errno that stands for "this name does not resolve". */
#define EAI_UNKNOWN ENXIO

struct nf_addrs {
    size_t n;
    struct sockaddr_storage addr[NF_ADDRS_MAX];
    socklen_t len[NF_ADDRS_MAX];
};

/*
 * The addresses of host:port before deadline_ms (CLOCK_BOOTTIME): 0, -EAI_UNKNOWN, -ETIMEDOUT, -ENOMEM, -EAGAIN.
 * A numeric address takes no thread; a name is looked up in a detached thread, which may outlive a call that gave up.
 */
int nf_resolve(const char *host, uint16_t port, int64_t deadline_ms, struct nf_addrs *out);

/*
 * The same without looking a name up: what it stood for last time, or -EAGAIN. Needs neither a thread nor malloc(), so
 * a signal handler that has interrupted the program's malloc() may call it.
 */
int nf_resolve_known(const char *host, uint16_t port, struct nf_addrs *out);

#endif
