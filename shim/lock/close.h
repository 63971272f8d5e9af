/*
 * Closing a descriptor that may end a tenure: around the real close, two steps.
 */
#ifndef NF_LOCK_CLOSE_H
#define NF_LOCK_CLOSE_H

struct nf_tenure;

struct nf_closing {
    struct nf_tenure *tenure; /* NULL: nothing of ours */
    int other;                /* for a tenure with a stand-in: another descriptor like the one to be closed, or -errno */
    int shared;               /* another process may have the description */
    int errno_saved;
};

/* fd is watched and about to be closed: notes the tenure it stands for. Keeps errno. */
void nf_close_begin(int fd, struct nf_closing *c);

/*
 * It is closed. Looks for another descriptor of the same lock, and ends the tenure if there is none. Keeps errno.
 * The lock may live on in another process that shares the open file description; then the keeper has it.
 */
void nf_close_end(struct nf_closing *c);

/* A descriptor is sent to another process: its open file description is shared from now on. Keeps errno. */
void nf_close_share(int fd);

#endif
