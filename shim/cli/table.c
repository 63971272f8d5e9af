/*
 * The table for people. The key stands last, as it may be thousands of characters long; the other columns are as wide
 * as what is in them. Everything is rendered twice: once to measure, once to print.
 */
#include "cli/text.h"
#include "cli/view.h"

#include "base/ranges.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { STATE, MODE, HOST, PID, COMMAND, AGE, LEFT, FENCE, RANGE, KEY, COLUMNS };

/* How much of another client's value is shown. */
#define FOREIGN_SHOWN 24

struct table {
    struct text cell[COLUMNS];
    int width[COLUMNS];
    bool printing;
};

static void put_row(struct table *t)
{
    for (int i = 0; i < COLUMNS; i++) {
        if (!t->printing && t->cell[i].width > t->width[i])
            t->width[i] = t->cell[i].width;
        if (t->printing)
            printf("%s%*s", t->cell[i].s, i == KEY ? 0 : t->width[i] - t->cell[i].width + 2, "");
    }
    if (t->printing)
        putchar('\n');
}

static void set(struct table *t, int column, const char *s)
{
    text_clear(&t->cell[column]);
    text_raw(&t->cell[column], s);
}

static void set_ms(struct table *t, int column, int64_t ms)
{
    char buf[32];
    if (ms >= 0 && ms < 100 * 3600000L)
        nf_format_duration((long)ms, buf, sizeof buf);
    else if (ms >= 0)
        (void)snprintf(buf, sizeof buf, "%" PRId64 "d", ms / 86400000);
    else
        (void)snprintf(buf, sizeof buf, "%s", ms == MS_FOREVER ? "forever" : "-");
    set(t, column, buf);
}

static void set_safe(struct table *t, int column, const char *s, size_t len)
{
    text_clear(&t->cell[column]);
    text_safe(&t->cell[column], s, len);
}

/* What another client wrote, in place of the command that we do not know. */
static void set_foreign(struct table *t, const struct who *w)
{
    struct text *cell = &t->cell[COMMAND];
    size_t shown = w->token_len < FOREIGN_SHOWN ? w->token_len : FOREIGN_SHOWN;
    text_clear(cell);
    text_raw(cell, "\"");
    text_safe(cell, w->token, shown);
    text_raw(cell, shown < w->token_len ? "...\"" : "\"");
}

/* The bytes as people count them, the last one included. */
static void set_range(struct table *t, const struct who *w)
{
    char buf[64] = "-";
    const char *ofd = w->owner == 'o' ? " (ofd)" : "";
    if (w->ranged && w->end >= NF_RANGE_END)
        (void)snprintf(buf, sizeof buf, "%" PRIu64 "-end%s", w->start, ofd);
    else if (w->ranged && w->end - w->start == 1)
        (void)snprintf(buf, sizeof buf, "%" PRIu64 "%s", w->start, ofd);
    else if (w->ranged)
        (void)snprintf(buf, sizeof buf, "%" PRIu64 "-%" PRIu64 "%s", w->start, w->end - 1, ofd);
    set(t, RANGE, buf);
}

/* position: 0 for a holder. */
static void put_who(struct table *t, const struct who *w, size_t position)
{
    char buf[32];
    (void)snprintf(buf, sizeof buf, position ? "waits %zu" : w->unconfirmed ? "granted" : "holds", position);
    set(t, STATE, buf);
    set(t, MODE, w->mode == 'x' ? "exclusive" : w->mode == 's' ? "shared" : "-");
    if (w->ours) {
        set_safe(t, HOST, w->info.host, strlen(w->info.host));
        (void)snprintf(buf, sizeof buf, "%ld", w->info.pid);
        set(t, PID, buf);
        set_safe(t, COMMAND, w->info.command, strlen(w->info.command));
    } else {
        set(t, HOST, "-");
        set(t, PID, "-");
        set_foreign(t, w);
    }
    set_ms(t, AGE, w->age_ms);
    set_ms(t, LEFT, w->left_ms);
    if (w->dead)
        set(t, LEFT, "gone");
    (void)snprintf(buf, sizeof buf, "%" PRIu64, w->fence);
    set(t, FENCE, w->fence ? buf : "-");
    set_range(t, w);
    put_row(t);
}

/* A row that tells something about the key in place of a holder. */
static void put_note(struct table *t, const char *state, const char *note)
{
    set(t, STATE, state);
    for (int i = MODE; i < KEY; i++)
        set(t, i, "-");
    text_raw(&t->cell[KEY], " (");
    text_raw(&t->cell[KEY], note);
    text_raw(&t->cell[KEY], ")");
    put_row(t);
}

static void put_lock(struct table *t, const struct lock *l)
{
    set_safe(t, KEY, l->key, l->key_len);
    for (size_t i = 0; i < l->n_holders; i++)
        put_who(t, &l->holders[i], 0);
    for (size_t i = 0; i < l->n_waiters; i++)
        put_who(t, &l->waiters[i], i + 1);
    for (size_t i = 0; i < l->n_owners; i++)
        put_who(t, &l->owners[i], 0);
    for (size_t i = 0; i < l->n_range_waiters; i++)
        put_who(t, &l->range_waiters[i], i + 1);
    if (l->truncated)
        put_note(t, "...", "and more, which are not listed");
    if (l->problem) {
        set_safe(t, KEY, l->key, l->key_len);
        put_note(t, "?", l->problem);
    }
}

static void put_all(struct table *t, const struct view *v)
{
    static const char *const title[COLUMNS] = {"STATE", "MODE", "HOST", "PID", "COMMAND", "AGE", "LEFT", "FENCE", "RANGE", "KEY"};
    for (int i = 0; i < COLUMNS; i++)
        set(t, i, title[i]);
    put_row(t);
    for (size_t i = 0; i < v->n; i++)
        put_lock(t, &v->locks[i]);
}

void show_table(const struct view *v)
{
    struct table t = {0};
    if (v->n == 0) {
        puts("no locks");
        return;
    }
    put_all(&t, v);
    t.printing = true;
    put_all(&t, v);
    for (int i = 0; i < COLUMNS; i++)
        text_free(&t.cell[i]);
}
