/*
 * getaddrinfo() in a thread of its own: see resolve.h.
 *
 * The job belongs to both threads and is freed by whichever leaves it last (refs, guarded by job->mu).
 */
#include "redis/resolve.h"

#include "base/clock.h"
#include "base/mutex.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job {
    struct nf_mutex mu;
    pthread_cond_t done_cond;
    int refs;
    bool done;
    int err;
    char host[256];
    char port[8];
    struct nf_addrs addrs;
};

static void copy_addrs(struct nf_addrs *out, const struct addrinfo *list)
{
    out->n = 0;
    for (const struct addrinfo *a = list; a && out->n < NF_ADDRS_MAX; a = a->ai_next) {
        if (a->ai_addrlen > sizeof out->addr[0])
            continue;
        memcpy(&out->addr[out->n], a->ai_addr, a->ai_addrlen);
        out->len[out->n++] = a->ai_addrlen;
    }
}

static int look_up(const char *host, const char *port, int flags, struct nf_addrs *out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};
    struct addrinfo *list = NULL;
    int r = getaddrinfo(host, port, &hints, &list);
    if (r != 0)
        return r == EAI_MEMORY ? -ENOMEM : -EAI_UNKNOWN;
    copy_addrs(out, list);
    freeaddrinfo(list);
    return out->n ? 0 : -EAI_UNKNOWN;
}

/* Gives up one of the two claims; called with job->mu held, which it releases. */
static void leave(struct job *job)
{
    nf_mutex_owed(&job->mu);
    bool last = --job->refs == 0;
    nf_mutex_unlock(&job->mu);
    if (last) {
        nf_mutex_destroy(&job->mu);
        pthread_cond_destroy(&job->done_cond);
        free(job);
    }
}

static void *run(void *arg)
{
    struct job *job = arg;
    struct nf_addrs addrs;
    int r = look_up(job->host, job->port, 0, &addrs);
    nf_mutex_lock(&job->mu);
    job->err = r;
    job->addrs = addrs;
    job->done = true;
    pthread_cond_signal(&job->done_cond);
    leave(job);
    return NULL;
}

static struct job *start(const char *host, const char *port)
{
    pthread_t thread;
    pthread_attr_t attr;
    pthread_condattr_t cattr;
    struct job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    nf_mutex_init(&job->mu);
    pthread_condattr_init(&cattr);
    pthread_condattr_setclock(&cattr, CLOCK_MONOTONIC);
    pthread_cond_init(&job->done_cond, &cattr);
    pthread_condattr_destroy(&cattr);
    job->refs = 2;
    (void)snprintf(job->host, sizeof job->host, "%s", host);
    (void)snprintf(job->port, sizeof job->port, "%s", port);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    int r = pthread_create(&thread, &attr, run, job);
    pthread_attr_destroy(&attr);
    if (r != 0) {
        free(job);
        return NULL;
    }
    return job;
}

/* What a name stood for last. A spin lock that nobody waits for: who does not get it does without. */
static atomic_flag busy = ATOMIC_FLAG_INIT;
static struct nf_addrs last;
static char last_host[256];
static uint16_t last_port;

static void remember(const char *host, uint16_t port, const struct nf_addrs *addrs)
{
    if (atomic_flag_test_and_set_explicit(&busy, memory_order_acquire))
        return;
    (void)snprintf(last_host, sizeof last_host, "%s", host);
    last_port = port;
    last = *addrs;
    atomic_flag_clear_explicit(&busy, memory_order_release);
}

static bool recall(const char *host, uint16_t port, struct nf_addrs *out)
{
    if (atomic_flag_test_and_set_explicit(&busy, memory_order_acquire))
        return false;
    bool known = last.n > 0 && last_port == port && strcmp(last_host, host) == 0;
    if (known)
        *out = last;
    atomic_flag_clear_explicit(&busy, memory_order_release);
    return known;
}

/* A numeric address; not by getaddrinfo(), which allocates. */
static bool numeric(const char *host, uint16_t port, struct nf_addrs *out)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    bool is_v4 = inet_pton(AF_INET, host, &v4.sin_addr) == 1;
    if (!is_v4 && inet_pton(AF_INET6, host, &v6.sin6_addr) != 1)
        return false;
    out->n = 1;
    out->len[0] = is_v4 ? sizeof v4 : sizeof v6;
    memcpy(&out->addr[0], is_v4 ? (const void *)&v4 : (const void *)&v6, out->len[0]);
    return true;
}

int nf_resolve_known(const char *host, uint16_t port, struct nf_addrs *out)
{
    return numeric(host, port, out) || recall(host, port, out) ? 0 : -EAGAIN;
}

int nf_resolve(const char *host, uint16_t port, int64_t deadline_ms, struct nf_addrs *out)
{
    char service[8];
    (void)snprintf(service, sizeof service, "%u", port);
    /* A link-local IPv6 address with its interface is numeric too, but takes getaddrinfo(). */
    if (numeric(host, port, out) || (strchr(host, '%') && look_up(host, service, AI_NUMERICHOST, out) == 0))
        return 0;
    struct job *job = start(host, service);
    if (!job)
        return -EAGAIN;
    struct timespec until;
    int left = nf_left_ms(deadline_ms);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += left / 1000;
    until.tv_nsec += (long)(left % 1000) * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    nf_mutex_lock(&job->mu);
    int r = 0;
    while (!job->done && r == 0)
        r = nf_mutex_wait(&job->mu, &job->done_cond, &until);
    r = job->done ? job->err : -ETIMEDOUT;
    if (r == 0)
        *out = job->addrs;
    leave(job);
    if (r == 0)
        remember(host, port, out);
    return r;
}
