/*
 * See bench.h.
 */
#include "bench.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

int64_t quantile(int64_t *v, size_t n, double q)
{
    if (n == 0)
        return 0;
    qsort(v, n, sizeof *v, ascending);
    return v[(size_t)((double)(n - 1) * q + 0.5)];
}

void die(const char *what)
{
    perror(what);
    exit(2);
}

int redis_dial(const char *addr)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int path = addr[0] == '/';
    int on = 1;
    int fd = socket(path ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (path)
        (void)snprintf(un.sun_path, sizeof un.sun_path, "%s", addr);
    else
        in.sin_port = htons((uint16_t)atoi(addr));
    if (fd < 0 || connect(fd, path ? (void *)&un : (void *)&in, path ? sizeof un : sizeof in) < 0)
        die(addr);
    if (!path)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

void redis_ping(int fd)
{
    static const char ping[] = "*1\r\n$4\r\nPING\r\n";
    char answer[16];
    if (send(fd, ping, sizeof ping - 1, MSG_NOSIGNAL) != (ssize_t)(sizeof ping - 1) || recv(fd, answer, sizeof answer, 0) != 7)
        die("PING");
}

void redis_line(int fd, const char *line, char *buf, size_t size)
{
    size_t got = 0;
    size_t want = size - 1;
    if (send(fd, line, strlen(line), MSG_NOSIGNAL) < 0 || send(fd, "\r\n", 2, MSG_NOSIGNAL) < 0)
        die(line);
    while (got < want) {
        ssize_t n = recv(fd, buf + got, size - 1 - got, 0);
        if (n <= 0)
            die(line);
        got += (size_t)n;
        buf[got] = 0;
        const char *body = strstr(buf, "\r\n");
        if (body && buf[0] == '$')
            want = (size_t)(body + 2 - buf) + strtoul(buf + 1, NULL, 10) + 2;
        else if (body)
            want = got;
    }
}

void *map_shared(const char *path, size_t size)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *p = fd < 0 || ftruncate(fd, (off_t)size) < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        die(path);
    (void)close(fd);
    return p;
}
