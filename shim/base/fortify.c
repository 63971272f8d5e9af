/*
 * Debian builds hiredis and libbsd with _FORTIFY_SOURCE: their archives ask for the checking variants of a few
 * functions, which other C libraries lack. These stand in for them, hidden, with the same checks.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int __snprintf_chk(char *s, size_t len, int flag, size_t room, const char *fmt, ...);
int __vsnprintf_chk(char *s, size_t len, int flag, size_t room, const char *fmt, va_list ap);
int __sprintf_chk(char *s, int flag, size_t room, const char *fmt, ...);
void *__memcpy_chk(void *dst, const void *src, size_t len, size_t room);
void __explicit_bzero_chk(void *dst, size_t len, size_t room);

int __vsnprintf_chk(char *s, size_t len, int flag, size_t room, const char *fmt, va_list ap)
{
    (void)flag;
    if (len > room)
        abort();
    return vsnprintf(s, len, fmt, ap);
}

int __snprintf_chk(char *s, size_t len, int flag, size_t room, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int r = __vsnprintf_chk(s, len, flag, room, fmt, ap);
    va_end(ap);
    return r;
}

int __sprintf_chk(char *s, int flag, size_t room, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int r = __vsnprintf_chk(s, room, flag, room, fmt, ap);
    va_end(ap);
    if (r < 0 || (size_t)r >= room)
        abort();
    return r;
}

void *__memcpy_chk(void *dst, const void *src, size_t len, size_t room)
{
    if (len > room)
        abort();
    return memcpy(dst, src, len);
}

void __explicit_bzero_chk(void *dst, size_t len, size_t room)
{
    if (len > room)
        abort();
    explicit_bzero(dst, len);
}
