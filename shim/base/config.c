/*
 * Reading the environment and /etc/netflock.conf: see config.h.
 */
#include "base/config.h"

#include "base/mutex.h"
#include "base/prefix.h"
#include "base/procs.h"
#include "base/sys.h"

#include <bsd/string.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define CONF_PATH "/etc/netflock.conf"
#define CONF_MAX 65536

#define DEFAULTS                                                                                                      \
    .redis = {.host = "127.0.0.1", .port = 6379, .timeout_ms = 2000, .grace = NF_GRACE_AUTO, .check = NF_CHECK_WARN}, \
    .policy = {.ttl_ms = 30000, .common_ttl_ms = 30000, .container_ttl_ms = 10000, .on_lost_signal = SIGTERM},        \
    .log = {.level = NF_LOG_WARN, .where = 's'}

static struct nf_config config = {DEFAULTS};
/* What counts while the reading has not come to an end, for want of a descriptor: no lock call succeeds. */
static const struct nf_config unread = {DEFAULTS, .broken = true};
/*
 * 0 nothing read, 1 the prefixes are known, 2 all is. Written under mu, read without: what is known does not change any more,
 * and the rest is read by nobody but who has mu.
 */
static atomic_int stage;
static struct nf_mutex mu = NF_MUTEX_INITIALIZER;

/* The environment, which a set-uid program must not trust; NULL if name is unset or empty. */
static const char *env(const char *name)
{
    const char *v = secure_getenv(name);
    return v && *v ? v : NULL;
}

static const char *env_of(const char *var)
{
    char name[64] = "NETFLOCK_";
    size_t n = strlen(name);
    for (; *var && n + 1 < sizeof name; var++)
        name[n++] = (char)toupper((unsigned char)*var);
    name[n] = 0;
    return env(name);
}

static char *trim(char *s)
{
    s += strspn(s, " \t\r");
    size_t n = strlen(s);
    while (n > 0 && strchr(" \t\r", s[n - 1]))
        s[--n] = 0;
    return s;
}

