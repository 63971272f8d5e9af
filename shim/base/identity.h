/*
 * Who holds: the identity of an inode on this host, and tokens.
 *
 * A token is one printable string,
 *   nf1:BOOT:DEV:INO:NONCE:HOST:PID:COMMAND:START
 * whose part up to and with INO and its colon is the identity: boot id (with NETFLOCK_HOST), device, inode. Whoever
 * holds the kernel's lock on that inode may adopt a token with the same identity. NONCE is random and makes the token
 * unique to the tenure; the rest is for people. START is in ms since 1970.
 */
#ifndef NF_BASE_IDENTITY_H
#define NF_BASE_IDENTITY_H

#include "base/config.h"

#include <stdint.h>
#include <sys/types.h>

#define NF_TOKEN_MAX 320
#define NF_FIELD_MAX 65

/* Writes a new token to buf (NF_TOKEN_MAX bytes); returns the length of its identity part, or -errno. */
int nf_token_make(char *buf, const char *host_extra, dev_t dev, ino_t ino);

/* The same with a given NONCE (hex digits, letters, '.' and '~'; at most 80). */
int nf_token_make_as(char *buf, const char *host_extra, dev_t dev, ino_t ino, const char *nonce);

struct nf_token_info {
    char host[NF_FIELD_MAX];
    char command[NF_FIELD_MAX];
    long pid;
    int64_t start_ms;
    int identity_len;
};

/* Takes a token apart; -EINVAL if it is none of ours (then nothing is written). Trusts nothing in it. */
int nf_token_parse(const char *token, struct nf_token_info *out);

#endif
