/*
 * The list of findings, and how it is shown: a line for each, or JSON.
 */
#include "cli/doctor.h"

#include "cli/cli.h"
#include "cli/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const level_name[] = {"ok", "warn", "fail"};

static char *format(const char *fmt, va_list ap)
{
    char *s = NULL;
    if (vasprintf(&s, fmt, ap) < 0)
        s = NULL;
    return need(s);
}

void found(struct findings *f, enum level level, const char *id, const char *fmt, ...)
{
    va_list ap;
    if (f->n == f->room) {
        f->room = f->room ? f->room * 2 : 32;
        f->v = need(reallocarray(f->v, f->room, sizeof *f->v));
    }
    va_start(ap, fmt);
    f->v[f->n++] = (struct finding){id, level, f->subject ? need(strdup(f->subject)) : NULL, format(fmt, ap), NULL};
    va_end(ap);
}

void remedy(struct findings *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    free(f->v[f->n - 1].remedy);
    f->v[f->n - 1].remedy = format(fmt, ap);
    va_end(ap);
}

void findings_free(struct findings *f)
{
    for (size_t i = 0; i < f->n; i++) {
        free(f->v[i].subject);
        free(f->v[i].text);
        free(f->v[i].remedy);
    }
    free(f->v);
    *f = (struct findings){0};
}

size_t findings_failures(const struct findings *f, const struct finding **first)
{
    size_t n = 0;
    *first = NULL;
    for (size_t i = 0; i < f->n; i++) {
        if (f->v[i].level != LEVEL_FAIL)
            continue;
        if (n++ == 0)
            *first = &f->v[i];
    }
    return n;
}

/* Colours are for a terminal whose user has nothing against them (no-color.org). */
static const char *colour(enum level level)
{
    static const char *const code[] = {"\033[32m", "\033[33m", "\033[31m"};
    const char *no = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    bool wanted = isatty(STDOUT_FILENO) && !(no && *no) && !(term && strcmp(term, "dumb") == 0);
    return wanted ? code[level] : "";
}

void findings_print(const struct findings *f)
{
    struct text line = {0};
    size_t width = 0;
    for (size_t i = 0; i < f->n; i++)
        width = strlen(f->v[i].id) > width ? strlen(f->v[i].id) : width;
    for (size_t i = 0; i < f->n; i++) {
        const struct finding *x = &f->v[i];
        const char *on = colour(x->level);
        text_clear(&line);
        text_line(&line, x->text);
        if (x->remedy) {
            text_raw(&line, "; ");
            text_line(&line, x->remedy);
        }
        printf("%s%-4s%s  %-*s  %s\n", on, level_name[x->level], *on ? "\033[0m" : "", (int)width, x->id, line.s);
    }
    text_free(&line);
}

static void field(const char *name, const char *s, const char *after)
{
    printf("\"%s\":", name);
    if (s)
        json_string(stdout, s, strlen(s));
    else
        (void)fputs("null", stdout);
    (void)fputs(after, stdout);
}

void findings_json(const struct findings *f)
{
    putchar('[');
    for (size_t i = 0; i < f->n; i++) {
        const struct finding *x = &f->v[i];
        (void)fputs(i ? ",\n{" : "\n{", stdout);
        field("id", x->id, ",");
        field("level", level_name[x->level], ",");
        field("subject", x->subject, ",");
        field("text", x->text, ",");
        field("remedy", x->remedy, "}");
    }
    puts("\n]");
}
