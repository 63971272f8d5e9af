/*
 * Options: one for each setting of netflock.conf, made from the table that the library itself reads. A value goes
 * into the environment, where the library of the command to be run (or our own nf_config()) finds it.
 *
 * Must never show a password: not in a complaint, and not in /proc/PID/cmdline for longer than it takes to get here.
 */
#include "cli/cli.h"

#include "base/prefix.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SETTINGS_MAX 64
#define TABLE_MAX (SETTINGS_MAX + 32)
#define NAME_MAX_LEN 64

/* Above the characters that are short options, and what a subcommand numbers its own long ones with. */
enum { OPT_JSON = 1, OPT_HELP, OPT_SETTING = OPTION_OWN + 100 };

/* "password_file" -> "password-file" */
static void option_name(const char *setting, char *out)
{
    size_t n = 0;
    for (; setting[n] && n + 1 < NAME_MAX_LEN; n++)
        out[n] = setting[n] == '_' ? '-' : setting[n];
    out[n] = 0;
}

/* "ttl" -> "NETFLOCK_TTL" */
static void variable_name(const char *setting, char *out, size_t size)
{
    size_t n = (size_t)snprintf(out, size, "NETFLOCK_%s", setting);
    for (size_t i = 0; i < n && i < size; i++)
        out[i] = (char)toupper((unsigned char)out[i]);
}

static bool takes(const char *const *settings, const char *name)
{
    if (!settings)
        return strcmp(name, "disable") != 0; /* to run a command without netflock, run it without netflock */
    for (; *settings; settings++)
        if (strcmp(*settings, name) == 0)
            return true;
    return false;
}

/* Overwrites user and password of a URL where it stands in argv. */
static void mask_in_place(char *url)
{
    char *at = strrchr(url, '@');
    char *from = strstr(url, "//");
    from = from ? from + 2 : url;
    if (at && at > from)
        memset(from, '*', (size_t)(at - from));
}

/* Does the library take this value? It would say so in a line of its own, about calls that fail: ours comes instead. */
static bool allowed_value(const char *setting, const char *value)
{
    static const struct nf_log_conf nowhere = {.level = NF_LOG_ERROR, .where = 'f', .path = "/dev/null"};
    static struct nf_config scratch;
    nf_log_configure(&nowhere);
    if (strcmp(setting, "prefix") != 0)
        return *value && nf_config_set(&scratch, setting, value, NULL) == 0;
    scratch.n_prefix = 0;
    nf_prefix_parse(&scratch, value, "");
    return !scratch.prefix_broken && scratch.n_prefix > 0;
}

static void complain_value(const char *setting, const char *value, const char *allowed)
{
    char shown[1024];
    char option[NAME_MAX_LEN];
    const char *why = "";
    bool file = strcmp(setting, "password_file") == 0;
    option_name(setting, option);
    if (strcmp(setting, "url") == 0)
        nf_url_mask(value, shown, sizeof shown);
    else /* a password where its file should stand is not to be shown either */
        (void)snprintf(shown, sizeof shown, "%s", file && value[0] != '/' ? "***" : value);
    if (file && value[0] == '/')
        why = access(value, R_OK) < 0 ? strerror(errno) : "it is empty, too long, or no text";
    complain("--%s \"%s\" is not allowed%s%s; allowed: %s", option, shown, *why ? ": " : "", why, allowed);
}

const char *shown_word(const char *word, char *buf, size_t size)
{
    if (!strstr(word, "://"))
        return word;
    nf_url_mask(word, buf, size);
    return buf;
}

static int apply(const char *setting, const char *allowed, char *value)
{
    char variable[NAME_MAX_LEN + 16];
    bool secret = strcmp(setting, "url") == 0;
    char *copy = need(strdup(value));
    if (secret)
        mask_in_place(value);
    int r = allowed_value(setting, copy) ? 0 : -EINVAL;
    variable_name(setting, variable, sizeof variable);
    if (r < 0)
        complain_value(setting, copy, allowed);
    else if (setenv(variable, copy, 1) < 0)
        (void)need(NULL);
    if (secret)
        explicit_bzero(copy, strlen(copy));
    free(copy);
    return r;
}

/*
 * getopt takes "--pass" for --password-file. Not so here: what is short for one option today may be the name of
 * another tomorrow, and "--password secret" would end in a message that shows the secret.
 */
static bool abbreviated(const char *word, const char *name)
{
    return strncmp(word, "--", 2) == 0 && strcspn(word + 2, "=") != strlen(name);
}

/* An option that is not known, or has a value too many. What follows a "=" may be a password: a --url mistyped. */
static void complain_option(const struct options *o, const char *word)
{
    complain("%s: unknown option %.*s; see netflock help %s", o->command, (int)strcspn(word, "="), word, o->command);
}

/* Fills in getopt's table; names[] holds the text. */
static void make_table(const struct options *o, struct option *table, char names[][NAME_MAX_LEN])
{
    size_t n = 0;
    const char *name;
    const char *allowed;
    for (size_t i = 0; (name = nf_config_var(i, &allowed)) && n < SETTINGS_MAX; i++) {
        if (!takes(o->settings, name))
            continue;
        option_name(name, names[n]);
        table[n] = (struct option){names[n], required_argument, NULL, OPT_SETTING + (int)i};
        n++;
    }
    if (o->takes_json)
        table[n++] = (struct option){"json", no_argument, NULL, OPT_JSON};
    table[n++] = (struct option){"help", no_argument, NULL, OPT_HELP};
    for (const struct option *own = o->own; own && own->name && n < TABLE_MAX - 1; own++)
        table[n++] = *own;
    table[n] = (struct option){0};
}

int options_parse(struct options *o, int argc, char **argv)
{
    struct option table[TABLE_MAX];
    char letters[64];
    char names[SETTINGS_MAX][NAME_MAX_LEN];
    const char *allowed;
    int opt;
    make_table(o, table, names);
    (void)snprintf(letters, sizeof letters, "+:h%s", o->letters ? o->letters : "");
    optind = 1; /* a command line may be read in two parts */
    opterr = 0; /* getopt's own message would show the word, with a password that it may hold */
    for (;;) {
        int at = optind;
        int index = 0;
        opt = getopt_long(argc, argv, letters, table, &index);
        if (opt == -1)
            return optind;
        if (opt != ':' && opt != '?' && abbreviated(argv[at], table[index].name))
            opt = '?';
        if (opt == 'h' || opt == OPT_HELP) {
            o->help = true;
        } else if (opt == OPT_JSON) {
            o->json = true;
        } else if (opt == ':') {
            complain("%s: %s needs a value; see netflock help %s", o->command, argv[at], o->command);
            return -1;
        } else if (opt == '?') {
            complain_option(o, argv[at]);
            return -1;
        } else if (opt < OPT_SETTING) {
            if (o->take(o, opt, optarg) < 0)
                return -1;
        } else {
            const char *name = nf_config_var((size_t)(opt - OPT_SETTING), &allowed);
            if (apply(name, allowed, optarg) < 0)
                return -1;
        }
    }
}

void options_help(const char *const *settings)
{
    const char *name;
    const char *allowed;
    char option[NAME_MAX_LEN];
    for (size_t i = 0; (name = nf_config_var(i, &allowed)); i++) {
        if (!takes(settings, name))
            continue;
        option_name(name, option);
        printf("  --%-16s %s\n", option, allowed);
    }
}

const struct nf_config *options_config(void)
{
    const struct nf_config *c = nf_config();
    if (!c->broken)
        return c;
    if (c->log.where != 's')
        complain("the configuration is wrong; the log that NETFLOCK_LOG names says what");
    return NULL;
}
