/*
 * hiredis_clash FILE: a program with a hiredis of its own. It links the system's shared one, loads it once more
 * into the global scope, and exports functions of the same names that end the program. The shim must use neither.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define TRAP(name)                                          \
    void *name(void);                                       \
    void *name(void)                                        \
    {                                                       \
        fputs("the host's " #name " was called\n", stderr); \
        abort();                                            \
    }
TRAP(redisFormatCommandArgv)
TRAP(redisvFormatCommand)
TRAP(redisFormatSdsCommandArgv)
TRAP(redisReaderCreate)
TRAP(redisReaderCreateWithFunctions)
TRAP(redisReaderFeed)
TRAP(redisReaderGetReply)
TRAP(redisReaderFree)
TRAP(redisConnectWithTimeout)
TRAP(freeReplyObject)
TRAP(sdsnewlen)
TRAP(sdscatlen)
TRAP(sdsfree)
/* libbsd's are in libc too by now; these are not. */
TRAP(setproctitle)
TRAP(strtonum)

int main(int argc, char **argv)
{
    int fd;

    if (argc < 2)
        return 2;
    if (!dlopen("libhiredis.so.0.14", RTLD_NOW | RTLD_GLOBAL)) {
        fputs(dlerror(), stderr);
        return 2;
    }
    fd = open(argv[1], O_RDWR | O_CREAT, 0666);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        puts(strerrorname_np(errno));
        return 1;
    }
    puts("locked");
    fflush(stdout);
    getchar();
    return flock(fd, LOCK_UN) == 0 ? 0 : 1;
}
