/*
 * What happens when the library is loaded and when the program ends: as little as possible. No thread, no socket, no
 * file; nothing that a program which locks nothing of ours could notice.
 */
#include "base/config.h"
#include "base/fdset.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/process.h"
#include "base/real.h"
#include "lock/leave.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

__attribute__((constructor)) static void loaded(void)
{
    int saved = errno;
    nf_real_init();
    nf_log_start();
    nf_mutex_strict();
    nf_process_adopt();
    if (nf_config_maybe()) {
        /* What is open now came from our parent, which may still have it. */
        nf_share_open(NF_CHILD_NONE);
        nf_mark_inherited();
        (void)pthread_atfork(nf_fork_prepare, nf_fork_parent, nf_fork_child);
        (void)at_quick_exit(nf_exit_now);
    }
    errno = saved;
}

__attribute__((destructor)) static void leaving(void)
{
    nf_exit_begin();
}
