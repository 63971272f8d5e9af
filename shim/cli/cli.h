/*
 * The netflock command: what its parts share.
 */
#ifndef NF_CLI_CLI_H
#define NF_CLI_CLI_H

#include "base/config.h"

#include <getopt.h>
#include <stdbool.h>

/* Exit codes. 125 to 127 are those of env(1), nohup(1) and timeout(1), so that a command's own stay apart. */
enum {
    EXIT_OK = 0,
    EXIT_PATH = 1,             /* status: a path that cannot be looked up; output that cannot be written */
    EXIT_UNPROTECTED = 1,      /* doctor: something is not protected */
    EXIT_NOT_RELEASED = 1,     /* release: not all that was shown was released */
    EXIT_USAGE = 2,            /* wrong usage, wrong configuration */
    EXIT_NOT_HELD = 1,         /* fence: this host does not hold the file */
    EXIT_REDIS = 3,            /* status, fence: Redis cannot be reached, or refuses */
    EXIT_REFUSED = 125,        /* run: a preloaded library could not protect the command */
    EXIT_NOT_EXECUTABLE = 126, /* run: the command was found, and cannot be executed */
    EXIT_NOT_FOUND = 127,      /* run: there is no such command */
};

/*
 * argv: COMMAND and its arguments, NULL at the end. Returns only when the command was not run; `strict`: also when netflock
 * doctor would find a failure.
 */
int cmd_run(char **argv, bool strict);

/* argv[1..]: what follows "lock" or "fence". */
int cmd_lock(int argc, char **argv);
int cmd_fence(int argc, char **argv);

int cmd_release(int argc, char **argv);

void help_lock(void);
void help_fence(void);
void help_release(void);

/* paths: NULL at the end. */
int cmd_status(char **paths, bool json);

/* The key of the file that the kernel calls so, to be freed; NULL if it is below no prefix. */
char *name_to_key(const struct nf_config *c, const char *name);

/* Complains that a file is below no prefix. */
void complain_prefix(const struct nf_config *c, const char *verb, const char *path, const char *name);

/* Writes one line "netflock: ..." to stderr, control characters in it escaped. */
void complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The memory, or the end of the program with a line that says so. */
void *need(void *memory);

/* What a subcommand's command line said; the settings themselves are in the environment then. */
struct options {
    const char *command;         /* "run", "status" */
    const char *const *settings; /* names of the settings it takes as options, NULL at the end; NULL for all */
    bool takes_json;
    bool json;
    bool help;
    const char *letters;      /* the subcommand's own options as for getopt(3), after "+:h", or NULL */
    const struct option *own; /* its long ones, with the letter or a number from OPTION_OWN on, { 0 } at the end, or NULL */
    int (*take)(struct options *o, int option, const char *value); /* takes one of them: 0, or -1 after a complaint */
    void *arg;
};

#define OPTION_OWN 300

/*
 * Parses argv[1..] up to "--" or the first word that is no option; checks each value and puts it into the environment
 * as NETFLOCK_*. A password in a --url is overwritten in argv, where ps(1) would show it. Returns the index of the
 * first word left, or -1 after a complaint.
 */
int options_parse(struct options *o, int argc, char **argv);

/* Prints the help text of a subcommand's settings: "  --ttl T ...", one a line. */
void options_help(const char *const *settings);

/* A word of the command line for a message; a URL without its password, in buf. */
const char *shown_word(const char *word, char *buf, size_t size);

/* The configuration from environment and file, or NULL after a complaint. */
const struct nf_config *options_config(void);

#endif
