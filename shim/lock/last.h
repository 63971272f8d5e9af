/*
 * The end of the first process of a PID namespace, with which everything in it ends: see docs/design.md, "When everything
 * ends at once".
 */
#ifndef NF_LOCK_LAST_H
#define NF_LOCK_LAST_H

#include <stdbool.h>

/* Is this PID 1? Its locks are not handed to a keeper, which would die with it. One system call. */
bool nf_last_first(void);

/* Is this PID 1, or the child of a PID 1 that may end with it? Two system calls for everybody else. */
bool nf_last_concerned(void);

/*
 * The program has done all that it will do: what it and, if it is PID 1, its namespace hold is given back now, within the
 * time-out of a command. With `flush`, after the C library's streams have been written out. Does nothing the second time.
 */
void nf_last_end(bool flush);

#endif
