/*
 * The list of locks that is being put together.
 */
#include "cli/view.h"

#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

void view_add(struct view *v, const char *key, size_t len, unsigned ask)
{
    if (v->n == v->room) {
        v->room = v->room ? v->room * 2 : 256;
        v->locks = need(reallocarray(v->locks, v->room, sizeof *v->locks));
    }
    struct lock *l = &v->locks[v->n++];
    *l = (struct lock){.key = need(malloc(len + 1)), .key_len = len, .ask = ask};
    memcpy(l->key, key, len);
    l->key[len] = 0;
}

static int by_key(const void *left, const void *right)
{
    const struct lock *a = left;
    const struct lock *b = right;
    int r = memcmp(a->key, b->key, a->key_len < b->key_len ? a->key_len : b->key_len);
    return r ? r : (a->key_len > b->key_len) - (a->key_len < b->key_len);
}

void view_sort(struct view *v)
{
    size_t kept = 0;
    if (v->n > 1)
        qsort(v->locks, v->n, sizeof *v->locks, by_key);
    for (size_t i = 0; i < v->n; i++) {
        struct lock *last = kept ? &v->locks[kept - 1] : NULL;
        if (last && by_key(last, &v->locks[i]) == 0) {
            last->ask |= v->locks[i].ask;
            free(v->locks[i].key);
        } else {
            v->locks[kept++] = v->locks[i];
        }
    }
    v->n = kept;
}

static void free_people(struct who *w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(w[i].token);
    free(w);
}

void view_free_lock(struct lock *l)
{
    free_people(l->holders, l->n_holders);
    free_people(l->waiters, l->n_waiters);
    free_people(l->owners, l->n_owners);
    free_people(l->range_waiters, l->n_range_waiters);
    free(l->key);
}

void view_free(struct view *v)
{
    for (size_t i = 0; i < v->n; i++)
        view_free_lock(&v->locks[i]);
    free(v->locks);
    *v = (struct view){0};
}
