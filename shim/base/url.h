/*
 * Where Redis is: the URL's parts, in one flat struct that can be copied to another process.
 */
#ifndef NF_BASE_URL_H
#define NF_BASE_URL_H

#include <stdbool.h>
#include <stdint.h>

struct nf_redis_opts {
    char unix_path[108]; /* not empty: a unix socket, and host and port mean nothing */
    char host[256];
    uint16_t port;
    uint16_t db;
    char user[256];
    char password[1024];
    int timeout_ms;       /* for connecting with its handshake, and for each command */
    int grace;            /* enum nf_grace: not 0, the server's run id is asked for */
    char grace_arg[16];   /* the same, and how long it lasts, as the scripts want it: "1:30000" (run.lua) */
    int check;            /* enum nf_check */
    bool look_nothing_up; /* where a name's address is not known yet, fail: see nf_resolve_known() */
};

/*
 * Parses redis://[user[:password]@]host[:port][/db] or unix:///path[?db=N]; %XX in user and password is decoded.
 * Returns 0, or -EINVAL with out unchanged. `redis://:secret@host` has a password and no user.
 */
int nf_url_parse(const char *url, struct nf_redis_opts *out);

/* The URL with anything that may be a password as ***, for messages. */
void nf_url_mask(const char *url, char *buf, unsigned long size);

/* "host:port" or the socket's path, for messages. */
void nf_redis_name(const struct nf_redis_opts *opts, char *buf, unsigned long size);

#endif
