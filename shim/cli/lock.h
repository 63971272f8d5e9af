/*
 * netflock lock: what its parts share.
 *
 * The command runs twice. First it is a program like any other: it checks its command line and the configuration, puts
 * LD_PRELOAD into the environment and executes itself again (lock_options.c). Then it calls flock(2) (lock.c), which is the
 * library's: so the lock is by construction the same that any program with the library would get. Then it runs the command
 * and keeps an eye on the lock (lock_run.c).
 */
#ifndef NF_CLI_LOCK_H
#define NF_CLI_LOCK_H

#include <stdbool.h>
#include <stdint.h>

/* sysexits(3), as flock(1) uses them, and what it has no words for. */
enum {
    LOCK_CONFLICT = 1,       /* somebody else has it (-E) */
    LOCK_USAGE = 64,         /* EX_USAGE */
    LOCK_DATA = 65,          /* EX_DATAERR: flock() failed: no such descriptor, ... */
    LOCK_NO_INPUT = 66,      /* EX_NOINPUT: the file cannot be opened */
    LOCK_UNAVAILABLE = 69,   /* EX_UNAVAILABLE: the command cannot be executed */
    LOCK_OS = 71,            /* EX_OSERR: no memory, no process */
    LOCK_CANNOT_CREATE = 73, /* EX_CANTCREAT: the file cannot be created */
    LOCK_OUTAGE = 75,        /* EX_TEMPFAIL: nobody can tell, for Redis is away or refuses (--outage-exit-code) */
    LOCK_LOST = 76,          /* EX_PROTOCOL: the command ended with 0, but the lock had been lost */
    LOCK_CONFIGURATION = 78, /* EX_CONFIG: a wrong setting, no prefix, no library */
};

struct lock_job {
    int op; /* LOCK_EX, LOCK_SH, LOCK_UN */
    bool nonblock, close, no_fork, verbose;
    const char *timeout; /* as given; NULL none */
    int64_t timeout_us;
    int conflict, outage; /* exit codes */
    const char *shell_command;
    char *word;     /* FILE or FD */
    char **command; /* NULL: FD alone */

    /* Of the second run: */
    bool loaded;
    int on_lost;            /* the signal; 0: only said */
    const char *on_lost_is; /* NETFLOCK_ON_LOST as the command is to have it; NULL: not set */
};

/* The second run. Returns the exit status. */
int lock_take(struct lock_job *job);

/* The lock is had on fd: runs job->command. Returns the exit status. */
int lock_run(const struct lock_job *job, int fd);

/* Sends sig to a process and to all that descend from it. */
void tree_signal(int pid, int sig);

#endif
