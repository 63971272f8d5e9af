/*
 * The moments at which this process, or its only view of a lock, goes away: fork, exec, exit.
 */
#ifndef NF_LOCK_LEAVE_H
#define NF_LOCK_LEAVE_H

#include <stdbool.h>

/* Before fork(); then exactly one of the other two, in each process. */
void nf_fork_prepare(void);
void nf_fork_parent(void);
void nf_fork_child(void);

/*
 * Before a child is made that keeps descriptors without close-on-exec (posix_spawn, system, popen); with `any`, perhaps
 * others too (file actions). Keeps errno.
 */
void nf_spawn_prepare(bool any);

/* Before execve(2), in this process or in a vfork child of it. Keeps errno. */
void nf_exec_prepare(void);

/* Before the process ends. Keeps errno. */
void nf_exit_prepare(void);

#endif
