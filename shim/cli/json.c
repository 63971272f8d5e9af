/*
 * The same for programs: an array with one object a file, each on a line of its own.
 */
#include "cli/text.h"
#include "cli/view.h"

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

static void put_who(const struct who *w, size_t position)
{
    putchar('{');
    if (position)
        printf("\"position\":%zu,", position);
    string_field("mode", mode_name(w->mode));
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

static void put_people(const char *name, const struct who *w, size_t n, bool waiting)
{
    field(name);
    putchar('[');
    for (size_t i = 0; i < n; i++) {
        if (i)
            putchar(',');
        put_who(&w[i], waiting ? i + 1 : 0);
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
        put_people("holders", l->holders, l->n_holders, false);
        putchar(',');
        put_people("waiters", l->waiters, l->n_waiters, true);
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
