/*
 * Is this descriptor one of ours? And under which key?
 */
#ifndef NF_LOCK_MATCH_H
#define NF_LOCK_MATCH_H

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

struct nf_file {
    dev_t dev;
    ino_t ino;
    int shadow;     /* a stand-in for the kernel's lock (shadow.h); -1: the file's own lock counts */
    dev_t lock_dev; /* of the file whose kernel lock counts */
    ino_t lock_ino;
    size_t key_len;
    char key[PATH_MAX + 4352]; /* "lock:", a prefix's name, the rest of the path */
};

enum nf_match { NF_MATCH_NO, NF_MATCH_YES, NF_MATCH_DOUBT };

/*
 * YES fills in *out. NO: outside every prefix, not a file, not open, or nothing configured: none of our business.
 * DOUBT: nobody can tell (no /proc, a name beyond PATH_MAX, a prefix that could not be read): the call must fail with
 * ENOLCK. Keeps errno. Costs one fstat() for a descriptor that was found to be outside before.
 */
enum nf_match nf_match(int fd, struct nf_file *out);

#endif
