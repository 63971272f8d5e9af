/*
 * As much of an ELF file's header as says who can load it.
 */
#ifndef NF_CLI_ELF_H
#define NF_CLI_ELF_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

struct elf {
    unsigned char bits, order; /* EI_CLASS, EI_DATA */
    uint16_t type, machine;
    bool go;               /* there is a note of the Go linker; read only for files of our own kind */
    char loader[PATH_MAX]; /* PT_INTERP: "" if there is none; read only for files of our own kind */
};

/* Reads fd's header. 0, -ENOEXEC if it is no ELF file or a broken one, or another -errno. */
int elf_read(int fd, struct elf *out);

/* Is e of the class, byte order and machine of this very program? */
bool elf_is_ours(const struct elf *e);

#endif
