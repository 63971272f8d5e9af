/*
 * See handshake.h.
 */
#include "redis/handshake.h"

#include "base/log.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* How much of an error may be shown. Redis repeats, in quotes, the arguments of a command that it does not know. */
static int shown(const struct nf_cmd *cmd, const char *error)
{
    if (strcmp(cmd->argv[0], "AUTH") != 0)
        return 100;
    const char *password = strstr(error, cmd->argv[cmd->argc - 1]);
    size_t n = strcspn(error, "'`\"");
    if (password && (size_t)(password - error) < n)
        n = (size_t)(password - error);
    return n < 100 ? (int)n : 100;
}

/* One command; its error reply is put into words, without what was sent. */
static int say(struct nf_conn *c, const struct nf_cmd *cmd, int64_t deadline_ms, char *why, size_t why_size)
{
    redisReply *reply = NULL;
    int r = nf_conn_send(c, cmd, 1, deadline_ms);
    if (r == 0)
        r = nf_conn_reply(c, deadline_ms, &reply);
    if (r == 0 && reply->type == REDIS_REPLY_ERROR) {
        (void)snprintf(why, why_size, "%s refused: %.*s", cmd->argv[0], shown(cmd, reply->str), reply->str);
        r = -EACCES;
        if (strncmp(reply->str, "LOADING", 7) == 0 || strstr(reply->str, "max number of clients"))
            r = -EAGAIN;
    }
    freeReplyObject(reply);
    return r;
}

/*
 * The run id changes whenever the server starts: that is how the scripts see that it may have lost data (run.lua). Who may not
 * ask has to do without.
 */
static int ask_run(struct nf_conn *c, int64_t deadline_ms)
{
    static atomic_bool said;
    static const char field[] = "run_id:";
    redisReply *reply = NULL;
    struct nf_cmd info = {0};
    nf_cmd_str(&info, "INFO");
    nf_cmd_str(&info, "server");
    int r = nf_conn_send(c, &info, 1, deadline_ms);
    if (r == 0)
        r = nf_conn_reply(c, deadline_ms, &reply);
    const char *run = r == 0 && reply->type == REDIS_REPLY_STRING ? strstr(reply->str, field) : NULL;
    run = run ? run + sizeof field - 1 : "";
    size_t n = strspn(run, "0123456789abcdef");
    memcpy(c->run, run, n < sizeof c->run ? n : sizeof c->run - 1);
    if (r == 0 && n == 0 && !atomic_exchange(&said, true))
        nf_log(NF_LOG_WARN, "INFO is not answered (%.60s): after a restart of Redis old holders are not let in first (NETFLOCK_GRACE)",
               reply->type == REDIS_REPLY_ERROR ? reply->str : "without a run id");
    freeReplyObject(reply);
    return r;
}

int nf_handshake(struct nf_conn *c, const struct nf_redis_opts *opts, int64_t deadline_ms, char *why, size_t why_size)
{
    char number[8];
    int r = 0;
    if (opts->password[0]) {
        struct nf_cmd auth = {0};
        nf_cmd_str(&auth, "AUTH");
        if (opts->user[0])
            nf_cmd_str(&auth, opts->user);
        nf_cmd_str(&auth, opts->password);
        r = say(c, &auth, deadline_ms, why, why_size);
    }
    if (r == 0 && opts->db) {
        struct nf_cmd select = {0};
        nf_cmd_str(&select, "SELECT");
        (void)snprintf(number, sizeof number, "%u", opts->db);
        nf_cmd_str(&select, number);
        r = say(c, &select, deadline_ms, why, why_size);
    }
    return r == 0 && opts->grace ? ask_run(c, deadline_ms) : r;
}
