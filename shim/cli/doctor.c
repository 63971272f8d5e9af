/*
 * netflock doctor: would a program be protected here, and if not, why?
 */
#include "cli/doctor.h"

#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_PID = OPTION_OWN };

void help_doctor(void)
{
    printf("usage: netflock doctor [--json] [OPTION...] [--pid N] [PATH...] [-- COMMAND...]\n"
           "\n"
           "Says whether locks would hold between hosts, and if not, why: the configuration, Redis,\n"
           "the files PATH, and whether the library reaches COMMAND, or is in the process N.\n"
           "Takes no lock on anything that is there, and changes nothing.\n"
           "\n"
           "  --json             an array of objects instead of lines\n"
           "  --pid N            a process that runs\n");
    options_help(NULL);
    printf("\n"
           "Exit status: 0 all is protected (there may be warnings); 1 something is not; 2 wrong\n"
           "usage; 3 Redis cannot be reached, or refuses.\n");
}

static int take_option(struct options *o, int option, const char *value)
{
    const char **pid = o->arg;
    (void)option;
    *pid = value;
    if (*value && !value[strspn(value, "0123456789")] && strlen(value) < 10)
        return 0;
    complain("doctor: --pid \"%s\" is no process number", value);
    return -1;
}

static void examine(struct findings *f, const char *pid, char **paths, char **command)
{
    const struct nf_config *c = doctor_config(f);
    doctor_files(f, c);
    doctor_redis(f, c, true);
    for (; *paths; paths++) {
        f->subject = *paths;
        doctor_path(f, c, *paths);
    }
    if (pid) {
        f->subject = pid;
        doctor_process(f, pid);
    }
    if (command) {
        f->subject = command[0];
        doctor_command(f, command);
    }
    f->subject = NULL;
}

int cmd_doctor(int argc, char **argv)
{
    static const struct option own[] = {{"pid", required_argument, NULL, OPT_PID}, {0}};
    const char *pid = NULL;
    char *none = NULL;
    struct options o = {.command = "doctor", .takes_json = true, .own = own, .take = take_option, .arg = &pid};
    const struct finding *first;
    const char *prefix = getenv("NETFLOCK_PREFIX"); /* before an option sets it */
    struct findings f = {.by_hand = prefix && *prefix};
    int at = options_parse(&o, argc, argv);
    if (at < 0)
        return EXIT_USAGE;
    if (o.help) {
        help_doctor();
        return EXIT_OK;
    }
    char **paths = argv + at;
    char **command = strcmp(argv[at - 1], "--") == 0 ? paths : NULL;
    for (char **p = paths; !command && *p; p++) {
        if (strcmp(*p, "--") != 0)
            continue;
        command = p + 1;
        *p = NULL; /* where the paths end */
    }
    if (command && !*command) {
        complain("doctor: no command follows \"--\"; see netflock help doctor");
        return EXIT_USAGE;
    }
    examine(&f, pid, command == paths ? &none : paths, command);
    if (o.json)
        findings_json(&f);
    else
        findings_print(&f);
    int r = f.no_redis ? EXIT_REDIS : findings_failures(&f, &first) ? EXIT_UNPROTECTED : EXIT_OK;
    findings_free(&f);
    return r;
}

bool doctor_protects(char **argv, char *why, size_t size)
{
    struct findings f = {0};
    const struct finding *first;
    const struct nf_config *c = doctor_config(&f);
    doctor_files(&f, c);
    doctor_command(&f, argv);
    if (!findings_failures(&f, &first))
        doctor_redis(&f, c, false);
    size_t n = findings_failures(&f, &first);
    if (n == 1)
        (void)snprintf(why, size, "%s", first->text);
    else if (n > 1)
        (void)snprintf(why, size, "%s (and %zu more: netflock doctor)", first->text, n - 1);
    findings_free(&f);
    return n == 0;
}
