/*
 * The configuration: environment variables NETFLOCK_*, and /etc/netflock.conf, read once a process.
 *
 * Two steps, because a program that locks nothing of ours must not even open a file: the prefixes come first (from
 * the environment if they are there), all the rest with the first call on a file under one of them. A set-uid
 * program reads only the file, which must then belong to root and be writable by nobody else.
 */
#ifndef NF_BASE_CONFIG_H
#define NF_BASE_CONFIG_H

#include "base/log.h"
#include "base/url.h"

#include <stdbool.h>
#include <stddef.h>

enum nf_on_outage { NF_OUTAGE_BLOCK, NF_OUTAGE_ERROR, NF_OUTAGE_LOCAL };
enum nf_keeper_mode { NF_KEEPER_AUTO, NF_KEEPER_ALWAYS, NF_KEEPER_NEVER };
/* What happens after Redis was restarted or has lost data: see run.lua. */
enum nf_grace { NF_GRACE_OFF, NF_GRACE_AUTO, NF_GRACE_ALWAYS };
/* Whether the server is fit to keep locks, by its version and its maxmemory-policy. */
enum nf_check { NF_CHECK_OFF, NF_CHECK_WARN, NF_CHECK_STRICT };
enum nf_local_mode { NF_LOCAL_AUTO, NF_LOCAL_REQUIRE, NF_LOCAL_OFF, NF_LOCAL_DIR };

/* Set once before another thread can see it, but for `kernel`: read and written atomically, once. */
struct nf_prefix {
    char *path;   /* as configured, absolute, no slash at the end */
    char *name;   /* what stands for it in the key */
    char *kernel; /* the kernel's own name for path (symbolic links resolved), NULL while it does not exist */
    size_t path_len, name_len;
};

/* Flat: copied as it is to the keeper. */
struct nf_policy {
    int ttl_ms;           /* of this process's leases: the configured one, or the shorter one of a container */
    int common_ttl_ms;    /* NETFLOCK_TTL, the same on all hosts */
    int container_ttl_ms; /* at most that, where locks end with a PID namespace */
    enum nf_on_outage on_outage;
    int on_lost_signal; /* 0: log only */
    enum nf_keeper_mode keeper;
    enum nf_local_mode local;
    char host_extra[65]; /* NETFLOCK_HOST, added to this host's identity */
};

struct nf_config {
    struct nf_redis_opts redis;
    struct nf_policy policy;
    struct nf_log_conf log;
    char local_dir[NF_LOG_PATH_MAX]; /* NF_LOCAL_DIR */
    bool disabled;
    /* Some value was wrong: a line was logged, and no lock call may succeed without protection. */
    bool broken;
    /* It was for want of a descriptor or of memory: read again with the next call. */
    bool short_of_resources;
    /* A wrong NETFLOCK_PREFIX: nobody can tell which files were meant. */
    bool prefix_broken;
    struct nf_prefix *prefix;
    size_t n_prefix;
};

enum nf_known { NF_KNOWN_NONE, NF_KNOWN_SOME, NF_KNOWN_NOT };

/*
 * Are prefixes configured? One getenv, and no file if the environment has them. NOT: nobody can tell now, since the file could
 * not be read for want of a descriptor or of memory; it is read again with the next call.
 */
enum nf_known nf_config_prefixes(struct nf_config **out);

/*
 * Cheap, for the constructor: is netflock perhaps configured at all? A few getenv(), at most one access(), the first time;
 * the answer stays: a program that starts without netflock goes on without it.
 */
bool nf_config_maybe(void);

/* The whole configuration; errors have been logged. Never NULL. */
const struct nf_config *nf_config(void);

/* Is this negative errno a want that may pass (EMFILE, ENFILE, ENOMEM)? */
bool nf_config_passing(int err);

/* In a forked child: another thread of the parent may have been in the middle of reading. */
void nf_config_fork_child(void);

/* Parses "500ms", "30s", "5m", "1h" into milliseconds between min and max; -EINVAL otherwise. */
int nf_parse_duration(const char *s, int min_ms, int max_ms);

/* "30s", "500ms": how people write ms. */
void nf_format_duration(long ms, char *buf, size_t size);

/* "term", "SIGTERM", "TERM", "15" -> the signal's number; -EINVAL otherwise. */
int nf_parse_signal(const char *s);

/*
 * Sets one variable by its name without NETFLOCK_ in lower case ("ttl") from text; logs one line and returns -EINVAL
 * if name or value is not allowed. `origin` (may be NULL) is put before the line: "/etc/netflock.conf:3: ".
 */
int nf_config_set(struct nf_config *c, const char *name, const char *value, const char *origin);

/* The i-th variable's name in lower case and what it allows; NULL after the last. For help texts. */
const char *nf_config_var(size_t i, const char **allowed);

#endif
