/*
 * The hand-over to the keeper, seen from the program: a tenure whose end this process cannot see is given away.
 *
 * Called with signals blocked and cancellation off (nf_quiet), the table not locked.
 */
#ifndef NF_LEASE_KEEPER_H
#define NF_LEASE_KEEPER_H

#include "lease/tenure.h"

/*
 * Gives the n tenures (referenced) to the keepers that already serve their files, and the rest to one new keeper.
 * Those that were taken on are marked kept; until then our own thread renews them. 0, or -errno when some could not
 * be given away (logged).
 */
int nf_keeper_give(struct nf_tenure **list, size_t n);

/* Says, once, that no keeper could be had. */
void nf_keeper_failed(const char *key, int err);

/* Why tenures are given away: what of this process goes, or is copied. */
enum nf_leaving {
    NF_LEAVING_FORK,  /* every descriptor is copied */
    NF_LEAVING_SPAWN, /* those without close-on-exec are */
    NF_LEAVING_EXEC,  /* the program goes, the process stays: with its own record locks too */
    NF_LEAVING_EXIT,
};

/* All tenures of this process that concerns and that are not kept. At a fork or spawn a new keeper's answer is not waited for. */
int nf_keeper_give_all(enum nf_leaving why);

enum nf_keeper_state { NF_KEEPER_NONE, NF_KEEPER_IDLE, NF_KEEPER_HELD };

/*
 * Asks the keeper of a file, if there is one, to look at the kernel's lock now: IDLE means that nobody holds it here
 * and that Redis has been told. Bounded (NF_KEEPER_WAIT_MS).
 */
enum nf_keeper_state nf_keeper_sync(dev_t dev, ino_t ino, const char *key, size_t key_len);

/*
 * Tells the keeper of a file that the tenure with this token has ended: its lock was given up, or the caller has the
 * kernel's lock that it stood for. False if there is no such keeper.
 */
bool nf_keeper_ended(dev_t dev, ino_t ino, const char *key, size_t key_len, const char *token);

/* What a new keeper gets of each file, besides its tenure. */
struct nf_keeper_fds {
    int fd;    /* a descriptor of the file whose lock counts */
    dev_t dev; /* which must still be this file when the keeper opens it */
    ino_t ino;
    bool ofd;  /* it is a stand-in, locked with open file description locks */
    int fresh; /* out: the keeper's own open file description of it, by number; -1 where none could be had */
    int hold;  /* a stand-in that the keeper inherits, to keep its lock alive as long as anybody has `held`; -1: none */
    int held;  /* the host's own descriptor, likewise */
};

/* spawn.c: starts a keeper. Returns our end of its control socket, or -errno. */
int nf_keeper_spawn(struct nf_keeper_fds *files, size_t n);

#endif
