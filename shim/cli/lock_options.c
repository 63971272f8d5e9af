/*
 * netflock lock, the first run: the command line, which is flock(1)'s and takes the settings besides, and the way into the
 * second run.
 */
#include "cli/cli.h"
#include "cli/lock.h"
#include "cli/preload.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { OWN_OUTAGE = OPTION_OWN, OWN_LOADED };

#define LETTERS "sxenw:E:oFuc:vV"

static const struct option own[] = {
    {"shared", no_argument, NULL, 's'},
    {"exclusive", no_argument, NULL, 'x'},
    {"nonblock", no_argument, NULL, 'n'},
    {"nb", no_argument, NULL, 'n'},
    {"timeout", required_argument, NULL, 'w'},
    {"wait", required_argument, NULL, 'w'},
    {"conflict-exit-code", required_argument, NULL, 'E'},
    {"close", no_argument, NULL, 'o'},
    {"no-fork", no_argument, NULL, 'F'},
    {"unlock", no_argument, NULL, 'u'},
    {"command", required_argument, NULL, 'c'},
    {"verbose", no_argument, NULL, 'v'},
    {"version", no_argument, NULL, 'V'},
    {"outage-exit-code", required_argument, NULL, OWN_OUTAGE},
    {"loaded", required_argument, NULL, OWN_LOADED}, /* the second run's */
    {0},
};

void help_lock(void)
{
    printf("usage: netflock lock [OPTION...] FILE [OPTION...] [--] COMMAND [ARG...]\n"
           "       netflock lock [OPTION...] FILE -c 'SHELL COMMAND'\n"
           "       netflock lock [OPTION...] FD\n"
           "\n"
           "Does what flock(1) does, between hosts: runs COMMAND under a lock on FILE (which may be\n"
           "a folder), or locks an open descriptor of the calling shell.\n"
           "\n"
           "  -s, --shared             a shared lock\n"
           "  -x, -e, --exclusive      an exclusive one (the default)\n"
           "  -u, --unlock             unlock FD\n"
           "  -n, --nonblock, --nb     fail rather than wait\n"
           "  -w, --timeout, --wait SECS\n"
           "                           wait no longer than this\n"
           "  -E, --conflict-exit-code N\n"
           "                           the exit status if somebody else has it (1)\n"
           "  --outage-exit-code N     the exit status if Redis is away or refuses (75)\n"
           "  -o, --close              COMMAND does not get the lock's descriptor\n"
           "  -F, --no-fork            become COMMAND; if the lock is lost, nobody is told\n"
           "  -c, --command STRING     a command for $SHELL\n"
           "  -v, --verbose            say what happens\n"
           "  -V, --version\n");
    options_help(NULL);
    printf("\n"
           "COMMAND finds the fencing token in NETFLOCK_FENCE. If the lock is lost it gets the\n"
           "signal of --on-lost (by default SIGTERM), as do the processes that it started.\n"
           "\n"
           "Exit status: COMMAND's own, 128+N if signal N ended it; 1 somebody else has the lock;\n"
           "64 wrong usage; 65 the lock call failed; 66 FILE cannot be opened; 69 COMMAND cannot be\n"
           "executed; 71 the system has no resources; 73 FILE cannot be created; 75 Redis is away or\n"
           "refuses; 76 COMMAND ended with 0, but the lock had been lost; 78 wrong configuration,\n"
           "FILE is below no prefix, or there is no library.\n");
}

/* An exit status from text. */
static int take_code(const char *option, const char *value, int *out)
{
    char *end;
    errno = 0;
    long n = strtol(value, &end, 10);
    if (*end || end == value || errno || n < 0 || n > 255) {
        complain("lock: %s \"%s\" is not allowed; allowed: 0 to 255", option, value);
        return -1;
    }
    *out = (int)n;
    return 0;
}

/* Seconds, with a fraction, as flock(1) takes them. */
static int take_timeout(struct lock_job *job, const char *value)
{
    char *end;
    errno = 0;
    double s = strtod(value, &end);
    if (*end || end == value || value[strspn(value, "0123456789.")] || errno || s > 1e9) {
        complain("lock: -w \"%s\" is not allowed; allowed: seconds, such as 5 or 0.5", value);
        return -1;
    }
    job->timeout = value;
    job->timeout_us = (int64_t)(s * 1e6);
    return 0;
}

/* "SIGNAL" or "SIGNAL:VALUE", which the first run has written. */
static int take_loaded(struct lock_job *job, const char *value)
{
    char *end;
    long sig = strtol(value, &end, 10);
    if (end == value || sig < 0 || sig >= NSIG || (*end && *end != ':')) {
        complain("lock: --loaded is not for you");
        return -1;
    }
    job->loaded = true;
    job->on_lost = (int)sig;
    job->on_lost_is = *end ? end + 1 : NULL;
    return 0;
}

static int take(struct options *o, int option, const char *value)
{
    struct lock_job *job = o->arg;
    switch (option) {
    case 's':
        job->op = LOCK_SH;
        return 0;
    case 'x':
    case 'e':
        job->op = LOCK_EX;
        return 0;
    case 'u':
        job->op = LOCK_UN;
        return 0;
    case 'n':
        job->nonblock = true;
        return 0;
    case 'w':
        return take_timeout(job, value);
    case 'E':
        return take_code("-E", value, &job->conflict);
    case OWN_OUTAGE:
        return take_code("--outage-exit-code", value, &job->outage);
    case 'o':
        job->close = true;
        return 0;
    case 'F':
        job->no_fork = true;
        return 0;
    case 'c':
        job->shell_command = value;
        return 0;
    case 'v':
        job->verbose = true;
        return 0;
    case OWN_LOADED:
        return take_loaded(job, value);
    default: /* 'V' */
        printf("netflock %s\n", NF_VERSION);
        exit(fflush(stdout) == 0 ? 0 : LOCK_OS);
    }
}

