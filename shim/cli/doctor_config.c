/*
 * The configuration as the library would read it here, and the files that belong to the command.
 */
#include "cli/doctor.h"

#include "cli/cli.h"
#include "cli/preload.h"

#include "base/prefix.h"
#include "base/procs.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define CAPTURE_MAX 65536
#define CONSEQUENCE ". Locks under the"

/* One line of the log: "netflock[PID]: LEVEL: TEXT. Locks under the prefix fail ..." */
static void take_line(struct findings *f, char *line)
{
    char *text = strstr(line, ": ");
    bool error = text && strncmp(text, ": error: ", 9) == 0;
    text = text ? strstr(text + 2, ": ") : NULL;
    text = text ? text + 2 : line;
    char *consequence = strstr(text, CONSEQUENCE);
    if (consequence)
        *consequence = 0;
    found(f, error ? LEVEL_FAIL : LEVEL_WARN, "config.value", "%s", text);
    remedy(f, "lock calls fail with ENOLCK until it is mended: see netflock.conf(5)");
}

/*
 * The library's own words about wrong values go to its log: for as long as it reads, standard error is a file of ours, and
 * the log that NETFLOCK_LOG names stays as it is.
 */
static const struct nf_config *capture(char *text, size_t size)
{
    const char *log = getenv("NETFLOCK_LOG");
    char *saved_log = log && (*log == '/' || strcmp(log, "syslog") == 0) ? need(strdup(log)) : NULL;
    int file = memfd_create("netflock", MFD_CLOEXEC);
    int saved = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    bool taken = file >= 0 && fcntl(file, F_SETFL, O_APPEND) == 0 && dup2(file, STDERR_FILENO) >= 0;
    if (saved_log)
        (void)setenv("NETFLOCK_LOG", "stderr", 1);
    const struct nf_config *c = nf_config();
    if (saved_log)
        (void)setenv("NETFLOCK_LOG", saved_log, 1);
    if (taken && saved >= 0)
        (void)dup2(saved, STDERR_FILENO);
    else if (taken)
        (void)close(STDERR_FILENO);
    ssize_t n = file < 0 ? 0 : pread(file, text, size - 1, 0);
    text[n > 0 ? n : 0] = 0;
    if (saved >= 0)
        (void)close(saved);
    if (file >= 0)
        (void)close(file);
    free(saved_log);
    return c;
}

static void say_source(struct findings *f)
{
    const char *named = getenv("NETFLOCK_CONF");
    const char *path = named && *named ? named : "/etc/netflock.conf";
    const char *name;
    const char *allowed;
    char list[1024] = "";
    size_t n = 0;
    for (size_t i = 0; (name = nf_config_var(i, &allowed)) && n < sizeof list - 64; i++) {
        char variable[64];
        int len = snprintf(variable, sizeof variable, "NETFLOCK_%s", name);
        for (int k = 0; k < len; k++)
            variable[k] = (char)toupper((unsigned char)variable[k]);
        const char *value = getenv(variable);
        if (value && *value)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", variable);
    }
    bool file = access(path, F_OK) == 0;
    found(f, LEVEL_OK, "config.source", "%s%s%s%s%s", *list ? list : "nothing", " from the options and the environment, ",
          file ? "the rest from " : "the rest as built in: there is no ", path, "");
}

static void say_prefixes(struct findings *f, const struct nf_config *c)
{
    for (size_t i = 0; i < c->n_prefix; i++) {
        const struct nf_prefix *p = &c->prefix[i];
        nf_prefix_resolve(&c->prefix[i]);
        found(f, p->kernel ? LEVEL_OK : LEVEL_WARN, "config.prefix", "%s: keys lock:%s/...%s", p->path_len ? p->path : "/", p->name,
              p->kernel ? "" : "; but there is no such folder");
        if (!p->kernel)
            remedy(f, "is the share mounted?");
    }
    if (c->n_prefix == 0 && !c->prefix_broken) {
        found(f, LEVEL_FAIL, "config.prefix", "no prefix is configured, so that nothing would be protected");
        remedy(f, "give --prefix, or set NETFLOCK_PREFIX");
    }
}

/* As the library judges the folder of NETFLOCK_LOCAL. */
static void say_local(struct findings *f, const struct nf_config *c)
{
    struct stat st;
    if (c->policy.local != NF_LOCAL_DIR)
        return;
    if (lstat(c->local_dir, &st) < 0 && errno == ENOENT)
        found(f, LEVEL_OK, "config.local", "NETFLOCK_LOCAL: %s will be made with the first lock", c->local_dir);
    else if (lstat(c->local_dir, &st) < 0 || !S_ISDIR(st.st_mode) || (st.st_uid != 0 && st.st_uid != geteuid()) || (st.st_mode & 022)) {
        found(f, LEVEL_FAIL, "config.local", "NETFLOCK_LOCAL: %s cannot be used", c->local_dir);
        remedy(f, "it must be a folder of this user or root, writable by nobody else");
    } else {
        found(f, LEVEL_OK, "config.local", "NETFLOCK_LOCAL: the kernel decides on files in %s", c->local_dir);
    }
}

