/*
 * netflock run: sets LD_PRELOAD, checks that it will have an effect, and becomes the command.
 */
#include "cli/cli.h"
#include "cli/doctor.h"
#include "cli/preload.h"
#include "cli/program.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A configuration with which nothing would be protected is a mistake, unless it says that it is meant. */
static int check_config(void)
{
    const struct nf_config *c = options_config();
    if (!c)
        return -1;
    if (c->n_prefix == 0 && !c->disabled) {
        complain("run: no prefix is configured, so that nothing would be protected: give --prefix, or set NETFLOCK_PREFIX");
        return -1;
    }
    return 0;
}

/* Puts into words why there will be no command, and returns the exit status that stands for it. */
static int not_run(const char *name, const char *path, int err)
{
    if (err == -ENOENT && path)
        complain("run: %s: it is there, but not the loader or interpreter that it names", name);
    else
        complain("run: %s: %s", name, err == -ENOENT ? "command not found" : strerror(-err));
    return err == -ENOENT || err == -ENOTDIR ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
}

int cmd_run(char **argv, bool strict)
{
    char library[PATH_MAX];
    struct verdict v;
    int err;
    if (!argv[0]) {
        complain("run: no command is given; see netflock help run");
        return EXIT_USAGE;
    }
    if (!strict && check_config() < 0)
        return EXIT_USAGE;
    char *path = program_find(argv[0], &err);
    if (!path)
        return not_run(argv[0], NULL, err);
    int status = EXIT_REFUSED;
    if (strict && !doctor_protects(argv, v.why, sizeof v.why)) {
        complain("run: %s is not run: %s", argv[0], v.why);
    } else if (preload_find("run", library) < 0) {
        status = EXIT_REFUSED;
    } else if (program_reachable(path, &v)) {
        preload_set(library);
        status = not_run(argv[0], path, program_execute(path, argv));
    } else {
        complain("run: %s is not run: %s", argv[0], v.why);
    }
    free(path);
    return status;
}
