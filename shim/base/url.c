/*
 * URL parsing: see url.h. Lengths are checked everywhere; what does not fit is an error, never cut.
 */
#include "base/url.h"

#include <bsd/string.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static int hex_digit(int c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes %XX of src[0..len) into dst. A NUL cannot be part of a name or password. */
static int decode(char *dst, size_t room, const char *src, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        int c = (unsigned char)src[i];
        if (c == '%') {
            if (i + 2 >= len)
                return -EINVAL;
            int hi = hex_digit((unsigned char)src[i + 1]);
            int lo = hex_digit((unsigned char)src[i + 2]);
            if (hi < 0 || lo < 0 || hi + lo == 0)
                return -EINVAL;
            c = hi * 16 + lo;
            i += 2;
        }
        if (n + 1 >= room)
            return -EINVAL;
        dst[n++] = (char)c;
    }
    dst[n] = 0;
    return 0;
}

/* A decimal number of at most five digits that ends at `end`; -EINVAL otherwise. */
static int number(const char *s, const char *end, long max)
{
    long v = 0;
    if (s == end || end - s > 5)
        return -EINVAL;
    for (; s < end; s++) {
        if (*s < '0' || *s > '9')
            return -EINVAL;
        v = v * 10 + (*s - '0');
    }
    return v > max ? -EINVAL : (int)v;
}

static int parse_unix(const char *path, struct nf_redis_opts *o)
{
    const char *query = strchr(path, '?');
    size_t len = query ? (size_t)(query - path) : strlen(path);
    if (path[0] != '/' || len < 2 || len >= sizeof o->unix_path)
        return -EINVAL;
    if (query) {
        if (strncmp(query, "?db=", 4) != 0)
            return -EINVAL;
        int db = number(query + 4, query + strlen(query), 65535);
        if (db < 0)
            return db;
        o->db = (uint16_t)db;
    }
    memcpy(o->unix_path, path, len);
    o->unix_path[len] = 0;
    return 0;
}

static int parse_userinfo(const char *s, size_t len, struct nf_redis_opts *o)
{
    const char *colon = memchr(s, ':', len);
    size_t user_len = colon ? (size_t)(colon - s) : len;
    if (decode(o->user, sizeof o->user, s, user_len) < 0)
        return -EINVAL;
    return colon ? decode(o->password, sizeof o->password, colon + 1, len - user_len - 1) : 0;
}

/* host, host:port, [v6], [v6]:port */
static int parse_address(const char *s, const char *end, struct nf_redis_opts *o)
{
    const char *host = s;
    const char *host_end;
    const char *rest;
    if (*s == '[') {
        host = s + 1;
        host_end = memchr(s, ']', (size_t)(end - s));
        if (!host_end)
            return -EINVAL;
        rest = host_end + 1;
    } else {
        host_end = memchr(s, ':', (size_t)(end - s));
        if (!host_end)
            host_end = end;
        rest = host_end;
    }
    size_t len = (size_t)(host_end - host);
    if (len == 0 || len >= sizeof o->host)
        return -EINVAL;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)host[i] <= ' ' || strchr("@/?#[]\"'\\", host[i]))
            return -EINVAL;
    if (rest < end) {
        if (*rest != ':')
            return -EINVAL;
        int port = number(rest + 1, end, 65535);
        if (port <= 0)
            return -EINVAL;
        o->port = (uint16_t)port;
    }
    memcpy(o->host, host, len);
    o->host[len] = 0;
    return 0;
}

static int parse_redis(const char *s, struct nf_redis_opts *o)
{
    const char *end = s + strlen(s);
    const char *slash = strchr(s, '/');
    const char *authority_end = slash ? slash : end;
    const char *at = memrchr(s, '@', (size_t)(authority_end - s));
    o->port = 6379;
    if (at) {
        if (parse_userinfo(s, (size_t)(at - s), o) < 0)
            return -EINVAL;
        s = at + 1;
    }
    if (parse_address(s, authority_end, o) < 0)
        return -EINVAL;
    if (slash && slash[1]) {
        int db = number(slash + 1, end, 65535);
        if (db < 0)
            return db;
        o->db = (uint16_t)db;
    }
    return 0;
}

int nf_url_parse(const char *url, struct nf_redis_opts *out)
{
    struct nf_redis_opts o = {.timeout_ms = out->timeout_ms, .grace = out->grace, .check = out->check};
    int r = -EINVAL;
    if (strncmp(url, "redis://", 8) == 0)
        r = parse_redis(url + 8, &o);
    else if (strncmp(url, "unix://", 7) == 0)
        r = parse_unix(url + 7, &o);
    if (r == 0)
        *out = o;
    return r;
}

/* What follows a colon is a port, and may be shown, if it looks like one. */
static int looks_like_port(const char *s)
{
    size_t n = strspn(s, "0123456789");
    return n > 0 && n <= 5 && (s[n] == 0 || s[n] == '/');
}

void nf_url_mask(const char *url, char *buf, unsigned long size)
{
    const char *at = strrchr(url, '@');
    const char *start = strstr(url, "//");
    start = start ? start + 2 : url;
    const char *colon = *start == '[' ? NULL : strchr(start, ':');
    if (at && at >= start)
        (void)snprintf(buf, size, "%.*s***%s", (int)(start - url), url, at);
    else if (colon && strncmp(url, "unix:", 5) != 0 && !looks_like_port(colon + 1))
        (void)snprintf(buf, size, "%.*s***", (int)(colon + 1 - url), url);
    else
        (void)strlcpy(buf, url, size);
}

void nf_redis_name(const struct nf_redis_opts *opts, char *buf, unsigned long size)
{
    if (opts->unix_path[0])
        (void)snprintf(buf, size, "unix://%s", opts->unix_path);
    else
        (void)snprintf(buf, size, strchr(opts->host, ':') ? "[%s]:%u" : "%s:%u", opts->host, opts->port);
}
