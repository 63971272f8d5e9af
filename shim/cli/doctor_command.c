/*
 * Does the library reach a program, and is it in a process?
 */
#include "cli/doctor.h"

#include "cli/cli.h"
#include "cli/preload.h"
#include "cli/program.h"

#include "base/url.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const struct {
    const char *kind, *id, *remedy;
} kinds[] = {
    {"static", "command.static", "take one that is linked dynamically, or netflock lock around it"},
    {"privileged", "command.privileged", "run it as its owner, or name the library in /etc/ld.so.preload"},
    {"machine", "command.machine", "build netflock for that machine"},
    {"libc", "command.libc", "take one for glibc, or netflock lock around it"},
    {"environment", "command.environment", "start netflock run behind what clears the environment"},
};

static void judge(struct findings *f, const char *path, const char *name)
{
    struct verdict *v = need(malloc(sizeof *v));
    if (!program_reachable(path, v)) {
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
            if (strcmp(kinds[i].kind, v->kind) != 0)
                continue;
            found(f, LEVEL_FAIL, kinds[i].id, "%s", v->why);
            remedy(f, "%s", kinds[i].remedy);
        }
    } else if (v->go) {
        found(f, LEVEL_FAIL, "command.go", "%s is written in Go, and makes its system calls itself: the library does not see them", path);
        remedy(f, "netflock lock around it");
    } else if (v->unread) {
        found(f, LEVEL_WARN, "command.unread", "%s, or its interpreter, cannot be read: nobody can tell", path);
    } else {
        found(f, LEVEL_OK, "command.reached", "%s is reached (%s)", name, path);
    }
    free(v);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_any(const char *word, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(word, *list) == 0)
            return true;
    return false;
}

/*
 * Behind env(1): NULL when it takes LD_PRELOAD away, else its command, or the end of the list. What -S holds is not looked at.
 */
static char **behind_env(char **word)
{
    static const char *const clears[] = {"-", "-i", "--ignore-environment", "--unset=LD_PRELOAD", "-uLD_PRELOAD", NULL};
    static const char *const with_value[] = {"-u", "--unset", "-C", "--chdir", NULL};
    for (; *word && (**word == '-' || strchr(*word, '=')); word++) {
        if (is_any(*word, clears) || strncmp(*word, "LD_PRELOAD=", 11) == 0)
            return NULL;
        if (!is_any(*word, with_value) || !word[1])
            continue;
        if (strcmp(*++word, "LD_PRELOAD") == 0)
            return NULL;
    }
    return word;
}

/* Does the command take the preload away from what it starts? */
static bool clears_environment(char **argv, char ***next)
{
    static const char *const other_user[] = {"sudo", "doas", "pkexec", NULL};
    static const char *const may_log_in[] = {"su", "runuser", NULL};
    static const char *const logs_in[] = {"-", "-l", "--login", NULL};
    const char *name = base_name(argv[0]);
    *next = NULL;
    if (is_any(name, other_user))
        return true;
    for (char **word = argv + 1; is_any(name, may_log_in) && *word; word++)
        if (is_any(*word, logs_in))
            return true;
    if (strcmp(name, "env") != 0)
        return false;
    *next = behind_env(argv + 1);
    return !*next;
}

void doctor_command(struct findings *f, char **argv)
{
    int err = 0;
    char **next = NULL;
    char *path = program_find(argv[0], &err);
    if (!path) {
        found(f, LEVEL_FAIL, "command.found", "%s: %s", argv[0], err == -ENOENT ? "command not found" : strerror(-err));
        return;
    }
    size_t before = f->n;
    judge(f, path, argv[0]);
    free(path);
    if (f->v[before].level == LEVEL_FAIL)
        return;
    if (clears_environment(argv, &next)) {
        found(f, LEVEL_FAIL, "command.environment", "%s takes the library out of the environment of what it starts", argv[0]);
        remedy(f, "start netflock run behind it");
    } else if (next && *next) {
        doctor_command(f, next);
    }
}

/* A file below /proc/PID as a string with NULs in it, to be freed; NULL with errno. */
static char *proc_file(const char *pid, const char *name, size_t *len)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%.20s/%s", pid, name);
    FILE *file = fopen(path, "re");
    if (!file)
        return NULL;
    size_t room = 65536;
    char *text = need(malloc(room));
    size_t n;
    *len = 0;
    while ((n = fread(text + *len, 1, room - 1 - *len, file)) > 0) {
        *len += n;
        if (*len + 1 == room)
            text = need(realloc(text, room *= 2));
    }
    int err = ferror(file) ? errno : 0;
    (void)fclose(file);
    text[*len] = 0;
    if (!err)
        return text;
    free(text);
    errno = err;
    return NULL;
}

