/*
 * The ranges that fcntl() names (shim/lock/record.c), and what /proc tells of locks (shim/base/fdutil.c). The kernel is the
 * judge of the first: each is asked of it too, on a file in memory.
 */
#include "lock/record.c"

#include "base/fdutil.h"

#include "support/unit.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <fcntl.h>

static const int64_t numbers[] = {
    0, 1, 2, 7, 4096, -1, -2, -7, -4096, -4097, INT64_MAX, INT64_MAX - 1, INT64_MAX - 4096, INT64_MAX - 4097, INT64_MIN, INT64_MIN + 1};

/* Locks it with the kernel; false where that says EINVAL or EOVERFLOW. What it locked another description is asked. */
static bool by_kernel(int fd, int other, struct flock fl, uint64_t *start, uint64_t *end)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct flock none = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_OFD_SETLK, &fl) < 0) {
        expect(errno == EINVAL || errno == EOVERFLOW, "the kernel says %d", errno);
        return false;
    }
    assert_int_equal(fcntl(other, F_OFD_GETLK, &all), 0);
    assert_int_equal(all.l_type, F_WRLCK);
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &none), 0);
    *start = (uint64_t)all.l_start;
    *end = all.l_len ? *start + (uint64_t)all.l_len : NF_RANGE_END;
    return true;
}

TEST(a_range_is_the_one_that_the_kernel_locks)
{
    static const short whences[] = {SEEK_SET, SEEK_CUR, SEEK_END, 3, -1};
    static const off_t positions[] = {0, 5, INT64_MAX - 4096};
    char path[32];
    int fd = memfd_create("unit", MFD_CLOEXEC);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int other = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && other >= 0 && ftruncate(fd, 4096) == 0);
    for (size_t p = 0; p < COUNT(positions); p++)
        for (size_t w = 0; w < COUNT(whences); w++)
            for (size_t i = 0; i < COUNT(numbers) * COUNT(numbers); i++) {
                struct flock fl = {.l_type = F_WRLCK,
                                   .l_whence = whences[w],
                                   .l_start = numbers[i / COUNT(numbers)],
                                   .l_len = numbers[i % COUNT(numbers)]};
                uint64_t start;
                uint64_t end;
                uint64_t is_start = 0;
                uint64_t is_end = 0;
                assert_true(lseek(fd, positions[p], SEEK_SET) == positions[p]);
                bool can = by_kernel(fd, other, fl, &is_start, &is_end);
                bool ours = resolve(fd, &fl, &start, &end);
                expect(ours == can, "whence %d, start %" PRId64 ", len %" PRId64 ": %d, the kernel says %d", fl.l_whence, fl.l_start,
                       fl.l_len, ours, can);
                expect(!can || (start == is_start && end == is_end),
                       "whence %d, start %" PRId64 ", len %" PRId64 ": %" PRIx64 "-%" PRIx64 ", the kernel says %" PRIx64 "-%" PRIx64,
                       fl.l_whence, fl.l_start, fl.l_len, start, end, is_start, is_end);
            }
    (void)close(fd);
    (void)close(other);
}

TEST(what_has_no_position_is_at_its_beginning)
{
    int fds[2];
    uint64_t start;
    uint64_t end;
    const struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_CUR, .l_start = 3, .l_len = 2};
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    assert_true(resolve(fds[1], &fl, &start, &end));
    assert_true(start == 3 && end == 5);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

TEST(a_holder_elsewhere_is_told_as_the_kernel_tells_of_one)
{
    static const struct {
        const char *token;
        pid_t pid;
    } rows[] = {
        {"nf1:b:1:2:p0123:h:7:c:1000", -7}, {"nf1:b:1:2:o0123:h:7:c:1000", -1}, {"nf1:b:1:2:p0123:h:-7:c:1000", -1},
        {"nf1:b:1:2:p0123:h:0:c:1000", -1}, {"some other client", -1},          {"", -1},
    };
    static struct nf_range_answer a;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct flock fl = {0};
        a = (struct nf_range_answer){.start = 16, .end = i ? 32 : NF_RANGE_END, .a.holder_mode = i ? 's' : 'x'};
        (void)strcpy(a.a.holder, rows[i].token);
        tell(&fl, &a);
        expect(fl.l_pid == rows[i].pid, "%s: %d", rows[i].token, fl.l_pid);
        assert_int_equal(fl.l_type, i ? F_RDLCK : F_WRLCK);
        assert_true(fl.l_whence == SEEK_SET && fl.l_start == 16 && fl.l_len == (i ? 16 : 0));
    }
}

/* --- /proc ------------------------------------------------------------------------------------------------------------------- */

static const char *ranges_of(const char *text, size_t len, const char *type, pid_t pid)
{
    static char shown[1024];
    struct nf_ranges r = {0};
    size_t n = 0;
    assert_int_equal(nf_fd_ranges(unit_file(text, len), 1234, type, pid, &r), 0);
    shown[0] = 0;
    for (size_t i = 0; i < r.n; i++)
        n += (size_t)snprintf(shown + n, sizeof shown - n, "%s%c%" PRIu64 "-%" PRIu64, i ? " " : "", r.v[i].mode, r.v[i].start,
                              r.v[i].end == NF_RANGE_END ? 0 : r.v[i].end);
    nf_ranges_clear(&r);
    return shown;
}

