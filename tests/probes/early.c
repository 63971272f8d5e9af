#define _GNU_SOURCE
/*
 * libearly.so: calls flock and close from a constructor, as logging and profiling libraries do. Loaded after the
 * shim, its constructor runs before the shim's own. EARLY_FILE names the file, EARLY_OUT where to say how it went.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

__attribute__((constructor)) static void early(void)
{
    const char *path = getenv("EARLY_FILE"), *out = getenv("EARLY_OUT");
    int fd, r, err;
    FILE *f;

    if (!path || !out)
        return;
    fd = open(path, O_RDWR | O_CREAT, 0666);
    r = flock(fd, LOCK_EX | LOCK_NB);
    err = errno;
    f = fopen(out, "w");
    if (f) {
        fprintf(f, "%s\n", r == 0 ? "OK" : strerrorname_np(err));
        fclose(f);
    }
    if (getenv("EARLY_CLOSE"))
        close(fd);
}
