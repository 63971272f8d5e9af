/*
 * static FILE: takes an exclusive lock without waiting and says so. Built twice: linked statically, and against
 * another C library. A preloaded library reaches neither, so a launcher has to refuse both.
 * Without FILE it sleeps for ever: what a lock is handed to that was taken before.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int fd;
    if (argc < 2)
        for (;;)
            pause();
    fd = open(argv[1], O_RDWR | O_CREAT, 0666);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0) {
        perror(argv[1]);
        return 1;
    }
    puts("locked");
    return 0;
}
