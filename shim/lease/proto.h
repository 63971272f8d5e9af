/*
 * What the shim and its keeper say to each other: fixed structs over a SOCK_SEQPACKET socket between processes of the
 * same user on one machine, made by the same build (checked by size and version).
 *
 * A new keeper gets one hello and its tenures through the socket that it was started with, and answers NF_HO_MINE once
 * it watches and renews them. A keeper also listens on an abstract socket per file (nf_ho_address), where a message
 * NF_HO_GIVE hands it a further tenure of that file, NF_HO_SYNC asks it to look at the kernel's lock at once, and
 * NF_HO_ENDED tells it that the tenure with this token has ended.
 */
#ifndef NF_LEASE_PROTO_H
#define NF_LEASE_PROTO_H

#include "base/config.h"
#include "lease/tenure.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#define NF_HO_MAGIC 0x6e666b31u /* changes with the meaning of these structs */
#define NF_HO_KEY_MAX 8192

enum nf_ho_type { NF_HO_HELLO = 1, NF_HO_GIVE, NF_HO_SYNC, NF_HO_ENDED };

/* Answers, one byte each. */
#define NF_HO_MINE 'M' /* the tenure is watched and renewed by me */
#define NF_HO_IDLE 'I' /* nobody holds the file here, and what I had is released */
#define NF_HO_HELD 'H' /* somebody holds the file */
#define NF_HO_NO 'N'   /* not understood, or not my file */

/* A new keeper on a busy machine may take its time: its answer is waited for so long, not longer. */
#define NF_HO_ANSWER_MS 5000

/* A keeper's look at the kernel's lock lasts microseconds, telling Redis little more: who asks waits no longer than this. */
#define NF_KEEPER_WAIT_MS 100

struct nf_ho_hello {
    uint32_t magic;
    uint32_t type;
    uint32_t n; /* tenures that follow */
    struct nf_redis_opts redis;
    struct nf_policy policy;
    struct nf_log_conf log;
};

#define NF_PID_SPACE_MAX 32

struct nf_ho_tenure {
    uint32_t magic;
    uint32_t type;
    uint64_t dev, ino;
    int64_t renewed_ms, deadline_ms; /* CLOCK_BOOTTIME */
    int32_t hold_fd;                 /* in a new keeper: the stand-in, held as long as anybody has held_fd's description; -1 none */
    int32_t held_fd;
    int32_t parent, parent_fd; /* who probably has it, under which number; of an owner of record locks ('p'): that process */
    int32_t fresh_fd;          /* in a new keeper: its own open file description of the file, -1 none */
    int32_t identity_len;
    uint32_t key_len;
    bool alone;                  /* of record locks: the kernel has none */
    char pids[NF_PID_SPACE_MAX]; /* of an owner of record locks ('p'): what `parent` is a number of (nf_pid_space) */
    bool ofd;                    /* the lock is an open file description lock, on a stand-in */
    char mode;
    char fence[NF_FENCE_MAX];
    char token[NF_TOKEN_MAX];
    char key[NF_HO_KEY_MAX]; /* only key_len bytes are sent */
};

#define NF_HO_TENURE_SIZE(key_len) (offsetof(struct nf_ho_tenure, key) + (key_len))

/* Fills in a message about t. 0, or -ENAMETOOLONG. */
int nf_ho_pack(struct nf_ho_tenure *m, enum nf_ho_type type, const struct nf_tenure *t);

/* The PID namespace of this process, by the kernel's name; "" if it cannot be told. */
void nf_pid_space(char buf[NF_PID_SPACE_MAX]);

/* The abstract address of the keeper of a file, for this user; returns the address's length. */
socklen_t nf_ho_address(struct sockaddr_un *addr, uint64_t dev, uint64_t ino, const char *key, size_t key_len,
                        const struct nf_redis_opts *redis);

/* Is the peer of this socket a process of our own user, or of root? Anybody can bind an abstract name. */
bool nf_ho_peer_trusted(int fd);

/* One message over a connected socket, whole: 0 or -errno. */
int nf_ho_send(int fd, const void *msg, size_t len);

/* The answer to it, one byte; -ETIMEDOUT if none came within wait_ms, -EPIPE if none will come, or nonsense did. */
int nf_ho_answer(int fd, int wait_ms);

/*
 * Sends m to the keeper of m's file and waits for its answer: 0 and *reply (0: it left while we asked, or is slower than
 * wait_ms); -ECONNREFUSED if there is no such keeper, -EPERM if somebody else has its address, another -errno.
 */
int nf_ho_ask(const struct nf_ho_tenure *m, const struct nf_redis_opts *redis, int wait_ms, char *reply);

#endif
