/*
 * The other processes of this one's PID namespace.
 */
#ifndef NF_BASE_PROCS_H
#define NF_BASE_PROCS_H

#include <stdbool.h>
#include <sys/types.h>

struct nf_proc {
    pid_t pid;     /* as our namespace numbers it */
    char state;    /* as in /proc/PID/stat: 'Z' a zombie, 'X' dead */
    char comm[17]; /* its name, which it can choose */
};

/*
 * Calls seen() for every process of our PID namespace, and of those inside it, that /proc shows, except for this one.
 * 0, or -errno: nobody can tell.
 */
int nf_procs(void (*seen)(const struct nf_proc *p, void *arg), void *arg);

/* Is this another PID namespace than the machine's first one? In doubt (no /proc) no. */
bool nf_pid_namespaced(void);

#endif
