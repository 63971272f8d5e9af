/*
 * See outage.h.
 */
#include "lock/outage.h"

#include "base/log.h"
#include "base/sleep.h"

#include <bsd/stdlib.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static atomic_bool said;

void nf_outage_began(const struct nf_config *c, const char *why)
{
    char name[400];
    if (atomic_exchange(&said, true))
        return;
    nf_redis_name(&c->redis, name, sizeof name);
    nf_log(NF_LOG_WARN, "Redis at %s gives no usable answer: %s", name, why);
}

void nf_outage_over(const struct nf_config *c)
{
    char name[400];
    if (!atomic_load_explicit(&said, memory_order_relaxed) || !atomic_exchange(&said, false))
        return;
    nf_redis_name(&c->redis, name, sizeof name);
    nf_log(NF_LOG_WARN, "Redis at %s answers again", name);
}

/* The reasons that have been said: above, a hash of the file's name; below, one of the reason. 0: free. */
#define REASONS 8
static _Atomic uint64_t refused[REASONS];
static atomic_uint n_refused;

static uint32_t hash(const char *s, size_t len)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h ? h : 1;
}

void nf_refused(const char *key, const char *why)
{
    /* Redis 7 ends with which script it was, and where. */
    const char *end = strstr(why, " script: ");
    uint64_t reason = hash(why, end ? (size_t)(end - why) : strlen(why));
    /* A wrong type is this file's own matter; a missing right or a wrong password is that of them all. */
    if (strncmp(why, "WRONGTYPE", 9) == 0)
        reason ^= hash(key, strlen(key));
    for (size_t i = 0; i < REASONS; i++)
        if ((refused[i] & UINT32_MAX) == reason)
            return;
    refused[atomic_fetch_add(&n_refused, 1) % REASONS] = (uint64_t)hash(key, strlen(key)) << 32 | reason;
    nf_log(NF_LOG_ERROR, "no lock on %s (ENOLCK): Redis says: %s", key, why);
}

void nf_granted(const char *key)
{
    if (!atomic_load_explicit(&n_refused, memory_order_relaxed))
        return;
    uint64_t h = hash(key, strlen(key));
    for (size_t i = 0; i < REASONS; i++)
        if (refused[i] >> 32 == h)
            refused[i] = 0;
}

int nf_back_off(int *ms, const sigset_t *mask)
{
    int pause = *ms / 2 + (int)arc4random_uniform((uint32_t)*ms);
    *ms = *ms * 2 < 2000 ? *ms * 2 : 2000;
    return nf_sleep(pause, mask);
}

void nf_grace_say(const struct nf_config *c, int64_t left_ms)
{
    static atomic_bool grace_said;
    char name[400];
    if (atomic_exchange(&grace_said, true))
        return;
    nf_redis_name(&c->redis, name, sizeof name);
    nf_log(NF_LOG_WARN, "Redis at %s was restarted or has lost data: for %d ms only the old holders get their locks", name, (int)left_ms);
}

int nf_grace_pause(const struct nf_config *c, int64_t left_ms, const sigset_t *mask)
{
    nf_grace_say(c, left_ms);
    int64_t pause = left_ms < 2000 ? left_ms : 2000;
    return nf_sleep((int)pause + 1 + (int)arc4random_uniform(50), mask);
}
