/*
 * Redis: is it there, is it one that can be relied upon, and may we do all that we need?
 */
#include "cli/doctor.h"

#include "cli/cli.h"

#include "base/clock.h"
#include "redis/conn.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PINGS 20
#define SLOW_US 20000

struct redis {
    struct findings *f;
    const struct nf_config *c;
    struct nf_conn *conn;
    char name[300];
};

static void down(struct redis *r, const char *why)
{
    found(r->f, LEVEL_FAIL, "redis.reachable", "Redis at %s: %s", r->name, why);
    remedy(r->f, "look at the server, the network, and NETFLOCK_URL");
    r->f->no_redis = true;
    nf_conn_close(r->conn);
    r->conn = NULL;
}

/* The reply to one command, to be freed; NULL when there is none: then the connection is gone, and that was said. */
static redisReply *ask(struct redis *r, const struct nf_cmd *cmd)
{
    redisReply *reply = NULL;
    int64_t deadline = nf_now_ms() + r->c->redis.timeout_ms;
    int err = r->conn ? nf_conn_send(r->conn, cmd, 1, deadline) : -1;
    if (err == 0)
        err = nf_conn_reply(r->conn, deadline, &reply);
    if (err < 0 && r->conn)
        down(r, "it gave no answer");
    return err < 0 ? NULL : reply;
}

static redisReply *ask_word(struct redis *r, const char *verb)
{
    struct nf_cmd cmd = {0};
    nf_cmd_str(&cmd, verb);
    return ask(r, &cmd);
}

