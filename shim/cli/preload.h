/*
 * LD_PRELOAD for the programs that the netflock command starts.
 */
#ifndef NF_CLI_PRELOAD_H
#define NF_CLI_PRELOAD_H

#include <stdbool.h>
#include <stddef.h>

/* The library's path into buf (PATH_MAX bytes): 0, or -1 with one clause in why. */
int preload_locate(char *buf, char *why, size_t size);

/* Does a list like LD_PRELOAD's name a copy of the library? The first one goes to `entry`. */
bool preload_names_library(const char *list, char *entry, size_t size);

/* The library's path into buf (PATH_MAX bytes): 0, or -1 after a complaint that begins with `verb`. */
int preload_find(const char *verb, char *buf);

/*
 * Puts the library in front of what LD_PRELOAD already names; if it is there, the list stays as it is. With NULL all copies
 * of the library are taken out.
 */
void preload_set(const char *library);

#endif