/* One "key = value" line. The key may also be written as the variable's full name. */
static void read_line(char *line, const char *origin, bool prefix_only)
{
    char *key = trim(line);
    if (!*key || *key == '#')
        return;
    char *eq = strchr(key, '=');
    if (!eq) {
        config.broken = true;
        if (!prefix_only)
            nf_log(NF_LOG_ERROR, "%s\"key = value\" expected. Locks under the prefix fail (ENOLCK) until this is mended", origin);
        return;
    }
    *eq = 0;
    key = trim(key);
    char *value = trim(eq + 1);
    for (char *p = key; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    if (strncmp(key, "netflock_", 9) == 0)
        key += 9;
    bool is_prefix = strcmp(key, "prefix") == 0;
    if (is_prefix != prefix_only || env_of(key))
        return; /* the environment wins */
    if (is_prefix && atomic_load_explicit(&stage, memory_order_relaxed) > 0)
        return; /* known already, and in use */
    if (is_prefix)
        nf_prefix_parse(&config, value, origin);
    else
        (void)nf_config_set(&config, key, value, origin);
}

/* A privileged program must not be steered by a file that somebody else may write. */
static bool file_is_safe(int fd, const char *path)
{
    struct stat st;
    if (!getauxval(AT_SECURE))
        return true;
    if (nf_sys.fstat(fd, &st) == 0 && st.st_uid == 0 && (st.st_mode & 022) == 0)
        return true;
    config.broken = true;
    nf_log(NF_LOG_ERROR,
           "%s is not trusted by a set-uid program: it must belong to root and be writable by nobody else. Locks under its prefix fail "
           "(ENOLCK) until this is mended",
           path);
    return false;
}

/*
 * Reads the file twice over: the log settings and all the rest, then the prefixes, whose errors need the log. Of a file
 * that is not to be trusted only the prefixes are read: locks below them are refused.
 */
static void read_file(void)
{
    const char *named = env("NETFLOCK_CONF");
    const char *path = named ? named : CONF_PATH;
    int fd = nf_sys.open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
    if (fd < 0) {
        config.short_of_resources = nf_config_passing(fd);
        if (named || fd != -ENOENT) {
            config.broken = true;
            nf_log(NF_LOG_ERROR, "%s cannot be read (error %d). Locks under the prefix fail (ENOLCK) until this is mended", path, -fd);
        }
        return;
    }
    char *text = malloc(CONF_MAX);
    ssize_t n = text ? nf_sys.read(fd, text, CONF_MAX - 1) : -ENOMEM;
    bool safe = file_is_safe(fd, path);
    (void)nf_sys.close(fd);
    if (n < 0 || n == CONF_MAX - 1) {
        config.broken = true;
        config.short_of_resources = nf_config_passing((int)n);
        nf_log(NF_LOG_ERROR, "%s cannot be read, or is longer than 64 KB. Locks under the prefix fail (ENOLCK) until this is mended", path);
    }
    for (int pass = safe ? 0 : 1; pass < 2 && n > 0; pass++) {
        char line[8192];
        char origin[NF_LOG_PATH_MAX];
        const char *p = text;
        const char *end = text + n;
        for (int number = 1; p < end; number++) {
            const char *nl = memchr(p, '\n', (size_t)(end - p));
            size_t len = (size_t)((nl ? nl : end) - p);
            (void)snprintf(origin, sizeof origin, "%.900s:%d: ", path, number);
            if (len < sizeof line) {
                memcpy(line, p, len);
                line[len] = 0;
                read_line(line, origin, pass == 1);
            } else if (pass == 0) {
                config.broken = true;
                nf_log(NF_LOG_ERROR, "%sthe line is too long. Locks under the prefix fail (ENOLCK) until this is mended", origin);
            }
            p += len + 1;
        }
        if (pass == 0)
            nf_log_configure(&config.log);
    }
    if (text)
        explicit_bzero(text, CONF_MAX);
    free(text);
}

/*
 * What follows from all settings together. When PID 1 of a PID namespace is killed, nobody in it is left to give a lock back:
 * the lease is what others wait for. The grace after a restart of Redis must be as long for all: that of the longest lease.
 */
static void conclude(void)
{
    struct nf_policy *p = &config.policy;
    bool contained = p->container_ttl_ms < p->common_ttl_ms && nf_pid_namespaced();
    p->ttl_ms = contained ? p->container_ttl_ms : p->common_ttl_ms;
    (void)snprintf(config.redis.grace_arg, sizeof config.redis.grace_arg, "%d:%d", config.redis.grace == NF_GRACE_ALWAYS ? 2 : 1,
                   p->common_ttl_ms);
}

/* Environment first for where to log, so that the file's own errors go there. */
static void read_all(bool prefix_known)
{
    static const char *const first[] = {"log", "log_level"};
    const char *allowed;
    const char *name;
    const char *v;
    config.broken = config.prefix_broken;
    config.short_of_resources = false;
    for (size_t i = 0; i < 2; i++)
        if ((v = env_of(first[i])))
            (void)nf_config_set(&config, first[i], v, NULL);
    nf_log_configure(&config.log);
    read_file();
    for (size_t i = 0; (name = nf_config_var(i, &allowed)); i++)
        if (strncmp(name, "log", 3) != 0 && (v = env_of(name)))
            (void)nf_config_set(&config, name, v, NULL);
    if (!prefix_known && (v = env_of("prefix")))
        nf_prefix_parse(&config, v, "");
    conclude();
}

/* Runs step under the mutex unless `to` has been reached; all signals blocked, so that no handler can meet it. */
static void advance(int to)
{
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    nf_mutex_lock(&mu);
    int at = atomic_load_explicit(&stage, memory_order_relaxed);
    const char *prefix = env("NETFLOCK_PREFIX");
    if (at < 1 && to == 1 && prefix) {
        const char *where = env("NETFLOCK_LOG");
        /* Only a place that will do: a wrong one is reported with all the rest. */
        if (where && (*where == '/' || strcmp(where, "syslog") == 0) && nf_config_set(&config, "log", where, NULL) == 0)
            nf_log_configure(&config.log);
        nf_prefix_parse(&config, prefix, "");
        atomic_store_explicit(&stage, 1, memory_order_release);
    } else if (at < 2) {
        read_all(at == 1);
        /* A program that had no descriptor left just now may have one next time. */
        bool known = at == 1 || config.n_prefix > 0 || config.prefix_broken;
        atomic_store_explicit(&stage, !config.short_of_resources ? 2 : known ? 1 : 0, memory_order_release);
    }
    nf_mutex_unlock(&mu);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void nf_config_fork_child(void)
{
    nf_mutex_init(&mu);
}

static bool switched_off(void)
{
    const char *off = env("NETFLOCK_DISABLE");
    return off && (strcmp(off, "1") == 0 || strcmp(off, "yes") == 0);
}

bool nf_config_maybe(void)
{
    static atomic_int known; /* 0 not asked yet, 1 no, 2 perhaps */
    int k = atomic_load_explicit(&known, memory_order_relaxed);
    if (k == 0) {
        int saved = errno;
        bool maybe = !switched_off() && (env("NETFLOCK_PREFIX") || env("NETFLOCK_CONF") || access(CONF_PATH, F_OK) == 0);
        errno = saved;
        k = maybe ? 2 : 1;
        atomic_store_explicit(&known, k, memory_order_relaxed);
    }
    return k == 2;
}

enum nf_known nf_config_prefixes(struct nf_config **out)
{
    int at = atomic_load_explicit(&stage, memory_order_acquire);
    if (at < 1) {
        if (!nf_config_maybe())
            return NF_KNOWN_NONE;
        advance(1);
        at = atomic_load_explicit(&stage, memory_order_acquire);
    }
    *out = &config;
    if (at == 0)
        return NF_KNOWN_NOT;
    /* Whether all is switched off is not known before the rest is. */
    bool on = !(at == 2 && config.disabled) && (config.n_prefix > 0 || config.prefix_broken);
    return on ? NF_KNOWN_SOME : NF_KNOWN_NONE;
}

const struct nf_config *nf_config(void)
{
    if (atomic_load_explicit(&stage, memory_order_acquire) < 2)
        advance(2);
    return atomic_load_explicit(&stage, memory_order_acquire) == 2 ? &config : &unread;
}
