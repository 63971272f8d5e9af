/*
 * netflock fence: the fencing token of a file that this host holds.
 */
#include "cli/cli.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fdutil.h"
#include "base/identity.h"
#include "redis/look.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const settings[] = {"prefix", "url", "password_file", "connect_timeout", "host", NULL};

void help_fence(void)
{
    printf("usage: netflock fence [OPTION...] FILE|FD\n"
           "\n"
           "Prints the fencing token of the lock that this host has on FILE, or that a descriptor\n"
           "of the calling shell has. It is greater than that of every earlier holder.\n"
           "\n");
    options_help(settings);
    printf("\n"
           "Exit status: 0; 1 this host (this descriptor) does not have the lock; 2 wrong usage or\n"
           "configuration, FILE is below no prefix; 3 Redis cannot be reached, or refuses.\n");
}

/* Asks Redis. The exit status. */
static int ask(const struct nf_config *c, const char *word, const char *key, const struct stat *st)
{
    char token[NF_TOKEN_MAX];
    char redis[300];
    struct nf_look look;
    struct nf_token_info info;
    int identity_len = nf_token_make(token, c->policy.host_extra, st->st_dev, st->st_ino);
    if (identity_len < 0) {
        complain("fence: this host has no identity: %s", strerror(-identity_len));
        return EXIT_USAGE;
    }
    struct nf_names *names = need(nf_names_make(key, strlen(key)));
    nf_op_look(&c->redis, names, token, identity_len, false, nf_now_ms() + c->redis.timeout_ms, &look);
    nf_free(names);
    switch (look.result) {
    case NF_LOOK_DOWN:
    case NF_LOOK_REFUSED:
        nf_redis_name(&c->redis, redis, sizeof redis);
        complain("fence: Redis at %s: %s", redis, look.why);
        return EXIT_REDIS;
    case NF_LOOK_OURS:
        if (!look.fence[0])
            break; /* Redis has lost it */
        puts(look.fence);
        return EXIT_OK;
    case NF_LOOK_OTHER:
        if (nf_token_parse(look.holder, &info) == 0)
            complain("fence: %s is held by %s, pid %ld (%s)", word, info.host, info.pid, info.command);
        else
            complain("fence: %s is held by \"%.100s\"", word, look.holder);
        return EXIT_NOT_HELD;
    case NF_LOOK_NOBODY:
        break;
    }
    complain("fence: Redis knows of no lock that this host has on %s", word);
    return EXIT_NOT_HELD;
}

/*
 * The lock must be there in the kernel too, whose word counts on this host: what Redis has may be left from a holder that
 * was killed. Of a descriptor it can be told exactly; of a file, whether some process has it.
 */
static bool held_here(const char *word, int fd, bool by_number, const struct stat *st)
{
    int held = by_number ? nf_fd_lock_mode(fd, st->st_ino, false) : nf_inode_locked(st->st_ino, false, 0);
    if (held == 0)
        complain(by_number ? "fence: descriptor %s has no lock" : "fence: no process of this host has a lock on %s", word);
    return held != 0;
}

static int fence(const struct nf_config *c, const char *word)
{
    struct stat st;
    char name[PATH_MAX + 1];
    bool by_number = *word && !word[strspn(word, "0123456789")];
    char *end;
    long n = by_number ? strtol(word, &end, 10) : -1;
    int fd = by_number ? (n <= INT_MAX ? (int)n : -1) : open(word, O_PATH | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        int err = fd < 0 && by_number ? EBADF : errno;
        complain("fence: %s: %s", word, strerror(err));
        return err == ENOENT ? EXIT_NOT_HELD : EXIT_USAGE;
    }
    ssize_t len = nf_fd_name(fd, name, sizeof name);
    char *key = len < 0 ? NULL : name_to_key(c, name);
    int r = EXIT_USAGE;
    if (len < 0)
        complain("fence: the path of %s cannot be told: %s", word, strerror((int)-len));
    else if (!key)
        complain_prefix(c, "fence", word, name);
    else
        r = held_here(word, fd, by_number, &st) ? ask(c, word, key, &st) : EXIT_NOT_HELD;
    free(key);
    if (!by_number)
        (void)close(fd);
    return r;
}

int cmd_fence(int argc, char **argv)
{
    struct options o = {.command = "fence", .settings = settings};
    int first = options_parse(&o, argc, argv);
    if (first < 0)
        return EXIT_USAGE;
    if (o.help) {
        help_fence();
        return EXIT_OK;
    }
    if (!argv[first] || argv[first + 1]) {
        complain("fence: one file, or one number of a descriptor, is needed; see netflock help fence");
        return EXIT_USAGE;
    }
    const struct nf_config *c = options_config();
    return c ? fence(c, argv[first]) : EXIT_USAGE;
}
