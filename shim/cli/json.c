/*
 * The same for programs: an array with one object a file, each on a line of its own.
 */
#include "cli/text.h"
#include "cli/view.h"

#include "base/ranges.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void field(const char *name)
{
    printf("\"%s\":", name);
}

static void string_field(const char *name, const char *s)
{
    field(name);
    if (s)
        json_string(stdout, s, strlen(s));
    else
        (void)fputs("null", stdout);
    putchar(',');
}

/* A time, or null for what is not known or never comes. */
static void ms_field(const char *name, int64_t ms)
{
    field(name);
    if (ms >= 0)
        printf("%" PRId64 ",", ms);
    else
        (void)fputs("null,", stdout);
}

static const char *mode_name(char mode)
{
    return mode == 'x' ? "exclusive" : mode == 's' ? "shared" : NULL;
}

static void offset_field(const char *name, bool known, uint64_t at)
{
    field(name);
    if (known)
        printf("%" PRIu64 ",", at);
    else
        (void)fputs("null,", stdout);
}

/* What only record locks have. */
static void put_range(const struct who *w, bool holds)
{
    offset_field("start", w->ranged, w->start);
    offset_field("end", w->ranged && w->end < NF_RANGE_END, w->end - 1);
    string_field("owner", w->owner == 'p' ? "process" : w->owner == 'o' ? "ofd" : NULL);
    if (holds)
        printf("\"confirmed\":%s,", w->unconfirmed ? "false" : "true");
}

static void put_who(const struct who *w, size_t position, bool record)
{
    putchar('{');
    if (position)
        printf("\"position\":%zu,", position);
    string_field("mode", mode_name(w->mode));
    if (record)
        put_range(w, position == 0);
    string_field("host", w->ours ? w->info.host : NULL);
    field("pid");
    if (w->ours)
        printf("%ld,", w->info.pid);
    else
        (void)fputs("null,", stdout);
    string_field("command", w->ours ? w->info.command : NULL);
    ms_field("age_ms", w->age_ms);
    ms_field("since_ms", w->since_ms);
    ms_field("left_ms", w->left_ms);
    if (position) {
        printf("\"alive\":%s,", w->dead ? "false" : "true");
    } else {
        field("fence");
        if (w->fence)
            printf("%" PRIu64 ",", w->fence);
        else
            (void)fputs("null,", stdout);
    }
    field("token");
    json_string(stdout, w->token, w->token_len);
    putchar('}');
}

static void put_people(const char *name, const struct who *w, size_t n, bool waiting, bool record)
{
    field(name);
    putchar('[');
    for (size_t i = 0; i < n; i++) {
        if (i)
            putchar(',');
        put_who(&w[i], waiting ? i + 1 : 0, record);
    }
    putchar(']');
}

void show_json(const struct view *v)
{
    putchar('[');
    for (size_t i = 0; i < v->n; i++) {
        const struct lock *l = &v->locks[i];
        (void)fputs(i ? ",\n{" : "\n{", stdout);
        field("key");
        json_string(stdout, l->key, l->key_len);
        putchar(',');
        string_field("mode", l->n_holders ? mode_name(l->holders[0].mode) : NULL);
        put_people("holders", l->holders, l->n_holders, false, false);
        putchar(',');
        put_people("waiters", l->waiters, l->n_waiters, true, false);
        (void)fputs(",\"records\":{", stdout);
        put_people("holders", l->owners, l->n_owners, false, true);
        putchar(',');
        put_people("waiters", l->range_waiters, l->n_range_waiters, true, true);
        putchar('}');
        if (l->truncated)
            (void)fputs(",\"truncated\":true", stdout);
        if (l->problem) {
            (void)fputs(",\"problem\":", stdout);
            json_string(stdout, l->problem, strlen(l->problem));
        }
        putchar('}');
    }
    (void)fputs(v->n ? "\n]\n" : "]\n", stdout);
}
