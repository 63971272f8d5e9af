/*
 * The wrapped symbols: thin, without policy. They turn a negative errno into -1 and errno, and leave errno alone on
 * success. The list of all exported names is the file `symbols` beside this one.
 */
#ifndef NF_EXPORT_EXPORT_H
#define NF_EXPORT_EXPORT_H

#define NF_EXPORT __attribute__((visibility("default")))

/* Do `call`, which closes fd, as far as flock is concerned. */
#define NF_CLOSING_ONE(fd, call)       \
    do {                               \
        struct nf_closing closing_;    \
        nf_close_begin(fd, &closing_); \
        call;                          \
        nf_close_end(&closing_);       \
    } while (0)

/* Do `call`, which closes fd; `done` tells afterwards whether it did. */
#define NF_CLOSING(fd, call, done)                                        \
    do {                                                                  \
        struct nf_record_closing records_;                                \
        nf_record_close_begin((unsigned)(fd), (unsigned)(fd), &records_); \
        NF_CLOSING_ONE(fd, call);                                         \
        nf_record_close_end(&records_, done);                             \
    } while (0)

/* close.c: `to` is a duplicate of `from`, or -1; returns `to`. */
int nf_duplicated(int from, int to);

#endif
