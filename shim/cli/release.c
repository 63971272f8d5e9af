/*
 * netflock release: takes a lock from whoever has it.
 *
 * What is taken is what was shown, token by token, through the script with which a holder itself releases: so the next waiter
 * is served, the fence moves on, and the holder's next renewal finds that its lock is lost.
 */
#include "cli/cli.h"
#include "cli/view.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "redis/ops.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPT_YES = OPTION_OWN };

static const char *const settings[] = {"prefix", "url", "password_file", "connect_timeout", NULL};

void help_release(void)
{
    printf("usage: netflock release [--yes] [OPTION...] PATH|KEY\n"
           "\n"
           "Takes the lock on PATH (or with the KEY \"lock:...\") from whoever has it, and hands it to\n"
           "the next who waits. The holder learns of it at its next renewal (NETFLOCK_ON_LOST), and\n"
           "may be in the middle of its work: look first whether it lives.\n"
           "\n"
           "  -y, --yes          do not ask\n");
    options_help(settings);
    printf("\n"
           "Exit status: 0 released; 1 nobody has it, it changed hands meanwhile, the answer was no,\n"
           "or PATH is below no prefix; 2 wrong usage or configuration; 3 Redis cannot be reached, or\n"
           "refuses.\n");
}

static int complain_redis(const struct nf_config *c, const char *why)
{
    char name[300];
    nf_redis_name(&c->redis, name, sizeof name);
    complain("release: Redis at %s: %s", name, why);
    return EXIT_REDIS;
}

/* Shows who has the lock and who waits. EXIT_OK with one lock in the view, or another exit status. */
static int look(const struct nf_config *c, const char *key, struct view *v)
{
    char why[256] = "";
    struct nf_redis_opts redis = c->redis;
    redis.grace = NF_GRACE_OFF; /* who only reads needs no INFO */
    redis.check = NF_CHECK_OFF;
    view_add(v, key, strlen(key), ASK_ALL);
    struct source *source = source_open(&redis, why, sizeof why);
    int err = source ? source_fill(source, v, why, sizeof why) : -1;
    source_close(source);
    if (err < 0)
        return complain_redis(c, why);
    if (v->n == 0 || v->locks[0].n_holders + v->locks[0].n_owners == 0) {
        complain("release: nobody has %s", key);
        return EXIT_NOT_RELEASED;
    }
    show_table(v);
    (void)fflush(stdout);
    return EXIT_OK;
}

/* Asks the person in front of the terminal. */
static int confirm(void)
{
    char answer[16] = "";
    if (!isatty(STDIN_FILENO)) {
        complain("release: there is no terminal to ask on: give --yes");
        return EXIT_USAGE;
    }
    (void)fputs("Take it from them? They may be in the middle of their work. [y/N] ", stderr);
    bool yes = fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
    if (!yes)
        complain("release: nothing was released");
    return yes ? EXIT_OK : EXIT_NOT_RELEASED;
}

/* An owner of several ranges stands in the list once for each. */
static bool seen_before(const struct who *list, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (list[k].token_len == list[i].token_len && memcmp(list[k].token, list[i].token, list[i].token_len) == 0)
            return true;
    return false;
}

struct release {
    const struct nf_config *c;
    const struct nf_names *names;
    size_t released, changed;
};

/* EXIT_OK, or EXIT_REDIS after a complaint. */
static int take_from(struct release *r, const struct who *w)
{
    struct nf_answer a = {0};
    struct nf_request q = {.names = r->names, .token = w->token, .mode = w->ranged ? w->owner : w->mode};
    /* Only what the script can be told in full is compared in full: no NUL, not cut, and of an owner its token. */
    if (strlen(w->token) != w->token_len || w->token_len >= NF_TOKEN_MAX || !q.mode || (w->ranged && !w->ours)) {
        complain("release: a value that another program wrote cannot be named: delete it with redis-cli");
        r->changed++;
        return EXIT_OK;
    }
    int held = nf_op_release(&r->c->redis, &r->c->policy, &q, nf_now_ms() + r->c->redis.timeout_ms, &a);
    if (held < 0)
        return complain_redis(r->c, a.why);
    r->released += held == 1;
    r->changed += held != 1;
    return EXIT_OK;
}

static int take_all(const struct nf_config *c, const struct lock *l)
{
    struct release r = {.c = c, .names = need(nf_names_make(l->key, l->key_len))};
    int status = EXIT_OK;
    for (size_t i = 0; status == EXIT_OK && i < l->n_holders; i++)
        status = take_from(&r, &l->holders[i]);
    for (size_t i = 0; status == EXIT_OK && i < l->n_owners; i++)
        if (!seen_before(l->owners, i))
            status = take_from(&r, &l->owners[i]);
    nf_free((void *)r.names);
    if (r.released)
        printf("released: %zu holder%s\n", r.released, r.released == 1 ? "" : "s");
    if (status == EXIT_OK && r.changed) {
        complain("release: %zu of those shown did not have it any more", r.changed);
        status = EXIT_NOT_RELEASED;
    }
    return status;
}

static int take_option(struct options *o, int option, const char *value)
{
    (void)option;
    (void)value;
    *(bool *)o->arg = true;
    return 0;
}

int cmd_release(int argc, char **argv)
{
    static const struct option own[] = {{"yes", no_argument, NULL, OPT_YES}, {0}};
    bool yes = false;
    struct view view = {0};
    struct options o = {.command = "release", .settings = settings, .letters = "y", .own = own, .take = take_option, .arg = &yes};
    int first = options_parse(&o, argc, argv);
    if (first < 0)
        return EXIT_USAGE;
    if (o.help) {
        help_release();
        return EXIT_OK;
    }
    /* An option behind the path is welcome, as it is what one adds when told to. */
    if (argv[first] && argv[first + 1] && !argv[first + 2] &&
        (strcmp(argv[first + 1], "--yes") == 0 || strcmp(argv[first + 1], "-y") == 0)) {
        yes = true;
        argv[first + 1] = NULL;
    }
    if (!argv[first] || argv[first + 1]) {
        complain("release: one path, or one key, is needed; see netflock help release");
        return EXIT_USAGE;
    }
    const struct nf_config *c = options_config();
    if (!c)
        return EXIT_USAGE;
    char *key = strncmp(argv[first], "lock:", 5) == 0 ? need(strdup(argv[first])) : path_to_key(c, "release", argv[first]);
    if (!key)
        return EXIT_NOT_RELEASED;
    int r = look(c, key, &view);
    if (r == EXIT_OK && !yes)
        r = confirm();
    if (r == EXIT_OK)
        r = take_all(c, &view.locks[0]);
    view_free(&view);
    free(key);
    return r;
}
