/*
 * See handshake.h.
 */
#include "redis/handshake.h"

#include "base/log.h"
#include "redis/check.h"
#include "redis/reply.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
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

/* A server that has no room hangs up at once; what it said before that is still to be read. */
static int hear(int r)
{
    return r == -EPIPE || r == -ECONNRESET ? 0 : r;
}

/* One command; its error reply is put into words, without what was sent. */
static int say(struct nf_conn *c, const struct nf_cmd *cmd, int64_t deadline_ms, char *why, size_t why_size)
{
    redisReply *reply = NULL;
    int r = hear(nf_conn_send(c, cmd, 1, deadline_ms));
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

/* What an error in place of the answer to INFO means for the connection: 0, one can do without the answer. */
static int without_info(const char *error, char *why, size_t why_size)
{
    bool passing = nf_reply_outcome(error) == NF_DOWN;
    if (passing)
        (void)snprintf(why, why_size, "%.150s", error);
    else if (strncmp(error, "NOAUTH", 6) == 0)
        (void)snprintf(why, why_size, "%s", NF_NOAUTH);
    else
        return 0;
    return passing ? -EAGAIN : -EACCES;
}

/*
 * The run id changes whenever the server starts: that is how the scripts see that it may have lost data (run.lua). Who may not
 * ask has to do without.
 */
static int take_run(struct nf_conn *c, const redisReply *reply, char *why, size_t why_size)
{
    static atomic_bool said;
    static const char field[] = "run_id:";
    const char *run = reply->type == REDIS_REPLY_STRING ? strstr(reply->str, field) : NULL;
    int r = reply->type == REDIS_REPLY_ERROR ? without_info(reply->str, why, why_size) : 0;
    run = run ? run + sizeof field - 1 : "";
    size_t n = strspn(run, "0123456789abcdef");
    memcpy(c->run, run, n < sizeof c->run ? n : sizeof c->run - 1);
    if (r == 0 && n == 0 && !atomic_exchange(&said, true))
        nf_log(NF_LOG_WARN, "INFO is not answered (%.60s): after a restart of Redis old holders are not let in first (NETFLOCK_GRACE)",
               reply->type == REDIS_REPLY_ERROR ? reply->str : "without a run id");
    return r;
}

/* INFO: for the run id, and, on the process's first connection, for what is to be known of the server (check.h). */
static int ask_info(struct nf_conn *c, const struct nf_redis_opts *opts, bool check, int64_t deadline_ms, char *why, size_t why_size)
{
    redisReply *reply[2] = {NULL, NULL};
    struct nf_cmd info[2] = {{0}, {0}};
    nf_cmd_str(&info[0], "INFO");
    nf_cmd_str(&info[0], "server");
    nf_cmd_str(&info[1], "INFO");
    nf_cmd_str(&info[1], "memory");
    int r = hear(nf_conn_send(c, info, check ? 2 : 1, deadline_ms));
    if (r == 0)
        r = nf_conn_reply(c, deadline_ms, &reply[0]);
    if (r == 0 && opts->grace)
        r = take_run(c, reply[0], why, why_size);
    if (r == 0 && check)
        r = nf_conn_reply(c, deadline_ms, &reply[1]);
    if (r == 0 && check)
        c->unfit = nf_check(opts, reply[0], reply[1]);
    freeReplyObject(reply[0]);
    freeReplyObject(reply[1]);
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
    bool check = nf_check_due(opts);
    return r == 0 && (opts->grace || check) ? ask_info(c, opts, check, deadline_ms, why, why_size) : r;
}
