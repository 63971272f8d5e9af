/*
 * Reading ELF headers: see elf.h. The files are anybody's: every offset and size in them may be a lie, and is only
 * ever handed to pread().
 */
#include "cli/elf.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stddef.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

/* The header of this process's own program, as the kernel loaded it. */
static const ElfW(Ehdr) * own_header(void)
{
    extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));
    return &__ehdr_start;
}

bool elf_is_ours(const struct elf *e)
{
    const ElfW(Ehdr) *own = own_header();
    return e->bits == own->e_ident[EI_CLASS] && e->order == own->e_ident[EI_DATA] && e->machine == own->e_machine;
}

static int read_loader(int fd, const ElfW(Phdr) * ph, struct elf *out)
{
    if (ph->p_filesz < 2 || ph->p_filesz >= sizeof out->loader)
        return -ENOEXEC;
    if (pread(fd, out->loader, ph->p_filesz, (off_t)ph->p_offset) != (ssize_t)ph->p_filesz)
        return -ENOEXEC;
    out->loader[ph->p_filesz] = 0;
    return 0;
}

/* Is one of the segment's notes by "Go" (.note.go.buildid)? */
static bool has_go_note(int fd, const ElfW(Phdr) * ph)
{
    char notes[4096];
    ssize_t n = pread(fd, notes, ph->p_filesz < sizeof notes ? ph->p_filesz : sizeof notes, (off_t)ph->p_offset);
    size_t len = n > 0 ? (size_t)n : 0;
    size_t at = 0;
    while (len >= sizeof(ElfW(Nhdr)) && at <= len - sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) note;
        memcpy(&note, notes + at, sizeof note);
        at += sizeof note;
        if (note.n_namesz == 4 && len - at >= 4 && memcmp(notes + at, "Go\0", 4) == 0)
            return true;
        if (note.n_namesz > len || note.n_descsz > len)
            return false;
        at += ((size_t)note.n_namesz + 3) / 4 * 4 + ((size_t)note.n_descsz + 3) / 4 * 4;
    }
    return false;
}

static int read_segments(int fd, const ElfW(Ehdr) * h, struct elf *out)
{
    if (h->e_phentsize != sizeof(ElfW(Phdr)))
        return -ENOEXEC;
    for (unsigned i = 0; i < h->e_phnum; i++) {
        ElfW(Phdr) ph;
        if (pread(fd, &ph, sizeof ph, (off_t)(h->e_phoff + i * sizeof ph)) != (ssize_t)sizeof ph)
            return -ENOEXEC;
        if (ph.p_type == PT_NOTE)
            out->go |= has_go_note(fd, &ph);
        else if (ph.p_type == PT_INTERP && read_loader(fd, &ph, out) < 0)
            return -ENOEXEC;
    }
    return 0;
}

int elf_read(int fd, struct elf *out)
{
    ElfW(Ehdr) h;
    memset(out, 0, sizeof *out);
    ssize_t n = pread(fd, &h, sizeof h, 0);
    if (n < 0)
        return -errno;
    /* e_type and e_machine lie at the same place in both classes; a byte order not ours is only ever compared. */
    if ((size_t)n < offsetof(Elf32_Ehdr, e_version) || memcmp(h.e_ident, ELFMAG, SELFMAG) != 0)
        return -ENOEXEC;
    out->bits = h.e_ident[EI_CLASS];
    out->order = h.e_ident[EI_DATA];
    out->type = h.e_type;
    out->machine = h.e_machine;
    if (!elf_is_ours(out))
        return 0;
    return (size_t)n < sizeof h ? -ENOEXEC : read_segments(fd, &h, out);
}
