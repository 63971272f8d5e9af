/*
 * shim/base/prefix.c, and what of shim/lock/match.c needs no file: which prefix covers a name, and what the key is called.
 */
#include "lock/match.c"

#include "support/unit.h"

#include <stdio.h>
#include <unistd.h>

static struct nf_config c;

static void forget(void)
{
    for (size_t i = 0; i < c.n_prefix; i++) {
        free(c.prefix[i].path);
        free(c.prefix[i].name);
        free(c.prefix[i].kernel);
    }
    free(c.prefix);
    c = (struct nf_config){0};
}

/* "PATH=NAME|PATH=NAME" of what became of the list. */
static const char *parsed(const char *list)
{
    static char text[65536];
    size_t n = 0;
    forget();
    nf_prefix_parse(&c, list, "");
    text[0] = 0;
    for (size_t i = 0; i < c.n_prefix; i++) {
        assert_int_equal(c.prefix[i].path_len, strlen(c.prefix[i].path));
        assert_int_equal(c.prefix[i].name_len, strlen(c.prefix[i].name));
        assert_null(c.prefix[i].kernel);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s=%s", i ? "|" : "", c.prefix[i].path, c.prefix[i].name);
    }
    return text;
}

TEST(a_list_of_prefixes_is_taken_apart)
{
    static const struct {
        const char *list, *is;
    } rows[] = {
        {"", ""},
        {":", ""},
        {":::", ""},
        {"/a", "/a=/a"},
        {"/a/", "/a=/a"},
        {"//a///b//", "/a/b=/a/b"},
        {"/./a/./b/.", "/a/b=/a/b"},
        {"/", "="},
        {"/.", "="},
        {"/=root", "=root"},
        {"/a:/b", "/a=/a|/b=/b"},
        {":/a::/b:", "/a=/a|/b=/b"},
        {"/a=x", "/a=x"},
        {"/a/=x:/b=y", "/a=x|/b=y"},
        {"/a=x=y", "/a=x=y"},
        {"/a=x/../y", "/a=x/../y"},
        {"/a\\:b", "/a:b=/a:b"},
        {"/a\\=b=c", "/a=b=c"},
        {"/a\\\\", "/a\\=/a\\"},
        {"/a\\", "/a\\=/a\\"},
        {"/a\\b", "/ab=/ab"},
        {"/a=x\\:y", "/a=x:y"},
        {"/...", "/...=/..."},
        {"/..a/b..", "/..a/b..=/..a/b.."},
        {"/.a", "/.a=/.a"},
        {"/a\nb", "/a\nb=/a\nb"},
        {"/a b\t", "/a b\t=/a b\t"},
        {"/\xff\xc3", "/\xff\xc3=/\xff\xc3"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *is = parsed(rows[i].list);
        expect(strcmp(is, rows[i].is) == 0, "\"%s\" becomes \"%s\"", rows[i].list, is);
        expect(!c.prefix_broken && !c.broken, "\"%s\" is refused", rows[i].list);
    }
    forget();
}

TEST(a_wrong_entry_breaks_the_list_and_the_others_stay)
{
    static const struct {
        const char *list, *is;
    } rows[] = {
        {"a", ""},
        {"./a", ""},
        {"=x", ""},
        {"/a=", ""},
        {"/..", ""},
        {"/a/../b", ""},
        {"/a/..", ""},
        {"/a/./../b", ""},
        {" /a", ""},
        {"/a:b:/c", "/a=/a|/c=/c"},
        {"/a/..=x:/c=z", "/c=z"},
        {"/a=:/c", "/c=/c"},
        {"\\/a\\:x:\n:/c", "/a:x=/a:x|/c=/c"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        unit_log_clear();
        const char *is = parsed(rows[i].list);
        expect(strcmp(is, rows[i].is) == 0, "\"%s\" becomes \"%s\"", rows[i].list, is);
        expect(c.prefix_broken && c.broken && strstr(unit_log(), "is not allowed"), "\"%s\" is taken", rows[i].list);
    }
    forget();
}

TEST(a_prefix_may_be_as_long_as_a_path_and_no_longer)
{
    for (size_t n = PATH_MAX - 3; n < PATH_MAX + 3; n++) {
        char *path = unit_fill(n, 'a');
        path[0] = '/';
        expect(strlen(parsed(path)) == (n < PATH_MAX ? 2 * n + 1 : 0), "of %zu bytes", n);
        assert_int_equal(c.prefix_broken, n >= PATH_MAX);
        path = unit_fill(n * 2, '/'); /* it counts without what is not needed */
        path[n * 2 - 1] = 'a';
        assert_string_equal(parsed(path), "/a=/a");
    }
    forget();
}

/* What nf_match() makes of a name: the key, or NULL. */
static const char *key_of(const char *name)
{
    static struct nf_file f;
    const char *rest = "unset";
    const struct nf_prefix *p = nf_prefix_match(&c, name, &rest);
    if (!p || make_key(&f, p, rest) < 0)
        return NULL;
    assert_int_equal(f.key_len, strlen(f.key));
    return f.key;
}

TEST(a_prefix_ends_where_a_component_ends)
{
    static const struct {
        const char *list, *name, *key;
    } rows[] = {
        {"/a/b", "/a/b", "lock:/a/b"},
        {"/a/b", "/a/b/c", "lock:/a/b/c"},
        {"/a/b/", "/a/b/c", "lock:/a/b/c"},
        {"/a/b", "/a/b/c/d e\n", "lock:/a/b/c/d e\n"},
        {"/a/b", "/a/bc", NULL},
        {"/a/b", "/a/b.c", NULL},
        {"/a/b", "/a/b\n", NULL},
        {"/a/b", "/a/b c", NULL},
        {"/a/b", "/a", NULL},
        {"/a/b", "/a/", NULL},
        {"/a/b", "/", NULL},
        {"/a/b", "/A/b/c", NULL},
        {"/a/b", "/x/a/b/c", NULL},
        {"/a/b", "a/b/c", NULL},
        {"/a\n", "/a\n/f", "lock:/a\n/f"},
        {"/a\n", "/a/f", NULL},
        {"/", "/any/thing", "lock:/any/thing"},
        {"/", "/x", "lock:/x"},
        {"/", "pipe:[1]", NULL},
        {"/", "memfd:/a", NULL},
        {"", "/a", NULL},
        /* names */
        {"/a/b=N", "/a/b", "lock:N"},
        {"/a/b=N", "/a/b/c", "lock:N/c"},
        {"/a/b=N", "/a/bc", NULL},
        {"/=N", "/a", "lock:N/a"},
        {"/a=N:/b=N", "/a/f", "lock:N/f"},
        {"/a=N:/b=N", "/b/f", "lock:N/f"},
        {"/a\\:b=x y", "/a:b/f", "lock:x y/f"},
        {"/a=..", "/a/f", "lock:../f"},
        /* the longest one counts, wherever it stands */
        {"/a=1:/a/b=2", "/a/b/c", "lock:2/c"},
        {"/a/b=2:/a=1", "/a/b/c", "lock:2/c"},
        {"/a/b=2:/a=1", "/a/bc", "lock:1/bc"},
        {"/=0:/a=1", "/a/f", "lock:1/f"},
        {"/=0:/a=1", "/ab/f", "lock:0/ab/f"},
        {"/a=1:/a=2", "/a/f", "lock:1/f"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)parsed(rows[i].list);
        const char *key = key_of(rows[i].name);
        expect(key ? rows[i].key && strcmp(key, rows[i].key) == 0 : !rows[i].key, "%s: %s has the key %s", rows[i].list, rows[i].name,
               key ? key : "(none)");
    }
    forget();
}

TEST(a_prefix_is_compared_by_the_name_that_the_kernel_gives_it)
{
    (void)parsed("/proc/self/fd/../x:/proc/self/root=N:/nonexistent-folder");
    for (size_t i = 0; i < c.n_prefix; i++)
        nf_prefix_resolve(&c.prefix[i]);
    assert_string_equal(c.prefix[0].kernel, ""); /* /proc/self/root is a link to "/" */
    assert_null(c.prefix[1].kernel);
    assert_string_equal(key_of("/etc/f"), "lock:N/etc/f");
    assert_string_equal(key_of("/nonexistent-folder/f"), "lock:/nonexistent-folder/f");
    (void)parsed("/proc/self=N");
    nf_prefix_resolve(&c.prefix[0]);
    char name[64];
    (void)snprintf(name, sizeof name, "/proc/%d", (int)getpid());
    assert_string_equal(c.prefix[0].kernel, name);
    assert_string_equal(key_of(name), "lock:N");
    assert_null(key_of("/proc/self"));
    forget();
}

TEST(resolving_a_prefix_keeps_errno)
{
    (void)parsed("/nonexistent-folder");
    errno = 77;
    nf_prefix_resolve(&c.prefix[0]);
    assert_int_equal(errno, 77);
    forget();
}

/* The longest key is still whole; one byte more is an error, not a shorter key, which might be another file's. */
TEST(a_key_that_is_too_long_is_refused_and_not_cut)
{
    static struct nf_file f;
    const size_t most = sizeof f.key - 1 - 5;
    for (size_t n = most - 2; n <= most + 2; n++)
        for (size_t rest_len = 0; rest_len < 5000; rest_len += 4095) {
            const struct nf_prefix p = {.name = unit_fill(n - rest_len, 'n'), .name_len = n - rest_len};
            expect(make_key(&f, &p, unit_fill(rest_len, 'r')) == (n <= most ? 0 : -ENAMETOOLONG), "of %zu bytes", n);
            if (n <= most)
                assert_int_equal(strlen(f.key), 5 + n);
        }
}

static const char *stripped(const char *name, unsigned links)
{
    static char buf[PATH_MAX + 1];
    const struct stat st = {.st_nlink = links, .st_dev = 1, .st_ino = 1};
    (void)snprintf(buf, sizeof buf, "%s", name);
    strip_deleted(buf, &st);
    return buf;
}

TEST(an_unlinked_file_goes_by_the_name_it_had)
{
    assert_string_equal(stripped("/a/f (deleted)", 0), "/a/f");
    assert_string_equal(stripped("/a/f (deleted) (deleted)", 0), "/a/f (deleted)");
    assert_string_equal(stripped("/a/f", 0), "/a/f");
    assert_string_equal(stripped("/a/f (deleted)x", 0), "/a/f (deleted)x");
    assert_string_equal(stripped(" (deleted)", 0), " (deleted)");
    assert_string_equal(stripped("/ (deleted)", 0), "/");
    /* Another link is left, but under this name there is nothing. */
    assert_string_equal(stripped("/nonexistent-folder/f (deleted)", 1), "/nonexistent-folder/f");
}

TEST(a_file_that_is_really_called_deleted_keeps_its_name)
{
    char name[] = "/tmp/unit.XXXXXX (deleted)";
    char copy[sizeof name];
    struct stat st;
    int fd = mkstemps(name, 10);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    memcpy(copy, name, sizeof name);
    strip_deleted(copy, &st);
    (void)unlink(name);
    (void)close(fd);
    assert_string_equal(copy, name);
}

TEST(what_is_outside_is_remembered_until_it_is_another_file)
{
    struct stat st = {.st_dev = 3, .st_ino = 4, .st_ctim = {5, 6}};
    assert_false(remembered(7, &st));
    remember(7, &st);
    assert_true(remembered(7, &st));
    assert_false(remembered(8, &st));
    struct stat other = st;
    other.st_ino++;
    assert_false(remembered(7, &other));
    other = st;
    other.st_dev++;
    assert_false(remembered(7, &other));
    other = st;
    other.st_ctim.tv_nsec++; /* renamed */
    assert_false(remembered(7, &other));
    other = st;
    other.st_ctim.tv_sec++;
    assert_false(remembered(7, &other));
    nf_marks_forget(7);
    assert_false(remembered(7, &st));
    remember(REMEMBERED, &st); /* beyond the table */
    remember(-1, &st);
    assert_false(remembered(REMEMBERED, &st) || remembered(-1, &st));
}

UNIT_MAIN(UNIT(a_list_of_prefixes_is_taken_apart), UNIT(a_wrong_entry_breaks_the_list_and_the_others_stay),
          UNIT(a_prefix_may_be_as_long_as_a_path_and_no_longer), UNIT(a_prefix_ends_where_a_component_ends),
          UNIT(a_prefix_is_compared_by_the_name_that_the_kernel_gives_it), UNIT(resolving_a_prefix_keeps_errno),
          UNIT(a_key_that_is_too_long_is_refused_and_not_cut), UNIT(an_unlinked_file_goes_by_the_name_it_had),
          UNIT(a_file_that_is_really_called_deleted_keeps_its_name), UNIT(what_is_outside_is_remembered_until_it_is_another_file))
