/*
 * Text for people and for programs, from bytes that anybody may have chosen: names of files, values in Redis.
 */
#ifndef NF_CLI_TEXT_H
#define NF_CLI_TEXT_H

#include <stddef.h>
#include <stdio.h>

/* A growing string, always ended by NUL once something was added; width is what it takes on a terminal. */
struct text {
    char *s;
    size_t len, room;
    int width;
};

void text_clear(struct text *t);
void text_free(struct text *t);

/* Adds plain ASCII as it is. */
void text_raw(struct text *t, const char *s);

/*
 * Adds bytes so that a terminal shows them and obeys none: control characters, marks that turn the direction of
 * writing, and what is not UTF-8 become \xNN, and a backslash becomes two.
 */
void text_safe(struct text *t, const char *s, size_t len);

/* The same for a message, in which a backslash stays what it is. */
void text_line(struct text *t, const char *s);

/* Writes a JSON string, with its quotes. A byte that is not part of valid UTF-8 becomes \u00NN. */
void json_string(FILE *to, const char *s, size_t len);

#endif
