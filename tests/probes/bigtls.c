/* bigtls FILE: has more data for each thread than a small stack has room for. Locks FILE: prints the result. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>

static __thread char much[400000];

int main(int argc, char **argv)
{
    int fd = open(argv[1], O_RDWR | O_CREAT, 0666);
    int r = flock(fd, LOCK_EX);

    much[argc] = 1;
    printf("flock %d %s\n", r, r ? strerror(errno) : "");
    return r != 0 || much[argc] != 1;
}