/* Whose keepers die with PID 1, whatever that dies of. */
static void say_container(struct findings *f, const struct nf_config *c)
{
    char lease[32];
    if (!nf_pid_namespaced())
        return;
    nf_format_duration(c->policy.ttl_ms, lease, sizeof lease);
    if (c->policy.ttl_ms < c->policy.common_ttl_ms || c->policy.ttl_ms <= 10000) {
        found(f, LEVEL_OK, "process.container",
              "this is a PID namespace: when its PID 1 ends by itself its locks are free at once, when it is killed after %s", lease);
        return;
    }
    found(f, LEVEL_WARN, "process.container",
          "this is a PID namespace, without a keeper outside: when its PID 1 is killed its locks stay for the whole lease, %s", lease);
    remedy(f, "NETFLOCK_CONTAINER_TTL=10s");
}

const struct nf_config *doctor_config(struct findings *f)
{
    char *text = need(malloc(CAPTURE_MAX));
    char *save;
    size_t before = f->n;
    say_source(f);
    const struct nf_config *c = capture(text, CAPTURE_MAX);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        take_line(f, line);
    if (c->broken && f->n == before + 1) {
        found(f, LEVEL_FAIL, "config.value", "a value is wrong");
        remedy(f, "the log that the configuration file names says which");
    }
    free(text);
    if (c->disabled) {
        found(f, LEVEL_FAIL, "config.disabled", "NETFLOCK_DISABLE turns all of it off");
        remedy(f, "unset it");
    }
    say_prefixes(f, c);
    say_local(f, c);
    say_container(f, c);
    if (c->policy.on_outage == NF_OUTAGE_LOCAL) {
        found(f, LEVEL_WARN, "config.outage", "NETFLOCK_ON_OUTAGE=local: while Redis is away, locks hold on one host only");
        remedy(f, "block or error, where that must not be");
    }
    return c;
}

/* LD_PRELOAD as it stands here: what a program started without `netflock run` would get. */
static void say_preload(struct findings *f, const char *library)
{
    char entry[PATH_MAX];
    const char *list = getenv("LD_PRELOAD");
    bool named = list && preload_names_library(list, entry, sizeof entry);
    if (named && strchr(entry, '/') && access(entry, R_OK) < 0) {
        found(f, LEVEL_FAIL, "preload", "LD_PRELOAD names %s, which cannot be read (%s): programs run without it", entry, strerror(errno));
        remedy(f, "name %s", library ? library : "the library that is installed");
    } else if (named) {
        found(f, LEVEL_OK, "preload", "LD_PRELOAD names %s", entry);
    } else if (f->by_hand) {
        found(f, LEVEL_WARN, "preload", "LD_PRELOAD does not name the library here: without netflock run, a program is not protected");
        remedy(f, "start it with netflock run, or set LD_PRELOAD=%s", library ? library : "...");
    } else {
        found(f, LEVEL_OK, "preload", "LD_PRELOAD does not name the library here: netflock run puts it there");
    }
}

static void say_keeper(struct findings *f, const struct nf_config *c, const char *library)
{
    char keeper[PATH_MAX + 16];
    const char *slash = strrchr(library, '/');
    (void)snprintf(keeper, sizeof keeper, "%.*s/netflock-keeper", (int)(slash - library), library);
    if (c->policy.keeper == NF_KEEPER_NEVER) {
        found(f, LEVEL_WARN, "keeper", "NETFLOCK_KEEPER=never: a lock that outlives the process that took it is lost to other hosts");
        remedy(f, "auto");
    } else if (access(keeper, X_OK) < 0) {
        found(f, LEVEL_FAIL, "keeper", "%s: %s: a lock that outlives the process that took it is not kept", keeper, strerror(errno));
        remedy(f, "install it beside the library");
    } else {
        found(f, LEVEL_OK, "keeper", "%s", keeper);
    }
}

void doctor_files(struct findings *f, const struct nf_config *c)
{
    char library[PATH_MAX];
    char why[4 * PATH_MAX];
    bool there = preload_locate(library, why, sizeof why) == 0;
    if (there) {
        found(f, LEVEL_OK, "library", "%s", library);
        say_keeper(f, c, library);
    } else {
        found(f, LEVEL_FAIL, "library", "%s", why);
        remedy(f, "install it beside the command, or below its ../lib");
    }
    say_preload(f, there ? library : NULL);
}
