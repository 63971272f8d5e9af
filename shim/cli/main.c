/*
 * netflock: runs programs with libnetflock.so, and shows who holds what. One file for each subcommand; here is what
 * chooses among them.
 */
#include "cli/cli.h"
#include "cli/doctor.h"
#include "cli/text.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const status_settings[] = {"prefix", "url", "password_file", "connect_timeout", NULL};

void complain(const char *fmt, ...)
{
    char *line = NULL;
    struct text out = {0};
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&line, fmt, ap) < 0)
        line = NULL;
    va_end(ap);
    text_raw(&out, "netflock: ");
    text_line(&out, line ? line : fmt);
    text_raw(&out, "\n");
    (void)fflush(stdout);
    (void)fputs(out.s, stderr);
    text_free(&out);
    free(line);
}

void *need(void *memory)
{
    if (!memory) {
        (void)fputs("netflock: out of memory\n", stderr);
        exit(EXIT_REFUSED);
    }
    return memory;
}

static void help_general(FILE *to)
{
    (void)fputs("usage: netflock run [OPTION...] [--] COMMAND [ARG...]\n"
                "       netflock lock [OPTION...] FILE [--] COMMAND [ARG...]\n"
                "       netflock lock [OPTION...] FD\n"
                "       netflock fence [OPTION...] FILE|FD\n"
                "       netflock status [--json] [OPTION...] [PATH...]\n"
                "       netflock release [--yes] [OPTION...] PATH|KEY\n"
                "       netflock doctor [--json] [OPTION...] [--pid N] [PATH...] [-- COMMAND...]\n"
                "       netflock help [run|lock|fence|status|release|doctor]\n"
                "       netflock --help | --version\n"
                "\n"
                "run       runs COMMAND so that its flock() and fcntl() locks on files below a prefix also\n"
                "          exclude the other hosts that use the same Redis\n"
                "lock      is flock(1) between hosts: runs COMMAND under a lock on FILE\n"
                "fence     prints the fencing token of a lock that this host has\n"
                "status    shows who holds these locks and who waits for them\n"
                "release   breaks a lock: takes it from whoever has it\n"
                "doctor    says whether locks would hold between hosts, and if not, why\n"
                "\n"
                "Options such as --prefix, --url and --ttl are settings of netflock.conf(5); what\n"
                "is not given comes from the environment (NETFLOCK_PREFIX, NETFLOCK_URL, ...) and\n"
                "from /etc/netflock.conf. See netflock(1).\n",
                to);
}

static void help_run(void)
{
    printf("usage: netflock run [OPTION...] [--] COMMAND [ARG...]\n"
           "\n"
           "Runs COMMAND with libnetflock.so preloaded. Its exit status and signals are its own.\n"
           "\n"
           "  --strict           run nothing unless the configuration and Redis are well, too\n");
    options_help(NULL);
    printf("\n"
           "Exit status: 2 wrong usage or configuration; 125 COMMAND is of a kind that a\n"
           "preloaded library cannot reach (static, set-uid, another C library), there is no\n"
           "library, or --strict found more; 126 it cannot be executed; 127 it was not found; else COMMAND's own.\n");
}

static void help_status(void)
{
    printf("usage: netflock status [--json] [OPTION...] [PATH...]\n"
           "\n"
           "Shows who holds and who waits: for the files PATH, or for all that Redis knows of.\n"
           "\n"
           "  --json             an array of objects instead of a table\n");
    options_help(status_settings);
    printf("\n"
           "Exit status: 0; 1 a PATH is below no prefix; 2 wrong usage or configuration;\n"
           "3 Redis cannot be reached, or refuses.\n");
}

static int cmd_help(const char *topic)
{
    if (!topic)
        help_general(stdout);
    else if (strcmp(topic, "run") == 0)
        help_run();
    else if (strcmp(topic, "status") == 0)
        help_status();
    else if (strcmp(topic, "lock") == 0)
        help_lock();
    else if (strcmp(topic, "fence") == 0)
        help_fence();
    else if (strcmp(topic, "release") == 0)
        help_release();
    else if (strcmp(topic, "doctor") == 0)
        help_doctor();
    else {
        complain("there is no help on \"%s\"; there is on run, lock, fence, status, release and doctor", topic);
        return EXIT_USAGE;
    }
    return EXIT_OK;
}

static int take_strict(struct options *o, int option, const char *value)
{
    (void)option;
    (void)value;
    *(bool *)o->arg = true;
    return 0;
}

/* Parses the options of a subcommand and runs it; help comes first, whatever else was said. */
static int subcommand(const char *name, int argc, char **argv)
{
    bool run = strcmp(name, "run") == 0;
    static const struct option run_own[] = {{"strict", no_argument, NULL, OPTION_OWN}, {0}};
    bool strict = false;
    struct options o = {.command = name, .settings = run ? NULL : status_settings, .takes_json = !run};
    if (run)
        o.own = run_own, o.take = take_strict, o.arg = &strict;
    int first = options_parse(&o, argc, argv);
    if (first < 0)
        return EXIT_USAGE;
    if (o.help)
        return cmd_help(name);
    return run ? cmd_run(argv + first, strict) : cmd_status(argv + first, o.json);
}

int main(int argc, char **argv)
{
    nf_log_start();
    (void)setlocale(LC_CTYPE, ""); /* for the width of what is printed */
    const char *verb = argc > 1 ? argv[1] : NULL;
    char buf[256];
    int r = EXIT_USAGE;
    if (!verb) {
        help_general(stderr);
    } else if (strcmp(verb, "run") == 0 || strcmp(verb, "status") == 0) {
        r = subcommand(verb, argc - 1, argv + 1);
    } else if (strcmp(verb, "lock") == 0) {
        r = cmd_lock(argc - 1, argv + 1);
    } else if (strcmp(verb, "fence") == 0) {
        r = cmd_fence(argc - 1, argv + 1);
    } else if (strcmp(verb, "release") == 0) {
        r = cmd_release(argc - 1, argv + 1);
    } else if (strcmp(verb, "doctor") == 0) {
        r = cmd_doctor(argc - 1, argv + 1);
    } else if (strcmp(verb, "help") == 0 || strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0) {
        r = cmd_help(argv[2]);
    } else if (strcmp(verb, "--version") == 0 || strcmp(verb, "-V") == 0) {
        printf("netflock %s\n", NF_VERSION);
        r = EXIT_OK;
    } else {
        complain("there is no command \"%s\"; see netflock --help", shown_word(verb, buf, sizeof buf));
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        complain("the output cannot be written: %m");
        r = r == EXIT_OK ? EXIT_PATH : r;
    }
    return r;
}
