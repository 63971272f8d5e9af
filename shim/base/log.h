/*
 * What netflock has to say: one line, one write(2), to the place that NETFLOCK_LOG names.
 *
 * Nothing here uses the host's stdio or syslog(3) state. Control characters (a newline in a path) are written as
 * \xNN. A line for "stderr" is dropped to syslog when descriptor 2 has meanwhile become some data file of the host.
 */
#ifndef NF_BASE_LOG_H
#define NF_BASE_LOG_H

enum nf_log_level { NF_LOG_ERROR, NF_LOG_WARN, NF_LOG_INFO, NF_LOG_DEBUG };

#define NF_LOG_PATH_MAX 1024

struct nf_log_conf {
    enum nf_log_level level;
    int where;                  /* 's' stderr, 'y' syslog, 'f' file */
    char path[NF_LOG_PATH_MAX]; /* for 'f' */
};

/* Notes what descriptor 2 is at the start of the program. Cheap, no file opened. */
void nf_log_start(void);

/* Sets level and place; the struct is copied. By one thread at a time; others may be writing lines. */
void nf_log_configure(const struct nf_log_conf *conf);

/* Writes one line "netflock[PID]: LEVEL: text". Keeps errno. Not safe in a signal handler. */
void nf_log(enum nf_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
