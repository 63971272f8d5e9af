/*
 * See real.h. A function that the C library of this machine lacks (close_range, closefrom: glibc 2.34) stays NULL;
 * then no program can have been linked against it either.
 */
#include "base/real.h"

#include <dlfcn.h>

struct nf_real nf_real_;

void nf_real_init(void)
{
#define X(name, ret, args)                                                \
    {                                                                     \
        void *sym = dlsym(RTLD_NEXT, #name);                              \
        __atomic_store_n((void **)&nf_real_.name, sym, __ATOMIC_RELAXED); \
    }
    NF_REAL_TABLE(X)
#undef X
}
