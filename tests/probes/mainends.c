/*
 * mainends: main ends by pthread_exit(), which ends neither the process nor its other threads.
 *   mainends last FILE            locks; there is no other thread, so the process ends with it
 *   mainends worker FILE FOLDER   another thread locks after that: the result, and keeps it until FOLDER/end
 *   mainends close FILE FOLDER    main locks, and another thread closes once there is a FOLDER/close, until FOLDER/end
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *how, *file, *folder;
static int fd;

static void until(const char *mark)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", folder, mark);
    while (access(path, F_OK) != 0)
        usleep(10000);
}

static void done(const char *mark)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", folder, mark);
    if (mkdir(path, 0777) < 0)
        _exit(6);
}

/* Until the first thread is a zombie: from then on /proc/self/fd is empty. */
static void until_main_ended(void)
{
    char text[512], state = 0;
    while (state != 'Z') {
        FILE *f = fopen("/proc/self/stat", "r");
        size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
        text[n] = 0;
        char *after = strrchr(text, ')');
        state = after && after[1] ? after[2] : 0;
        if (f)
            fclose(f);
        usleep(5000);
    }
}

static void *work(void *arg)
{
    (void)arg;
    until_main_ended();
    if (!strcmp(how, "worker")) {
        fd = open(file, O_RDWR | O_CREAT, 0666);
        int r = flock(fd, LOCK_EX | LOCK_NB);
        printf("flock %d %s\n", r, r ? strerror(errno) : "");
        (void)fflush(stdout);
        done("asked");
    } else {
        done("ready");
        until("close");
        close(fd);
        done("closed");
    }
    until("end");
    exit(0);
}

int main(int argc, char **argv)
{
    pthread_t t;

    if (argc < 3)
        return 2;
    how = argv[1], file = argv[2], folder = argv[3];
    if (strcmp(how, "worker") != 0) {
        fd = open(file, O_RDWR | O_CREAT, 0666);
        if (flock(fd, LOCK_EX) < 0)
            return 3;
    }
    if (strcmp(how, "last") != 0 && pthread_create(&t, NULL, work, NULL) != 0)
        return 4;
    pthread_exit(NULL);
}