TEST(the_ranges_in_proc_are_those_of_the_inode_the_kind_and_the_process)
{
    static const struct {
        const char *line, *held;
    } rows[] = {
        {"1: POSIX  ADVISORY  WRITE 77 fd:01:1234 0 EOF\n", "x0-0"},
        {"1: POSIX  ADVISORY  READ 77 fd:01:1234 10 19\n", "s10-20"},
        {"lock:\t1: POSIX  ADVISORY  WRITE 77 00:1f:1234 5 5\n", "x5-6"},
        {"1: POSIX  ADVISORY  WRITE 77 fd:01:1234 0 9\n2: POSIX  ADVISORY  READ 77 fd:01:1234 10 19\n", "x0-10 s10-20"},
        {"1: POSIX  MANDATORY WRITE 77 fd:01:1234 0 9\n", "x0-10"},
        /* others' */
        {"1: POSIX  ADVISORY  WRITE 78 fd:01:1234 0 EOF\n", ""},
        {"1: POSIX  ADVISORY  WRITE 77 fd:01:12345 0 EOF\n", ""},
        {"1: POSIX  ADVISORY  WRITE 77 fd:01:123 0 EOF\n", ""},
        {"1: FLOCK  ADVISORY  WRITE 77 fd:01:1234 0 EOF\n", ""},
        {"1: OFDLCK ADVISORY  WRITE 77 fd:01:1234 0 EOF\n", ""},
        {"1: -> POSIX  ADVISORY  WRITE 77 fd:01:1234 0 EOF\n", ""}, /* it waits */
        {"1: LEASE  ACTIVE    READ 77 fd:01:1234 0 EOF\n", ""},
        /* none */
        {"", ""},
        {"\n\n\n", ""},
        {"pos:\t0\nflags:\t0100002\nmnt_id:\t15\nino:\t1234\n", ""},
        {"1: POSIX  ADVISORY  WRITE 77 fd:01:1234 0\n", ""},
        {"1: POSIX  ADVISORY  WRITE 77 fd:01:1234 0 EOF", ""}, /* a line that is not whole */
        {"1: POSIX  ADVISORY  WRITE 77 fd:01:1234 20 10\n", ""},
        {"1: POSIXPOSIXPOSIX  ADVISORY  WRITE 77 fd:01:1234 0 EOF\n", ""},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *held = ranges_of(rows[i].line, strlen(rows[i].line), "POSIX", 77);
        expect(strcmp(held, rows[i].held) == 0, "%s: %s", rows[i].line, held);
    }
    static const char ofd[] = "lock:\t1: OFDLCK  ADVISORY  READ -1 00:1f:1234 3 EOF\n";
    assert_string_equal(ranges_of(ofd, sizeof ofd - 1, "OFDLCK", -1), "s3-0");
}

/* Its pieces come as read(2) cuts them, in the middle of lines. */
TEST(a_long_table_of_locks_is_read_to_its_end)
{
    char *text = unit_fill(400 * 120, 0);
    size_t n = 0;
    for (int i = 0; i < 400; i++)
        n += (size_t)sprintf(text + n, "%d: FLOCK  ADVISORY  READ 1 00:01:%d 0 EOF\n%*d: POSIX  ADVISORY  WRITE 77 fd:01:1234 %d %d\n", i,
                             i, i % 17, i, i * 10, i * 10 + 9);
    assert_string_equal(ranges_of(text, n, "POSIX", 77), "x0-4000");
    memset(text, 'x', 9000); /* a line without an end */
    assert_string_equal(ranges_of(text, 9000, "POSIX", 77), "");
}

TEST(what_the_kernel_itself_writes_is_understood)
{
    struct stat st;
    struct nf_ranges r = {0};
    char path[64];
    int fd = memfd_create("unit", MFD_CLOEXEC);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 10};
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &fl), 0);
    fl = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 50};
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &fl), 0);
    (void)snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    assert_int_equal(nf_fd_ranges(path, st.st_ino, "OFDLCK", -1, &r), 0);
    assert_int_equal(r.n, 2);
    assert_true(r.v[0].mode == 'x' && r.v[0].start == 10 && r.v[0].end == 20);
    assert_true(r.v[1].mode == 's' && r.v[1].start == 50 && r.v[1].end == NF_RANGE_END);
    assert_int_equal(nf_fd_lock_mode(fd, st.st_ino, true), 'x');
    assert_int_equal(nf_fd_lock_mode(fd, st.st_ino, false), 0);
    assert_int_equal(nf_fd_lock_mode(fd, st.st_ino + 1, true), 0);
    nf_ranges_clear(&r);
    (void)close(fd);
    assert_int_equal(nf_fd_lock_mode(fd, st.st_ino, true), 0);
    assert_int_equal(nf_fd_ranges("/nonexistent", 1, "POSIX", 1, &r), -ENOENT);
}

UNIT_MAIN(UNIT(a_range_is_the_one_that_the_kernel_locks), UNIT(what_has_no_position_is_at_its_beginning),
          UNIT(a_holder_elsewhere_is_told_as_the_kernel_tells_of_one),
          UNIT(the_ranges_in_proc_are_those_of_the_inode_the_kind_and_the_process), UNIT(a_long_table_of_locks_is_read_to_its_end),
          UNIT(what_the_kernel_itself_writes_is_understood))
