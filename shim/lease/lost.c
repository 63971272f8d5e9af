/*
 * What happens when a tenure is lost: it is said, and the program is told by a signal (NETFLOCK_ON_LOST).
 */
#include "lease/lease.h"

#include "base/clock.h"
#include "base/sys.h"

#include <stdio.h>

void nf_lost(const struct nf_tenure *t, const char *holder, const char *how)
{
    char since[32];
    char now_held[200] = "";
    struct nf_token_info info;
    struct nf_token_info mine;
    const struct nf_policy *p = &nf_config()->policy;
    int64_t age = nf_token_parse(t->token, &mine) == 0 ? nf_wall_ms() - mine.start_ms : 0;
    nf_format_duration((long)(age < 0 ? 0 : age), since, sizeof since);
    if (nf_token_parse(holder, &info) == 0)
        (void)snprintf(now_held, sizeof now_held, "; held now by %s, pid %ld (%s)", info.host, info.pid, info.command);
    else if (*holder)
        (void)snprintf(now_held, sizeof now_held, "; held now by \"%.100s\"", holder);
    nf_log(NF_LOG_ERROR, "lost the lock on %s after %s: %s%s; token %s", t->names->key, since, how, now_held, t->token);
    if (p->on_lost_signal)
        (void)nf_sys.kill(nf_sys.getpid(), p->on_lost_signal);
}
