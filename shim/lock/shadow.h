/*
 * A stand-in for the kernel's lock, where the file's own cannot be had (ENOSYS on Lustre, ENOLCK on some NFS) or is
 * not wanted (NETFLOCK_LOCAL=off, NETFLOCK_LOCAL=DIR).
 *
 * The stand-in is an open file description of our own, with a real flock on it. Processes inherit it like the
 * descriptor that it stands for, and a keeper watches it like any other. Without a folder it is a memfd, which nobody
 * else can find: then Redis alone decides between the processes of this host too. With a folder it is a file there,
 * one per inode, and the kernel arbitrates on it as usual.
 */
#ifndef NF_LOCK_SHADOW_H
#define NF_LOCK_SHADOW_H

#include "base/config.h"
#include "lease/tenure.h"
#include "lock/match.h"

#include <stdbool.h>

/* Is a stand-in used from the start, without asking for the file's own lock? */
bool nf_shadow_wanted(const struct nf_config *c);

/* The kernel refused the file's own lock with err: may a stand-in be used? Says so once. */
bool nf_shadow_allowed(const struct nf_config *c, int err, const struct nf_file *f);

/* A new stand-in for f, close-on-exec, at a high number: its descriptor, or -errno (logged). */
int nf_shadow_open(const struct nf_config *c, const struct nf_file *f);

/* Another descriptor of this process with fd's open file description, that stands for no other tenure; -ENOENT. */
int nf_shadow_other(int fd, dev_t dev, ino_t ino);

/* The stand-ins survive an exec exactly if the descriptors that they stand for do. Takes the table's lock. */
void nf_shadow_follow(void);

#endif
