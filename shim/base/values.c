/*
 * The variables: for each its name, what it allows, and how its text becomes a value. One table, which the reading
 * of the environment, of the file, and the error message share.
 */
#include "base/config.h"

#include "base/sys.h"

#include <bsd/string.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int nf_parse_duration(const char *s, int min_ms, int max_ms)
{
    static const struct {
        const char *unit;
        long ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};
    long v = 0;
    const char *p = s;
    for (; *p >= '0' && *p <= '9' && p - s < 9; p++)
        v = v * 10 + (*p - '0');
    if (p == s)
        return -EINVAL;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(p, units[i].unit) == 0) {
            v *= units[i].ms;
            return v < min_ms || v > max_ms ? -EINVAL : (int)v;
        }
    return -EINVAL;
}

void nf_format_duration(long ms, char *buf, size_t size)
{
    if (ms < 10000 && ms % 1000 != 0)
        (void)snprintf(buf, size, "%ldms", ms);
    else if (ms < 120000)
        (void)snprintf(buf, size, "%lds", ms / 1000);
    else if (ms < 7200000)
        (void)snprintf(buf, size, "%ldm%02lds", ms / 60000, ms / 1000 % 60);
    else
        (void)snprintf(buf, size, "%ldh%02ldm", ms / 3600000, ms / 60000 % 60);
}

/* glibc's own table, sigabbrev_np(), is too young (2.32). */
static const struct {
    const char *name;
    int sig;
} signals[] = {{"HUP", SIGHUP},   {"INT", SIGINT},   {"QUIT", SIGQUIT}, {"ABRT", SIGABRT}, {"KILL", SIGKILL},
               {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"ALRM", SIGALRM}, {"TERM", SIGTERM}, {"STOP", SIGSTOP},
               {"CONT", SIGCONT}, {"IO", SIGIO},     {"PWR", SIGPWR}};

int nf_parse_signal(const char *s)
{
    char *end;
    long n = strtol(s, &end, 10);
    if (end != s && *end == 0)
        return n > 0 && n < _NSIG ? (int)n : -EINVAL;
    if (strncasecmp(s, "SIG", 3) == 0)
        s += 3;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        if (strcasecmp(signals[i].name, s) == 0)
            return signals[i].sig;
    return -EINVAL;
}

bool nf_config_passing(int err)
{
    return err == -EMFILE || err == -ENFILE || err == -ENOMEM;
}

/* Why a file could not be used, without strerror()'s locale. */
static const char *reason(int err)
{
    switch (err) {
    case -ENOENT:
        return ": no such file";
    case -EACCES:
    case -EPERM:
        return ": permission denied";
    case -EISDIR:
        return ": it is a directory";
    case -E2BIG:
        return ": the file is too long";
    case -ENODATA:
        return ": the file is empty";
    case -EMFILE:
    case -ENFILE:
        return ": no descriptor left";
    case -EINVAL:
        return "";
    default:
        return ": the file cannot be read";
    }
}

/* Which of the words is s? -EINVAL if none. */
static int one_of(const char *s, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(s, words[i]) == 0)
            return i;
    return -EINVAL;
}

static int set_url(struct nf_config *c, const char *v)
{
    char kept[sizeof c->redis.password];
    /* The password file may have been read before the URL; a URL without a password must not drop it. */
    (void)strlcpy(kept, c->redis.password, sizeof kept);
    int r = nf_url_parse(v, &c->redis);
    if (r == 0 && !c->redis.password[0])
        (void)strlcpy(c->redis.password, kept, sizeof c->redis.password);
    explicit_bzero(kept, sizeof kept);
    return r;
}

