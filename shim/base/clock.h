/*
 * The clocks that netflock reads. Leases are judged on CLOCK_BOOTTIME, which also runs while the machine sleeps; the
 * wall clock is shown to people and decides nothing.
 */
#ifndef NF_BASE_CLOCK_H
#define NF_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Milliseconds since boot, suspended time included. */
static inline int64_t nf_now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Milliseconds since 1970, for people. */
static inline int64_t nf_wall_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Milliseconds from now until deadline_ms, never below 0 nor above INT32_MAX. */
static inline int nf_left_ms(int64_t deadline_ms)
{
    int64_t left = deadline_ms - nf_now_ms();
    return left < 0 ? 0 : left > INT32_MAX ? INT32_MAX : (int)left;
}

#endif
