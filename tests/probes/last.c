/*
 * last HOW FILE DATA: locks FILE, and says so at the very end of its life in DATA, through a stream that it leaves to be
 * flushed. HOW: main, exit, quick_exit, _exit (which flush it or, as _exit, write without one); thread: main returns while
 * another thread reads standard input, whose stream it keeps locked; destructor: the last line comes from a handler that runs
 * after main.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static FILE *data;

static void last_line(void)
{
    fputs("by a handler\n", data);
}

static void flush_it(void)
{
    fflush(data);
}

static void *reads(void *unused)
{
    getchar();
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc < 4)
        return 2;
    int fd = open(argv[2], O_RDWR | O_CREAT, 0666);
    data = fopen(argv[3], "w");
    if (fd < 0 || !data || flock(fd, LOCK_EX) < 0)
        return 3;
    fputs("last words\n", data);
    if (strcmp(argv[1], "destructor") == 0)
        atexit(last_line);
    if (strcmp(argv[1], "thread") == 0 && pthread_create(&thread, NULL, reads, NULL) != 0)
        return 4;
    if (strcmp(argv[1], "exit") == 0)
        exit(0);
    if (strcmp(argv[1], "quick_exit") == 0) {
        at_quick_exit(flush_it);
        quick_exit(0);
    }
    if (strcmp(argv[1], "_exit") == 0) {
        fflush(data);
        _exit(0);
    }
    usleep(20000); /* the thread sleeps in its read */
    return 0;
}
