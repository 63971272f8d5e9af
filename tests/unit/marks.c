/*
 * shim/base/fdset.c: marks on descriptors, by hand and against a plain table. And shim/lease/tenure.c: the table of tenures.
 */
#include "base/fdset.h"
#include "lease/tenure.h"

#include "base/alloc.h"

#include "support/unit.h"

#include <string.h>

TEST(a_mark_is_on_its_descriptor_until_it_is_taken_off)
{
    static const int fds[] = {0, 63, 64, 255, 256, 65535};
    for (size_t i = 0; i < COUNT(fds); i++) {
        assert_false(nf_watched(fds[i]));
        nf_mark(NF_MARK_TENURE, fds[i]);
        nf_mark(NF_MARK_TENURE, fds[i]); /* twice is once */
        assert_true(nf_marked(NF_MARK_TENURE, fds[i]) && nf_watched(fds[i]));
        assert_false(nf_marked(NF_MARK_SHARED, fds[i]));
        assert_false(nf_watched(fds[i] ^ 1));
        nf_unmark(NF_MARK_SHARED, fds[i]);
        assert_true(nf_watched(fds[i]));
        nf_unmark(NF_MARK_TENURE, fds[i]);
        nf_unmark(NF_MARK_TENURE, fds[i]);
        assert_false(nf_marked(NF_MARK_TENURE, fds[i]) || nf_watched(fds[i]));
    }
    assert_int_equal(nf_watch_count, 0);
}

TEST(no_number_is_too_odd_to_ask_for)
{
    static const int fds[] = {-1, INT32_MIN, 65536, INT32_MAX, 256};
    for (size_t i = 0; i < COUNT(fds); i++)
        for (int kind = 0; kind < NF_MARKS; kind++) {
            if (kind == NF_MARK_TENURE)
                continue;
            nf_mark((enum nf_mark)kind, fds[i]);
            assert_false(nf_marked((enum nf_mark)kind, fds[i]));
            nf_unmark((enum nf_mark)kind, fds[i]);
        }
    assert_false(nf_marked(NF_MARK_TENURE, -1) || nf_marked(NF_MARK_TENURE, 65536));
    assert_int_equal(nf_watch_count, 0);
}

#define MODEL 200

TEST(marks_at_random_agree_with_a_plain_table)
{
    bool model[NF_MARKS][MODEL] = {{0}};
    for (int round = 0; round < 30000; round++) {
        enum nf_mark kind = (enum nf_mark)unit_below(NF_MARKS);
        int fd = (int)unit_below(MODEL);
        bool on = unit_below(3) == 0;
        model[kind][fd] = on;
        if (on)
            nf_mark(kind, fd);
        else
            nf_unmark(kind, fd);
        unsigned first = unit_below(MODEL);
        unsigned last = unit_below(MODEL);
        int next = -1;
        int watched = 0;
        for (int i = 0; i < MODEL; i++) {
            bool any = model[0][i] || model[1][i] || model[2][i] || model[3][i];
            watched += any;
            if (any && next < 0 && i >= (int)first && i <= (int)last)
                next = i;
        }
        expect(nf_marked(kind, fd) == on, "round %d", round);
        expect(nf_watch_count == watched, "round %d: %d watched, not %d", round, nf_watch_count, watched);
        expect(nf_watch_next(first, last) == next, "round %d: from %u to %u", round, first, last);
    }
    for (int fd = 0; fd < MODEL; fd++)
        for (int kind = 0; kind < NF_MARKS; kind++)
            nf_unmark((enum nf_mark)kind, fd);
    assert_int_equal(nf_watch_count, 0);
}

TEST(a_duplicate_is_as_shared_and_a_new_use_of_a_number_is_not)
{
    nf_mark(NF_MARK_SHARED, 10);
    nf_mark_inherited();
    assert_true(nf_marked(NF_MARK_INHERITED, 10));
    nf_mark(NF_MARK_OUTSIDE, 10);
    nf_marks_copy(10, 11);
    assert_true(nf_marked(NF_MARK_SHARED, 11) && nf_marked(NF_MARK_INHERITED, 11) && !nf_marked(NF_MARK_OUTSIDE, 11));
    assert_true(nf_shared(11) && !nf_shared(12) && nf_shared(-1));
    nf_marks_forget(10);
    nf_marks_forget(11);
    assert_false(nf_watched(10) || nf_watched(11));
    assert_int_equal(nf_watch_count, 0);
}

