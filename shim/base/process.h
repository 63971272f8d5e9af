/*
 * Which process is this? fork() copies our state, vfork() shares it, and neither need go through the C library.
 */
#ifndef NF_BASE_PROCESS_H
#define NF_BASE_PROCESS_H

#include <stdbool.h>

enum nf_where {
    NF_HOME,        /* the process whose state this is */
    NF_VFORK_CHILD, /* another process in the same memory: hands off */
    NF_FORKED,      /* a copy, made without the C library's fork(): to be cleaned first, then nf_process_adopt() */
};

/* Constructor, and the child after fork(): this process owns the state from now on. */
void nf_process_adopt(void);

/* One getpid(). Safe in a signal handler. */
enum nf_where nf_process_where(void);

/* How often this process has forked; a change tells that a child may have copies of its descriptors. */
unsigned nf_fork_count(void);
void nf_fork_counted(void);

/*
 * Are we all that is left of the program? When main() has called pthread_exit() and the last thread of the program's own
 * ends, the process ends with exit(0): the renewal thread must not keep it alive.
 */
bool nf_process_over(void);

#endif
