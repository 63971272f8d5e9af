/*
 * sigwait FILE restart|norestart EX|SH|UP MARK: waits for a lock, with a handler for SIGALRM that makes the file MARK. UP takes a
 * shared lock first ("ready" on standard output) and makes it exclusive. Prints what became of the call, how often the handler
 * ran, and what the kernel says that the descriptor holds: "EINTR handlers 1 holds nothing".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static volatile sig_atomic_t handled;
static const char *mark;

static void handler(int sig)
{
    int saved = errno;
    (void)sig;
    handled = handled + 1;
    close(open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    errno = saved;
}

static const char *holds(int fd)
{
    static char text[8192];
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fdinfo/%d", fd);
    int info = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t n = read(info, text, sizeof text - 1);
    close(info);
    text[n < 0 ? 0 : n] = 0;
    const char *lock = strstr(text, "lock:");
    return !lock ? "nothing" : strstr(lock, "WRITE") ? "an exclusive lock" : "a shared lock";
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    struct sigaction sa = {.sa_handler = handler, .sa_flags = strcmp(argv[2], "restart") ? 0 : SA_RESTART};
    int fd = open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    mark = argv[4];
    if (fd < 0 || sigaction(SIGALRM, &sa, NULL) < 0)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(argv[3], "UP")) {
        if (flock(fd, LOCK_SH) < 0)
            return 2;
        puts("ready");
    }
    errno = 0;
    int r = flock(fd, strcmp(argv[3], "SH") ? LOCK_EX : LOCK_SH);
    printf("%s handlers %d holds %s\n", r == 0 ? "OK" : strerrorname_np(errno), (int)handled, holds(fd));
    pause(); /* so that what is held stays held until somebody has looked */
    return 0;
}
