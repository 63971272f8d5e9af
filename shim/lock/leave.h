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

/* This process is a copy that was made without the C library's fork() (NF_FORKED): what nf_fork_child() would have done. */
void nf_fork_noticed(void);

/*
 * Before a child is made that keeps descriptors without close-on-exec (posix_spawn, system, popen); with `any`, perhaps
 * others too (file actions). Keeps errno.
 */
void nf_spawn_prepare(bool any);

/* Before execve(2), in this process or in a vfork child of it. Keeps errno. */
void nf_exec_prepare(void);

/*
 * The process ends: at once (_exit, the last handler of quick_exit), or as soon as all destructors and handlers have run and
 * stdio has been flushed (from our destructor). Keep errno.
 */
void nf_exit_now(void);
void nf_exit_begin(void);

#endif
