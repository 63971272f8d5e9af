/*
 * init CMD...: runs CMD and ends as soon as it has ended, with its status. Linked statically: no preload reaches it, like the
 * small inits that container runtimes put in front of a program.
 */
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int status;
    pid_t pid = fork();
    if (argc < 2 || pid < 0)
        return 125;
    if (pid == 0) {
        execvp(argv[1], argv + 1);
        _exit(127);
    }
    if (waitpid(pid, &status, 0) != pid)
        return 125;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