static int64_t now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static int by_size(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left;
    int64_t b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* Whoever may not PING is answered as fast. */
static void say_latency(struct redis *r)
{
    int64_t took[PINGS];
    for (size_t i = 0; i < PINGS; i++) {
        int64_t start = now_us();
        redisReply *reply = ask_word(r, "PING");
        if (!reply)
            return;
        took[i] = now_us() - start;
        freeReplyObject(reply);
    }
    qsort(took, PINGS, sizeof took[0], by_size);
    int64_t median = (took[PINGS / 2 - 1] + took[PINGS / 2]) / 2;
    found(r->f, median > SLOW_US ? LEVEL_WARN : LEVEL_OK, "redis.latency", "a round trip takes %" PRId64 ".%03" PRId64 " ms (median of %d)",
          median / 1000, median % 1000, PINGS);
    if (median > SLOW_US)
        remedy(r->f, "a lock and its unlock take two of them");
}

/* A field of INFO into buf; "" if it is not there. */
static const char *field(const char *info, const char *name, char *buf, size_t size)
{
    size_t len = strlen(name);
    buf[0] = 0;
    for (const char *p = info; p; p = strchr(p, '\n')) {
        p += *p == '\n';
        if (strncmp(p, name, len) != 0 || p[len] != ':')
            continue;
        (void)snprintf(buf, size, "%.*s", (int)strcspn(p + len + 1, "\r\n"), p + len + 1);
        break;
    }
    return buf;
}

static void say_version(struct redis *r, const char *info)
{
    char version[64];
    char mode[64];
    (void)field(info, "redis_version", version, sizeof version);
    bool old = strtol(version, NULL, 10) < 6;
    found(r->f, old ? LEVEL_FAIL : LEVEL_OK, "redis.version", "Redis %s", *version ? version : "of a version that it does not tell");
    if (old)
        remedy(r->f, "6.0 or later is needed");
    if (strcmp(field(info, "redis_mode", mode, sizeof mode), "cluster") == 0) {
        found(r->f, LEVEL_FAIL, "redis.mode", "it is a Redis Cluster, which is not supported");
        remedy(r->f, "a server of its own");
    }
}

static void say_role(struct redis *r, const char *info)
{
    char role[64];
    char replicas[64];
    if (strcmp(field(info, "role", role, sizeof role), "master") != 0) {
        found(r->f, LEVEL_FAIL, "redis.role", "it is a replica (role %s), which takes no locks", role);
        remedy(r->f, "NETFLOCK_URL must name the master");
        return;
    }
    found(r->f, LEVEL_OK, "redis.role", "master");
    bool some = strtol(field(info, "connected_slaves", replicas, sizeof replicas), NULL, 10) > 0;
    found(r->f, LEVEL_OK, "redis.replicas", "%s replicas%s", some ? replicas : "no",
          some ? "; one that takes over may not know the latest locks" : "");
}

static void say_persistence(struct redis *r, const char *info)
{
    char aof[64];
    char status[64];
    bool kept = strcmp(field(info, "aof_enabled", aof, sizeof aof), "1") == 0;
    if (strcmp(field(info, "rdb_last_bgsave_status", status, sizeof status), "err") == 0) {
        found(r->f, LEVEL_WARN, "redis.persistence", "its last snapshot failed: it may refuse to write (MISCONF)");
        remedy(r->f, "look at its log");
    } else if (!kept && r->c->redis.grace == NF_GRACE_OFF) {
        found(r->f, LEVEL_WARN, "redis.persistence",
              "no append-only file: a restart forgets locks, and NETFLOCK_GRACE=off lets others in at once");
        remedy(r->f, "appendonly yes, or NETFLOCK_GRACE=auto");
    } else {
        found(r->f, LEVEL_OK, "redis.persistence", "%s",
              kept ? "append-only file" : "no append-only file: after a restart, holders take their locks back first (NETFLOCK_GRACE)");
    }
}

static void say_eviction(struct redis *r, const char *info)
{
    char policy[64];
    char max[64];
    (void)field(info, "maxmemory_policy", policy, sizeof policy);
    bool limited = strtoull(field(info, "maxmemory", max, sizeof max), NULL, 10) > 0;
    if (!*policy || strcmp(policy, "noeviction") == 0) {
        found(r->f, LEVEL_OK, "redis.eviction", "maxmemory-policy %s", *policy ? policy : "is not told");
        return;
    }
    found(r->f, limited ? LEVEL_FAIL : LEVEL_WARN, "redis.eviction", "maxmemory-policy %s: %s", policy,
          limited ? "when its memory is full, it throws locks away" : "it would throw locks away, once maxmemory is set");
    remedy(r->f, "maxmemory-policy noeviction");
}

/*
 * Asks in a script, which is what a user with just enough rights can do: `acl_check_cmd` says what the user may, and does nothing.
 * ARGV: what a key begins with. A command that goes with no key, and a key that goes with no command, is lacking.
 */
static const char acl_script[] =
    "if not redis.acl_check_cmd then return 'unknown' end\n"
    "local file = ARGV[1]\n"
    "local keys = {file, 'netflock:{' .. file .. '}:queue', 'netflock:waits:p0'}\n"
    "local names = {'~lock:*', '~netflock:{lock:*', '~netflock:waits:*'}\n"
    "local args = {exists={}, set={'v'}, get={}, zadd={'1','m'}, pttl={}, pexpire={'1'}, zrem={'m'}, type={}, zscore={'m'}, del={},\n"
    "  zremrangebyscore={'0','1'}, zrange={'0','1'}, rpush={'v'}, zrank={'m'}, expire={'1'}, incr={}, zrangebyscore={'0','1'},\n"
    "  pexpireat={'1'}, zrangebylex={'-','+'}, zrevrangebylex={'+','-'}, hset={'f','v'}, hget={'f'}, hdel={'f'}, hvals={}, blpop={'1'}}\n"
    "local any, lacks, order = {}, {}, {}\n"
    "for verb in pairs(args) do order[#order + 1] = verb end\n"
    "table.sort(order)\n"
    "local function may(...) local ok, r = pcall(redis.acl_check_cmd, ...) return ok and r end\n"
    "for _, verb in ipairs(order) do\n"
    "  local some = false\n"
    "  for i, key in ipairs(keys) do if may(verb, key, unpack(args[verb])) then some = true any[i] = true end end\n"
    "  if not some then lacks[#lacks + 1] = '+' .. verb end\n"
    "end\n"
    "for i, name in ipairs(names) do if not any[i] then lacks[#lacks + 1] = name end end\n"
    "if not may('evalsha', 'x', '0') then lacks[#lacks + 1] = '+evalsha' end\n"
    "if not may('time') then lacks[#lacks + 1] = '+time' end\n"
    "if not may('info', 'server') then lacks[#lacks + 1] = '+info' end\n"
    "return table.concat(lacks, ' ')";

static void say_rights(struct redis *r)
{
    char file[1200];
    struct nf_cmd cmd = {0};
    (void)snprintf(file, sizeof file, "lock:%.1000s/x", r->c->n_prefix ? r->c->prefix[0].name : "");
    nf_cmd_str(&cmd, "EVAL");
    nf_cmd_str(&cmd, acl_script);
    nf_cmd_str(&cmd, "0");
    nf_cmd_str(&cmd, file);
    redisReply *reply = ask(r, &cmd);
    const char *lacks = reply && (reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_ERROR) ? reply->str : "unknown";
    bool refused = reply && reply->type == REDIS_REPLY_ERROR;
    if (refused && strncmp(lacks, "NOPERM", 6) == 0) {
        found(r->f, LEVEL_FAIL, "redis.acl", "this user of Redis may not run scripts: %.150s", lacks);
        remedy(r->f, "the rights that it needs are in netflock(7)");
    } else if (refused || strcmp(lacks, "unknown") == 0) {
        found(r->f, LEVEL_OK, "redis.acl", "what this user of Redis may do cannot be asked (Redis 7.0 can)");
    } else if (!*lacks) {
        found(r->f, LEVEL_OK, "redis.acl", "this user of Redis may do all that is needed");
    } else if (strcmp(lacks, "+info") == 0) {
        found(r->f, LEVEL_WARN, "redis.acl", "this user of Redis lacks +info: there is no grace after a restart");
        remedy(r->f, "ACL SETUSER ... +info");
    } else {
        found(r->f, LEVEL_FAIL, "redis.acl", "this user of Redis lacks %s", lacks);
        remedy(r->f, "ACL SETUSER ... %s", lacks);
    }
    freeReplyObject(reply);
}

/* Information only: nothing depends on it. */
static void say_clock(struct redis *r)
{
    redisReply *reply = ask_word(r, "TIME");
    if (reply && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 && reply->element[0]->type == REDIS_REPLY_STRING &&
        reply->element[1]->type == REDIS_REPLY_STRING) {
        int64_t ahead = strtoll(reply->element[0]->str, NULL, 10) % 1000000000000 * 1000 +
                        strtoll(reply->element[1]->str, NULL, 10) / 1000 - nf_wall_ms();
        found(r->f, LEVEL_OK, "redis.clock", "its clock is %" PRId64 " ms %s ours, which does not matter", ahead < 0 ? -ahead : ahead,
              ahead < 0 ? "behind" : "ahead of");
    }
    freeReplyObject(reply);
}

static void say_server(struct redis *r)
{
    redisReply *reply = ask_word(r, "INFO");
    if (!reply)
        return;
    if (reply->type == REDIS_REPLY_STRING) {
        say_version(r, reply->str);
        say_role(r, reply->str);
        say_persistence(r, reply->str);
        say_eviction(r, reply->str);
    } else if (reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, "NOPERM", 6) == 0) {
        found(r->f, LEVEL_WARN, "redis.info", "INFO is not answered (%.100s): version, role and eviction are not known", reply->str);
        remedy(r->f, "ACL SETUSER ... +info");
    } else {
        down(r, reply->type == REDIS_REPLY_ERROR ? reply->str : "it gave an answer of an unknown form to INFO");
    }
    freeReplyObject(reply);
}

void doctor_redis(struct findings *f, const struct nf_config *c, bool thorough)
{
    struct redis r = {.f = f, .c = c};
    struct nf_redis_opts opts = c->redis;
    char why[256] = "";
    int err = 0;
    opts.grace = NF_GRACE_OFF; /* INFO is asked for below */
    opts.check = NF_CHECK_OFF;
    nf_redis_name(&opts, r.name, sizeof r.name);
    r.conn = nf_conn_open(&opts, nf_now_ms() + opts.timeout_ms, &err, why, sizeof why);
    if (!r.conn) {
        down(&r, why);
        return;
    }
    found(f, LEVEL_OK, "redis.reachable", "Redis at %s answers", r.name);
    say_server(&r);
    if (r.conn)
        say_rights(&r);
    if (r.conn && thorough)
        say_latency(&r);
    if (r.conn && thorough)
        say_clock(&r);
    nf_conn_close(r.conn);
}
