/* pidfile FILE: takes libbsd's pid file lock, writes the pid into it, becomes a daemon, stays until it is killed. */
#include <bsd/libutil.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	pid_t other = 0;
	struct pidfh *p = argc > 1 ? pidfile_open(argv[1], 0600, &other) : NULL;

	if (!p) {
		printf("%s, pid %d\n", errno == EEXIST ? "running" : strerror(errno), (int)other);
		return 1;
	}
	if (daemon(1, 0) < 0)
		return 2;
	pidfile_write(p);
	for (;;)
		pause();
}