TEST(while_all_are_watched_every_number_is)
{
    assert_false(nf_watched(5));
    nf_watch_all(true);
    assert_true(nf_watched(5) && nf_watched(100000) && !nf_watched(-1));
    nf_watch_all(false);
    assert_false(nf_watched(5) || nf_watched(100000));
}

static struct nf_tenure *add(dev_t dev, ino_t ino, int fd, char mode)
{
    struct nf_tenure *t = nf_tenure_new(nf_names_make("k", 1), "token", 0, mode, dev, ino, fd);
    assert_non_null(t);
    nf_table_lock();
    nf_tenure_insert(t);
    nf_table_unlock();
    return t;
}

static void drop(struct nf_tenure *t)
{
    nf_table_lock();
    nf_tenure_remove(t);
    nf_tenure_remove(t); /* out is out */
    nf_tenure_unref(t);
    nf_table_unlock();
}

TEST(the_tenures_of_an_inode_are_found_in_order_and_no_others)
{
    struct nf_tenure *a = add(1, 5, 100, 'x');
    struct nf_tenure *b = add(1, 6, 101, 's');
    struct nf_tenure *c = add(2, 5, 102, 's');
    struct nf_tenure *d = add(1, 5, 103, 's');
    struct nf_tenure *p = add(1, 5, -1, 'p'); /* of record locks: apart */
    assert_int_equal(nf_tenure_count(), 5);
    assert_ptr_equal(TABLE(nf_tenure_first(1, 5)), a);
    assert_ptr_equal(TABLE(nf_tenure_next(a)), d);
    assert_null(TABLE(nf_tenure_next(d)));
    assert_ptr_equal(TABLE(nf_tenure_first(1, 6)), b);
    assert_null(TABLE(nf_tenure_next(b)));
    assert_ptr_equal(TABLE(nf_tenure_first(2, 5)), c);
    assert_null(TABLE(nf_tenure_first(1, 4)));
    assert_null(TABLE(nf_tenure_first(3, 5)));
    int n = 0;
    nf_table_lock();
    for (struct nf_tenure *t = nf_tenure_any(NULL); t; t = nf_tenure_any(t))
        n++;
    nf_table_unlock();
    assert_int_equal(n, 5);
    drop(a);
    assert_ptr_equal(TABLE(nf_tenure_first(1, 5)), d);
    drop(d);
    assert_null(TABLE(nf_tenure_first(1, 5)));
    drop(b);
    drop(c);
    assert_null(TABLE(nf_tenure_first(1, 5))); /* there is only p now */
    drop(p);
    assert_int_equal(nf_tenure_count(), 0);
    assert_null(TABLE(nf_tenure_any(NULL)));
    assert_int_equal(nf_watch_count, 0);
}

/* A close that nobody saw, and the number in use again. */
TEST(a_descriptor_stands_for_its_newest_tenure)
{
    struct nf_tenure *old = add(1, 5, 100, 'x');
    struct nf_tenure *new = add(1, 6, 100, 'x');
    assert_int_equal(old->fd, -1);
    assert_int_equal(new->fd, 100);
    assert_true(nf_tenure_has_fd(100));
    nf_table_lock();
    nf_tenure_set_fd(new, 101);
    nf_table_unlock();
    assert_true(!nf_tenure_has_fd(100) && nf_tenure_has_fd(101));
    drop(old);
    assert_true(nf_tenure_has_fd(101));
    drop(new);
    assert_false(nf_tenure_has_fd(101));
}

TEST(in_a_forked_child_what_is_held_is_kept_and_record_locks_are_not_inherited)
{
    struct nf_tenure *t = add(1, 5, 100, 'x');
    struct nf_tenure *p = add(1, 5, -1, 'p');
    t->unsure = true;
    nf_table_lock();
    nf_table_fork_child();
    nf_table_unlock();
    assert_true(t->kept && !t->unsure && t->listed);
    assert_false(p->listed);
    assert_int_equal(nf_tenure_count(), 1);
    nf_table_lock();
    nf_tenure_unref(p);
    nf_table_unlock();
    drop(t);
}

UNIT_MAIN(UNIT(a_mark_is_on_its_descriptor_until_it_is_taken_off), UNIT(no_number_is_too_odd_to_ask_for),
          UNIT(marks_at_random_agree_with_a_plain_table), UNIT(a_duplicate_is_as_shared_and_a_new_use_of_a_number_is_not),
          UNIT(while_all_are_watched_every_number_is), UNIT(the_tenures_of_an_inode_are_found_in_order_and_no_others),
          UNIT(a_descriptor_stands_for_its_newest_tenure), UNIT(in_a_forked_child_what_is_held_is_kept_and_record_locks_are_not_inherited))