static bool all_digits(const char *s)
{
    return *s && !s[strspn(s, "0123456789")];
}

/* What does not go together. 0, or -1 after a complaint. */
static int check(const struct lock_job *job)
{
    if (!job->word) {
        complain("lock: a file, a folder or the number of a descriptor is needed; see netflock help lock");
    } else if (job->no_fork && job->close) {
        complain("lock: --no-fork and --close exclude each other");
    } else if (job->shell_command && job->command) {
        complain("lock: -c takes exactly one command, and nothing after it");
    } else if (!job->shell_command && !job->command && !all_digits(job->word)) {
        char buf[256];
        complain("lock: bad descriptor number \"%s\" (and for a file a command is needed)", shown_word(job->word, buf, sizeof buf));
    } else {
        return 0;
    }
    return -1;
}

/* Options may stand before and after FILE. 0; 1 if help was asked for; -1 after a complaint. */
static int parse(struct lock_job *job, int argc, char **argv)
{
    struct options o = {.command = "lock", .letters = LETTERS, .own = own, .take = take, .arg = job};
    int first = options_parse(&o, argc, argv);
    if (first < 0 || o.help)
        return first < 0 ? -1 : 1;
    job->word = argv[first];
    if (job->word) {
        int second = options_parse(&o, argc - first, argv + first);
        if (second < 0 || o.help)
            return second < 0 ? -1 : 1;
        job->command = argv[first + second] ? argv + first + second : NULL;
    }
    return check(job);
}

struct words {
    char *v[40];
    size_t n;
};

static void add(struct words *w, const char *s)
{
    w->v[w->n++] = (char *)s;
}

static void add_pair(struct words *w, const char *option, const char *value)
{
    add(w, option);
    add(w, value);
}

/* The command line of the second run: without the settings, which are in the environment now. */
static char **second_words(const struct lock_job *job, const char *own_name, char *loaded, char codes[2][16])
{
    struct words w = {0};
    const char *shell = getenv("SHELL");
    size_t n = 0;
    add_pair(&w, own_name, "lock");
    add(&w, loaded);
    add(&w, job->op == LOCK_SH ? "-s" : job->op == LOCK_UN ? "-u" : "-x");
    if (job->nonblock)
        add(&w, "-n");
    if (job->timeout)
        add_pair(&w, "-w", job->timeout);
    (void)snprintf(codes[0], 16, "%d", job->conflict);
    (void)snprintf(codes[1], 16, "%d", job->outage);
    add_pair(&w, "-E", codes[0]);
    add_pair(&w, "--outage-exit-code", codes[1]);
    if (job->close)
        add(&w, "-o");
    if (job->no_fork)
        add(&w, "-F");
    if (job->verbose)
        add(&w, "-v");
    add_pair(&w, "--", job->word);
    if (job->command || job->shell_command)
        add(&w, "--");
    if (job->shell_command) {
        add_pair(&w, shell && *shell ? shell : "/bin/sh", "-c");
        add(&w, job->shell_command);
    }
    while (job->command && job->command[n])
        n++;
    char **all = need(calloc(w.n + n + 1, sizeof *all));
    memcpy(all, w.v, w.n * sizeof *all);
    if (n)
        memcpy(all + w.n, job->command, n * sizeof *all);
    return all;
}

/*
 * Into the second run. There the library must not end this process when the lock is lost: what is to be told is the command.
 * So it is told to log alone, and the policy goes beside it.
 */
static int again(const struct lock_job *job, const struct nf_config *c, const char *library)
{
    char self[PATH_MAX];
    char codes[2][16];
    const char *is = getenv("NETFLOCK_ON_LOST");
    char *loaded = NULL;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) {
        complain("lock: /proc/self/exe cannot be read: %m");
        return LOCK_OS;
    }
    self[n] = 0;
    if (asprintf(&loaded, "--loaded=%d%s%s", c->policy.on_lost_signal, is ? ":" : "", is ? is : "") < 0)
        loaded = NULL;
    char **argv = second_words(job, "netflock", need(loaded), codes);
    preload_set(library);
    if (setenv("NETFLOCK_ON_LOST", "log", 1) < 0)
        (void)need(NULL);
    (void)execv(self, argv);
    complain("lock: %s cannot be executed: %m", self);
    free(argv);
    free(loaded);
    return LOCK_OS;
}

int cmd_lock(int argc, char **argv)
{
    char library[PATH_MAX];
    struct lock_job job = {.op = LOCK_EX, .conflict = LOCK_CONFLICT, .outage = LOCK_OUTAGE};
    int r = parse(&job, argc, argv);
    if (r > 0)
        help_lock();
    if (r != 0)
        return r > 0 ? EXIT_OK : LOCK_USAGE;
    if (job.loaded)
        return lock_take(&job);
    const struct nf_config *c = options_config();
    if (!c)
        return LOCK_CONFIGURATION;
    if (c->n_prefix == 0 && !c->disabled) {
        complain("lock: no prefix is configured, so that no other host would be excluded: give --prefix, or set NETFLOCK_PREFIX");
        return LOCK_CONFIGURATION;
    }
    if (preload_find("lock", library) < 0)
        return LOCK_CONFIGURATION;
    return again(&job, c, library);
}
