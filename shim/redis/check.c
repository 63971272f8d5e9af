/*
 * See check.h.
 */
#include "redis/check.h"

#include "base/config.h"
#include "base/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define OLDEST 6

static const char old[] = "the server is older than Redis 6.0 (NETFLOCK_CHECK=strict)";
static const char evicts[] = "the server may evict locks: its maxmemory-policy is not noeviction (NETFLOCK_CHECK=strict)";

static atomic_bool done;

bool nf_check_due(const struct nf_redis_opts *opts)
{
    return opts->check == NF_CHECK_STRICT || (opts->check == NF_CHECK_WARN && !atomic_load_explicit(&done, memory_order_relaxed));
}

/* The value of a line "NAME:VALUE" of the answer; "" if it is not there. Up to size - 1 bytes of it. */
static void field(const redisReply *info, const char *name, char *value, size_t size)
{
    size_t len = strlen(name);
    const char *p = info->type == REDIS_REPLY_STRING ? info->str : NULL;
    while (p && strncmp(p, name, len) != 0) {
        p = strchr(p, '\n');
        p = p ? p + 1 : NULL;
    }
    size_t n = p ? strcspn(p + len, "\r\n") : 0;
    n = n < size ? n : size - 1;
    if (n)
        memcpy(value, p + len, n);
    value[n] = 0;
}

const char *nf_check(const struct nf_redis_opts *opts, const redisReply *server, const redisReply *memory)
{
    char version[24];
    char policy[32];
    char name[400];
    field(server, "redis_version:", version, sizeof version);
    field(memory, "maxmemory_policy:", policy, sizeof policy);
    const char *dot = strchr(version, '.');
    bool is_old = dot == version + 1 && version[0] >= '0' && version[0] < '0' + OLDEST;
    bool may_evict = policy[0] && strcmp(policy, "noeviction") != 0;
    if (opts->check == NF_CHECK_STRICT)
        return is_old ? old : may_evict ? evicts : NULL;
    if (atomic_exchange(&done, true) || (!is_old && !may_evict))
        return NULL;
    nf_redis_name(opts, name, sizeof name);
    if (is_old)
        nf_log(NF_LOG_WARN, "Redis at %s is version %s: 6.0 is the oldest that will do (NETFLOCK_CHECK)", name, version);
    if (may_evict)
        nf_log(NF_LOG_WARN,
               "Redis at %s may evict locks, which are lost then: its maxmemory-policy is %s and should be noeviction (NETFLOCK_CHECK)",
               name, policy);
    return NULL;
}
