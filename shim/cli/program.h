/*
 * Finding a program, and telling whether a preloaded library can reach it.
 */
#ifndef NF_CLI_PROGRAM_H
#define NF_CLI_PROGRAM_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* Finds name as execvp(3) does. Returns its path, to be freed, or NULL with *err -ENOENT or -EACCES, ... */
char *program_find(const char *name, int *err);

/* Executes the file, as execvp(3) does also with a script that has no first line. Returns -errno. */
int program_execute(const char *path, char **argv);

struct verdict {
    const char *kind;         /* what keeps the library out: "static", "privileged", "machine", "libc", "environment"; NULL: nothing */
    char why[PATH_MAX + 512]; /* the same as one clause: "/usr/bin/x is statically linked: ..." */
    bool go;                  /* reached, but written in Go, which makes its system calls itself */
    bool unread;              /* it, or its interpreter, cannot be read: nobody can tell */
};

/*
 * False if a library that is preloaded would not be loaded by the program at path, or by the interpreter that its
 * first line names. True also when nobody can tell.
 */
bool program_reachable(const char *path, struct verdict *v);

/* Is the file a shared object that programs of our own kind can load? If not, `why` gets one clause. */
bool library_usable(const char *path, char *why, size_t size);

#endif
