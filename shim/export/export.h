/*
 * The wrapped symbols: thin, without policy. They turn a negative errno into -1 and errno, and leave errno alone on
 * success. The list of all exported names is the file `symbols` beside this one.
 */
#ifndef NF_EXPORT_EXPORT_H
#define NF_EXPORT_EXPORT_H

#define NF_EXPORT __attribute__((visibility("default")))

/* Do `call`, which closes fd. */
#define NF_CLOSING(fd, call)           \
    do {                               \
        struct nf_closing closing_;    \
        nf_close_begin(fd, &closing_); \
        call;                          \
        nf_close_end(&closing_);       \
    } while (0)

#endif