static int set_password_file(struct nf_config *c, const char *v)
{
    char buf[sizeof c->redis.password];
    if (v[0] != '/')
        return -EINVAL;
    int fd = nf_sys.open(v, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
    if (fd < 0)
        return fd;
    ssize_t n = nf_sys.read(fd, buf, sizeof buf);
    (void)nf_sys.close(fd);
    if (n < 0)
        return (int)n;
    if ((size_t)n == sizeof buf)
        return -E2BIG;
    while (n > 0 && (buf[n - 1] == '\n' || buf[n - 1] == '\r'))
        n--;
    if (n == 0 || memchr(buf, 0, (size_t)n))
        return -ENODATA;
    memcpy(c->redis.password, buf, (size_t)n);
    c->redis.password[n] = 0;
    explicit_bzero(buf, sizeof buf);
    return 0;
}

static int set_ttl(struct nf_config *c, const char *v)
{
    int ms = nf_parse_duration(v, 100, 24 * 3600000);
    c->policy.common_ttl_ms = ms < 0 ? c->policy.common_ttl_ms : ms;
    return ms < 0 ? ms : 0;
}

static int set_container_ttl(struct nf_config *c, const char *v)
{
    int ms = strcmp(v, "off") == 0 ? INT_MAX : nf_parse_duration(v, 100, 24 * 3600000);
    c->policy.container_ttl_ms = ms < 0 ? c->policy.container_ttl_ms : ms;
    return ms < 0 ? ms : 0;
}

static int set_timeout(struct nf_config *c, const char *v)
{
    int ms = nf_parse_duration(v, 10, 300000);
    c->redis.timeout_ms = ms < 0 ? c->redis.timeout_ms : ms;
    return ms < 0 ? ms : 0;
}

static int set_on_outage(struct nf_config *c, const char *v)
{
    int i = one_of(v, (const char *const[]){"block", "error", "local", NULL});
    c->policy.on_outage = i < 0 ? c->policy.on_outage : (enum nf_on_outage)i;
    return i < 0 ? i : 0;
}

static int set_grace(struct nf_config *c, const char *v)
{
    int i = one_of(v, (const char *const[]){"off", "auto", "always", NULL});
    c->redis.grace = i < 0 ? c->redis.grace : i;
    return i < 0 ? i : 0;
}

static int set_check(struct nf_config *c, const char *v)
{
    int i = one_of(v, (const char *const[]){"off", "warn", "strict", NULL});
    c->redis.check = i < 0 ? c->redis.check : i;
    return i < 0 ? i : 0;
}

static int set_on_lost(struct nf_config *c, const char *v)
{
    int sig = strcmp(v, "log") == 0 ? 0 : nf_parse_signal(v);
    c->policy.on_lost_signal = sig < 0 ? c->policy.on_lost_signal : sig;
    return sig < 0 ? sig : 0;
}

static int set_keeper(struct nf_config *c, const char *v)
{
    int i = one_of(v, (const char *const[]){"auto", "always", "never", NULL});
    c->policy.keeper = i < 0 ? c->policy.keeper : (enum nf_keeper_mode)i;
    return i < 0 ? i : 0;
}

static int set_local(struct nf_config *c, const char *v)
{
    if (v[0] == '/' && strlcpy(c->local_dir, v, sizeof c->local_dir) < sizeof c->local_dir) {
        c->policy.local = NF_LOCAL_DIR;
        return 0;
    }
    int i = one_of(v, (const char *const[]){"auto", "require", "off", NULL});
    c->policy.local = i < 0 ? c->policy.local : (enum nf_local_mode)i;
    return i < 0 ? i : 0;
}

static int set_host(struct nf_config *c, const char *v)
{
    size_t len = strlen(v);
    if (len == 0 || len >= sizeof c->policy.host_extra ||
        strspn(v, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != len)
        return -EINVAL;
    memcpy(c->policy.host_extra, v, len + 1);
    return 0;
}

static int set_log(struct nf_config *c, const char *v)
{
    if (strcmp(v, "stderr") == 0 || strcmp(v, "syslog") == 0) {
        c->log.where = v[1] == 't' ? 's' : 'y';
        return 0;
    }
    if (v[0] != '/' || strlcpy(c->log.path, v, sizeof c->log.path) >= sizeof c->log.path)
        return -EINVAL;
    c->log.where = 'f';
    return 0;
}

static int set_log_level(struct nf_config *c, const char *v)
{
    int i = one_of(v, (const char *const[]){"error", "warn", "info", "debug", NULL});
    c->log.level = i < 0 ? c->log.level : (enum nf_log_level)i;
    return i < 0 ? i : 0;
}

static int set_disable(struct nf_config *c, const char *v)
{
    int i = one_of(v, (const char *const[]){"0", "1", "no", "yes", NULL});
    if (i < 0)
        return i;
    c->disabled = i & 1;
    return 0;
}

/* The prefixes are parsed in prefix.c, before the rest: here they are only known by name. */
static int set_prefix(struct nf_config *c, const char *v)
{
    (void)c;
    (void)v;
    return 0;
}

static const struct var {
    const char *name;
    int (*set)(struct nf_config *c, const char *value);
    const char *allowed;
} vars[] = {
    {"prefix", set_prefix, "absolute paths, each with an optional =NAME, separated by colons"},
    {"url", set_url, "redis://[user[:password]@]host[:port][/db] or unix:///path[?db=N]"},
    {"password_file", set_password_file, "the absolute path of a readable file that holds the password"},
    {"ttl", set_ttl, "a duration from 100ms to 24h, such as 30s or 500ms"},
    {"container_ttl", set_container_ttl, "a duration from 100ms to 24h, such as 10s, or off"},
    {"connect_timeout", set_timeout, "a duration from 10ms to 5m, such as 2s or 500ms"},
    {"on_outage", set_on_outage, "block, error or local"},
    {"grace", set_grace, "auto, always or off"},
    {"check", set_check, "strict, warn or off"},
    {"on_lost", set_on_lost, "log, or a signal such as term, kill or USR1"},
    {"keeper", set_keeper, "auto, always or never"},
    {"local", set_local, "auto, require, off or the absolute path of a folder of this host"},
    {"host", set_host, "1 to 64 letters, digits, dots, dashes or underscores"},
    {"log", set_log, "stderr, syslog or an absolute path"},
    {"log_level", set_log_level, "error, warn, info or debug"},
    {"disable", set_disable, "0, 1, no or yes"},
};

const char *nf_config_var(size_t i, const char **allowed)
{
    if (i >= sizeof vars / sizeof vars[0])
        return NULL;
    *allowed = vars[i].allowed;
    return vars[i].name;
}

int nf_config_set(struct nf_config *c, const char *name, const char *value, const char *origin)
{
    char shown[256];
    char upper[64];
    origin = origin ? origin : "";
    for (size_t i = 0; i < sizeof vars / sizeof vars[0]; i++) {
        if (strcmp(vars[i].name, name) != 0)
            continue;
        int r = vars[i].set(c, value);
        if (r == 0)
            return 0;
        if (vars[i].set == set_url)
            nf_url_mask(value, shown, sizeof shown);
        else if (vars[i].set == set_password_file && value[0] != '/')
            (void)strlcpy(shown, "***", sizeof shown); /* perhaps the password itself, put there by mistake */
        else
            (void)strlcpy(shown, value, sizeof shown);
        size_t n = 0;
        for (; name[n] && n + 1 < sizeof upper; n++)
            upper[n] = name[n] >= 'a' && name[n] <= 'z' ? (char)(name[n] - 32) : name[n];
        upper[n] = 0;
        c->broken = true;
        c->short_of_resources = c->short_of_resources || nf_config_passing(r);
        nf_log(NF_LOG_ERROR,
               "%sNETFLOCK_%s=\"%s\" is not allowed%s; allowed: %s. Locks under the prefix fail (ENOLCK) until this is mended", origin,
               upper, shown, reason(r), vars[i].allowed);
        return -EINVAL;
    }
    c->broken = true;
    nf_log(NF_LOG_ERROR, "%sunknown setting \"%s\"; see netflock.conf(5). Locks under the prefix fail (ENOLCK) until this is mended",
           origin, name);
    return -EINVAL;
}
