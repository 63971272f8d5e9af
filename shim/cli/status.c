/*
 * netflock status: who holds and who waits.
 */
#include "cli/cli.h"
#include "cli/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int complain_redis(const struct nf_redis_opts *opts, const char *why)
{
    char name[300];
    nf_redis_name(opts, name, sizeof name);
    complain("status: Redis at %s: %s", name, why);
    return EXIT_REDIS;
}

/* The keys of the given paths. EXIT_PATH if one of them has none; the others are looked up all the same. */
static int add_paths(const struct nf_config *c, char **paths, struct view *v)
{
    int r = EXIT_OK;
    for (; *paths; paths++) {
        char *key = path_to_key(c, "status", *paths);
        if (key)
            view_add(v, key, strlen(key), ASK_ALL);
        else
            r = EXIT_PATH;
        free(key);
    }
    view_sort(v);
    return r;
}

int cmd_status(char **paths, bool json)
{
    char why[256] = "";
    struct view view = {0};
    const struct nf_config *c = options_config();
    if (!c)
        return EXIT_USAGE;
    int r = add_paths(c, paths, &view);
    if (*paths && view.n == 0)
        return r;
    struct nf_redis_opts redis = c->redis;
    redis.grace = NF_GRACE_OFF; /* who only reads needs no INFO */
    redis.check = NF_CHECK_OFF;
    struct source *source = source_open(&redis, why, sizeof why);
    int err = source ? 0 : -1;
    if (err == 0 && !*paths)
        err = source_scan(source, &view, why, sizeof why);
    if (err == 0)
        err = source_fill(source, &view, why, sizeof why);
    source_close(source);
    if (err < 0)
        r = complain_redis(&c->redis, why);
    else if (json)
        show_json(&view);
    else
        show_table(&view);
    view_free(&view);
    return r;
}
