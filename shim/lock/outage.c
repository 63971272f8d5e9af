/*
 * See outage.h.
 */
#include "lock/outage.h"

#include "base/log.h"
#include "base/sleep.h"

#include <bsd/stdlib.h>
#include <stdatomic.h>
#include <stdbool.h>

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
