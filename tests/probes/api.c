/*
 * api: what include/netflock.h offers, and the locks that it is asked about, one step at a time. C and C++: built with
 * -DLINKED it is linked with the library and calls it directly, else it looks for the functions as a program does that can
 * do without.
 *
 * Reads commands, answers each with one line: OK, a number, or the name of an error. Descriptors are numbers.
 *   open PATH           prints the descriptor
 *   close FD            dup FD
 *   flock FD ex|sh|un   without waiting
 *   lockf FD x|u        the whole file, for this process
 *   ofd FD x|u          the same for the open file description
 *   fence FD   lease FD   version
 *   fork                a child takes over; "exit" in it gives the word back to the parent
 *   exec                this program again, with its descriptors
 *   exit
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "netflock.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

typedef const char *version_fn(void);
typedef int fence_fn(int fd, uint64_t *token);
typedef int lease_fn(int fd, int64_t *remaining_ms);

static version_fn *version;
static fence_fn *fence;
static lease_fn *lease;

static void find(void)
{
#ifdef LINKED
    version = netflock_version;
    fence = netflock_fence;
    lease = netflock_lease;
#else
    *(void **)&version = dlsym(RTLD_DEFAULT, "netflock_version");
    *(void **)&fence = dlsym(RTLD_DEFAULT, "netflock_fence");
    *(void **)&lease = dlsym(RTLD_DEFAULT, "netflock_lease");
#endif
}

static void say(int r)
{
    puts(r < 0 ? strerrorname_np(errno) : "OK");
}

static void ask(const char *what, int fd)
{
    uint64_t token = 0;
    int64_t left = 0;
    errno = 4242;
    if (!fence || !lease)
        puts("not protected");
    else if (!strcmp(what, "fence") ? fence(fd, &token) < 0 : lease(fd, &left) < 0)
        puts(strerrorname_np(errno));
    else if (errno != 4242)
        puts("errno changed");
    else if (!strcmp(what, "fence"))
        printf("%" PRIu64 "\n", token);
    else
        printf("%" PRId64 "\n", left);
}

static int record(int fd, int cmd, const char *mode)
{
    struct flock fl;
    memset(&fl, 0, sizeof fl);
    fl.l_type = *mode == 'u' ? F_UNLCK : F_WRLCK;
    fl.l_whence = SEEK_SET;
    return fcntl(fd, cmd, &fl);
}

int main(int argc, char **argv)
{
    char line[4200], what[16], rest[4200];
    (void)argc;
    setvbuf(stdout, NULL, _IOLBF, 0);
    setvbuf(stdin, NULL, _IONBF, 0); /* what the child has not read is for the parent */
    find();
    puts("READY");
    while (fgets(line, sizeof line, stdin)) {
        char mode[8] = "";
        rest[0] = 0;
        if (sscanf(line, "%15s %4100s %7s", what, rest, mode) < 1)
            continue;
        int fd = atoi(rest);
        if (!strcmp(what, "open")) {
            printf("%d\n", open(rest, O_RDWR | O_CREAT, 0666));
        } else if (!strcmp(what, "close")) {
            say(close(fd));
        } else if (!strcmp(what, "dup")) {
            printf("%d\n", dup(fd));
        } else if (!strcmp(what, "flock")) {
            say(flock(fd, (mode[0] == 'e' ? LOCK_EX : mode[0] == 's' ? LOCK_SH : LOCK_UN) | LOCK_NB));
        } else if (!strcmp(what, "lockf")) {
            say(record(fd, F_SETLK, mode));
        } else if (!strcmp(what, "ofd")) {
            say(record(fd, F_OFD_SETLK, mode));
        } else if (!strcmp(what, "fence") || !strcmp(what, "lease")) {
            ask(what, fd);
        } else if (!strcmp(what, "version")) {
            puts(version ? version() : "not protected");
        } else if (!strcmp(what, "fork")) {
            pid_t child = fork();
            if (child > 0)
                while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
                    ;
            puts("OK");
        } else if (!strcmp(what, "exec")) {
            execv("/proc/self/exe", argv);
            say(-1);
        } else {
            return 0;
        }
    }
    return 0;
}
