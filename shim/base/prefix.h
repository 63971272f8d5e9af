/*
 * NETFLOCK_PREFIX: PATH[=NAME], separated by colons; a backslash takes the meaning off ':' '=' and itself.
 */
#ifndef NF_BASE_PREFIX_H
#define NF_BASE_PREFIX_H

#include "base/config.h"

/* Parses list into c->prefix. Logs one line and sets prefix_broken if some entry is not allowed; keeps the others. */
void nf_prefix_parse(struct nf_config *c, const char *list, const char *origin);

/* Fills in p->kernel, the kernel's name for p->path, if the folder exists now. Keeps errno. */
void nf_prefix_resolve(struct nf_prefix *p);

/*
 * The prefix that covers `path` (a kernel name), matched at component boundaries, the longest first; NULL if none.
 * *rest gets what follows the prefix: "" or "/...".
 */
const struct nf_prefix *nf_prefix_match(const struct nf_config *c, const char *path, const char **rest);

#endif