/* The library's path in a process's maps, its line ended there; NULL if it is not mapped. */
static const char *mapped_library(char *maps)
{
    char *save;
    for (char *line = strtok_r(maps, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        const char *path = strchr(line, '/');
        const char *name = path ? strstr(path, "/libnetflock.so") : NULL;
        if (name && (!name[15] || name[15] == ' '))
            return path;
    }
    return NULL;
}

static bool is_setting(const char *name)
{
    const char *allowed;
    const char *known;
    for (size_t i = 0; (known = nf_config_var(i, &allowed)); i++)
        if (strcasecmp(known, name) == 0)
            return true;
    return strcasecmp(name, "conf") == 0 || strcasecmp(name, "fence") == 0;
}

/* A variable without what may be a password: only of known settings is the value shown. */
static void say_variable(struct findings *f, const char *name, const char *value)
{
    char shown[1024];
    if (!is_setting(name) || (strcmp(name, "PASSWORD_FILE") == 0 && *value != '/'))
        (void)snprintf(shown, sizeof shown, "***");
    else if (strcmp(name, "URL") == 0)
        nf_url_mask(value, shown, sizeof shown);
    else
        (void)snprintf(shown, sizeof shown, "%s", value);
    bool off = strcmp(name, "DISABLE") == 0 && (strcmp(value, "1") == 0 || strcmp(value, "yes") == 0);
    found(f, off ? LEVEL_FAIL : LEVEL_OK, off ? "pid.disabled" : "pid.environment", "process %s: NETFLOCK_%s=%s%s", f->subject, name, shown,
          off ? ", which turns all of it off" : "");
}

/* The environment is the one that the process was started with. True: LD_PRELOAD names the library there. */
static bool say_environment(struct findings *f, const char *env, size_t len, bool *prefix)
{
    char entry[PATH_MAX];
    bool preload = false;
    for (const char *p = env; p < env + len; p += strlen(p) + 1) {
        const char *equals = strchr(p, '=');
        if (strncmp(p, "LD_PRELOAD=", 11) == 0)
            preload = preload_names_library(p + 11, entry, sizeof entry);
        if (strncmp(p, "NETFLOCK_", 9) != 0 || !equals || equals - p - 9 > 60)
            continue;
        char name[64];
        (void)snprintf(name, sizeof name, "%.*s", (int)(equals - p - 9), p + 9);
        *prefix |= (strcmp(name, "PREFIX") == 0 || strcmp(name, "CONF") == 0) && equals[1];
        say_variable(f, name, equals + 1);
    }
    return preload;
}

void doctor_process(struct findings *f, const char *pid)
{
    char exe[64];
    size_t len = 0;
    bool prefix = false;
    char *maps = proc_file(pid, "maps", &len);
    if (!maps) {
        found(f, LEVEL_FAIL, "pid.maps", "process %s: %s", pid, errno == ENOENT ? "there is none" : strerror(errno));
        if (errno != ENOENT)
            remedy(f, "ask as its user, or as root");
        return;
    }
    const char *library = mapped_library(maps);
    bool deleted = library && strstr(library, " (deleted)");
    char *env = proc_file(pid, "environ", &len);
    bool preload = env && say_environment(f, env, len, &prefix);
    (void)snprintf(exe, sizeof exe, "/proc/%.20s/exe", pid);
    if (library) {
        found(f, deleted ? LEVEL_WARN : LEVEL_OK, "pid.library", "process %s has %s", pid, library);
        if (deleted)
            remedy(f, "start it again, with the library that is installed now");
    } else {
        found(f, LEVEL_FAIL, "pid.library", "process %s does not have the library%s", pid,
              preload ? ", though LD_PRELOAD names it"
              : env   ? ": it was started without LD_PRELOAD"
                      : "");
        remedy(f, "start it with netflock run");
        if (preload)
            judge(f, exe, pid);
    }
    if (env && !prefix && access("/etc/netflock.conf", F_OK) < 0) {
        found(f, LEVEL_FAIL, "pid.prefix", "process %s has no NETFLOCK_PREFIX in its environment, and there is no /etc/netflock.conf", pid);
        remedy(f, "start it with netflock run --prefix ...");
    }
    free(env);
    free(maps);
}
