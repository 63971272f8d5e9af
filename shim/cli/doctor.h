/*
 * netflock doctor: what its parts share. Each part adds what it finds; what cannot protect is a failure.
 */
#ifndef NF_CLI_DOCTOR_H
#define NF_CLI_DOCTOR_H

#include "base/config.h"

#include <stdbool.h>
#include <stddef.h>

enum level { LEVEL_OK, LEVEL_WARN, LEVEL_FAIL };

struct finding {
    const char *id; /* stable, for programs: "redis.version" */
    enum level level;
    char *subject; /* the path, command or process that it is about; NULL: this host's set-up */
    char *text;
    char *remedy; /* what to do; NULL: nothing */
};

struct findings {
    struct finding *v;
    size_t n, room;
    const char *subject; /* of what is found next */
    bool by_hand;        /* NETFLOCK_PREFIX comes from the environment, as for a LD_PRELOAD that is set by hand */
    bool no_redis;       /* Redis gave no answer, or refuses */
};

void found(struct findings *f, enum level level, const char *id, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* What to do about the last finding. */
void remedy(struct findings *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void findings_free(struct findings *f);
size_t findings_failures(const struct findings *f, const struct finding **first);
void findings_print(const struct findings *f);
void findings_json(const struct findings *f);

/* Reads the configuration; what the library would log about wrong values becomes findings. */
const struct nf_config *doctor_config(struct findings *f);

/* Library, keeper, LD_PRELOAD. */
void doctor_files(struct findings *f, const struct nf_config *c);

void doctor_command(struct findings *f, char **argv);
void doctor_process(struct findings *f, const char *pid);
void doctor_path(struct findings *f, const struct nf_config *c, const char *path);

/* `thorough`: also what costs many round trips. */
void doctor_redis(struct findings *f, const struct nf_config *c, bool thorough);

/* All that `netflock run --strict` wants to be well, on one line in `why` if it is not. */
bool doctor_protects(char **argv, char *why, size_t size);

int cmd_doctor(int argc, char **argv);
void help_doctor(void);

#endif
