/*
 * shim/lease/proto.c, and the keeper's end of it in shim/keeper/serve.c: what goes from one to the other over a socket.
 */
#include "keeper/serve.c"

#include "support/unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

struct keeper keeper = {.files = TAILQ_HEAD_INITIALIZER(keeper.files)};

static int pair[2];
static struct nf_ho_tenure m, got;

static void connect_both(void)
{
    assert_int_equal(nf_sys.socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
}

static void close_both(void)
{
    (void)close(pair[0]);
    (void)close(pair[1]);
}

/* A tenure; freed with all it has. */
static struct nf_tenure *tenure(const char *key, size_t key_len, const char *token, char mode)
{
    struct nf_tenure *t = nf_tenure_new(nf_names_make(key, key_len), token, 10, mode, 0xfd01, 1234, -1);
    assert_non_null(t);
    t->renewed_ms = 1111;
    t->deadline_ms = 2222;
    (void)strcpy(t->fence, "42");
    return t;
}

static void unref(struct nf_tenure *t)
{
    nf_table_lock();
    nf_tenure_unref(t);
    nf_table_unlock();
}

static const char good_token[] = "nf1:b:1:2:n:h:7:c:1000";

static size_t pack(const char *key, size_t key_len)
{
    struct nf_tenure *t = tenure(key, key_len, good_token, 'x');
    memset(&m, 0x5a, sizeof m);
    assert_int_equal(TABLE(nf_ho_pack(&m, NF_HO_GIVE, t)), 0);
    unref(t);
    return NF_HO_TENURE_SIZE(m.key_len);
}

TEST(a_tenure_comes_through_the_socket_unchanged)
{
    static const char modes[] = {'x', 's', 'p', 'o'};
    static const size_t lengths[] = {1, 6, 100, 4101, NF_HO_KEY_MAX - 1};
    connect_both();
    for (size_t i = 0; i < COUNT(modes) * COUNT(lengths); i++) {
        const char *key = unit_fill(lengths[i % COUNT(lengths)], 'k');
        struct nf_tenure *t = tenure(key, strlen(key), unit_fill(NF_TOKEN_MAX - 1, 't'), modes[i / COUNT(lengths)]);
        t->alone = i & 1;
        assert_int_equal(TABLE(nf_ho_pack(&m, NF_HO_SYNC, t)), 0);
        assert_int_equal(nf_ho_send(pair[0], &m, NF_HO_TENURE_SIZE(m.key_len)), 0);
        memset(&got, 0x5a, sizeof got);
        ssize_t n = nf_sys.recv(pair[1], &got, sizeof got, 0);
        assert_int_equal(n, NF_HO_TENURE_SIZE(strlen(key)));
        assert_true(valid(&got, n));
        assert_memory_equal(&m, &got, (size_t)n);
        assert_int_equal(got.type, NF_HO_SYNC);
        assert_true(got.dev == 0xfd01 && got.ino == 1234 && got.renewed_ms == 1111 && got.deadline_ms == 2222);
        assert_true(got.hold_fd == -1 && got.held_fd == -1 && got.fresh_fd == -1 && got.parent == getpid());
        assert_true(got.alone == (i & 1) && !got.ofd && got.mode == t->mode && got.identity_len == 10);
        assert_string_equal(got.token, t->token);
        assert_string_equal(got.fence, "42");
        assert_memory_equal(got.key, key, strlen(key));
        unref(t);
    }
    close_both();
}

TEST(of_a_file_with_a_stand_in_the_stand_in_is_named)
{
    struct nf_tenure *t = tenure("lock:/f", 7, good_token, 'x');
    t->shadow = 1000;
    t->lock_dev = 3;
    t->lock_ino = 4;
    assert_int_equal(TABLE(nf_ho_pack(&m, NF_HO_GIVE, t)), 0);
    assert_true(m.ofd && m.dev == 3 && m.ino == 4);
    t->shadow = -1;
    unref(t);
}

/* No byte of our memory that nobody meant to send. */
TEST(a_message_says_nothing_but_what_it_is_about)
{
    size_t n = pack("lock:/f", 7);
    struct nf_ho_tenure first = m;
    memset(&m, 0xa5, sizeof m);
    struct nf_tenure *t = tenure("lock:/f", 7, good_token, 'x');
    assert_int_equal(TABLE(nf_ho_pack(&m, NF_HO_GIVE, t)), 0);
    unref(t);
    assert_memory_equal(&first, &m, n);
}

TEST(a_key_that_is_too_long_for_a_message_is_refused)
{
    struct nf_tenure *t = tenure(unit_fill(NF_HO_KEY_MAX, 'k'), NF_HO_KEY_MAX, good_token, 'x');
    assert_int_equal(TABLE(nf_ho_pack(&m, NF_HO_GIVE, t)), -ENAMETOOLONG);
    unref(t);
}

TEST(a_message_that_is_short_or_long_is_refused)
{
    size_t whole = pack("lock:/some/file", 15);
    struct nf_ho_tenure before = m;
    connect_both();
    for (size_t n = 1; n <= whole + 40; n++) {
        assert_int_equal(nf_ho_send(pair[0], &before, n), 0);
        ssize_t r = nf_sys.recv(pair[1], &got, sizeof got, 0);
        assert_int_equal(r, n);
        expect(valid(&got, r) == (n == whole), "%zu bytes of %zu", n, whole);
    }
    close_both();
    got = before;
    assert_false(valid(&got, 0));
    assert_false(valid(&got, -EAGAIN));
    assert_false(valid(&got, -1));
}

TEST(a_message_with_a_wrong_number_in_it_is_refused)
{
    size_t n = pack("lock:/f", 7);
    static const uint32_t lengths[] = {0, 6, 8, NF_HO_KEY_MAX - 1, NF_HO_KEY_MAX, NF_HO_KEY_MAX + 7, UINT32_MAX, UINT32_MAX - 6};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        got = m;
        got.key_len = lengths[i];
        expect(!valid(&got, (ssize_t)n), "a key of %u", lengths[i]);
    }
    got = m;
    got.key_len = NF_HO_KEY_MAX; /* as long as the message, but there would be no room for its end */
    assert_false(valid(&got, NF_HO_TENURE_SIZE(NF_HO_KEY_MAX)));
    static const int32_t identities[] = {-1, (int32_t)sizeof good_token, 4096, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < COUNT(identities); i++) {
        got = m;
        got.identity_len = identities[i];
        expect(!valid(&got, (ssize_t)n), "an identity of %d", identities[i]);
    }
    got = m;
    got.identity_len = sizeof good_token - 1;
    assert_true(valid(&got, (ssize_t)n));
    for (int bit = 0; bit < 32; bit++) {
        got = m;
        got.magic ^= 1u << bit;
        expect(!valid(&got, (ssize_t)n), "of another version (bit %d)", bit);
    }
}

TEST(strings_of_a_message_that_do_not_end_are_made_to_end)
{
    size_t n = pack("lock:/f", 7);
    got = m;
    memset(got.token, 't', sizeof got.token);
    memset(got.fence, '9', sizeof got.fence);
    assert_true(valid(&got, (ssize_t)n));
    assert_int_equal(strlen(got.token), NF_TOKEN_MAX - 1);
    assert_int_equal(strlen(got.fence), NF_FENCE_MAX - 1);
}

/* Bytes at random in place of some: refused, or all that is in it can be used. */
TEST(a_garbled_message_is_refused_or_harmless)
{
    size_t n = pack("lock:/f", 7);
    size_t refused = 0;
    for (int round = 0; round < 20000; round++) {
        got = m;
        for (unsigned k = unit_below(8); k-- > 0;)
            ((char *)&got)[unit_below((unsigned)n)] = (char)unit_random();
        if (valid(&got, (ssize_t)n)) {
            expect(got.key_len == 7 && strlen(got.token) < NF_TOKEN_MAX, "round %d", round);
            expect(got.identity_len >= 0 && (size_t)got.identity_len <= strlen(got.token), "round %d", round);
        } else {
            refused++;
        }
    }
    assert_in_range(refused, 1000, 19000);
}

/* Another file's, an unknown type, another PID namespace's process: all understood, and not for this keeper. */
TEST(a_keeper_says_no_to_what_is_not_for_it)
{
    size_t n = pack("lock:/f", 7);
    struct kfile f = {.dev = 0xfd01, .ino = 1234, .fresh = -1, .listen = -1, .names = nf_names_make("lock:/f", 7)};
    TAILQ_INIT(&f.tenures);
    TAILQ_INIT(&f.records);
    TAILQ_INSERT_TAIL(&keeper.files, &f, link);
    static const struct {
        const char *what;
        uint64_t dev, ino;
        const char *key;
        uint32_t type;
        char mode;
    } rows[] = {
        {"another device", 0xfd02, 1234, "lock:/f", NF_HO_GIVE, 'x'},
        {"another inode", 0xfd01, 1235, "lock:/f", NF_HO_GIVE, 'x'},
        {"another key", 0xfd01, 1234, "lock:/g", NF_HO_GIVE, 'x'},
        {"a hello", 0xfd01, 1234, "lock:/f", NF_HO_HELLO, 'x'},
        {"no type", 0xfd01, 1234, "lock:/f", 0, 'x'},
        {"no known type", 0xfd01, 1234, "lock:/f", 99, 'x'},
        {"a process of elsewhere", 0xfd01, 1234, "lock:/f", NF_HO_GIVE, 'p'},
        {"the end of an unknown tenure", 0xfd01, 1234, "lock:/f", NF_HO_ENDED, 'x'},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        got = m;
        got.type = rows[i].type;
        got.dev = rows[i].dev;
        got.ino = rows[i].ino;
        got.mode = rows[i].mode;
        (void)strcpy(got.pids, "pid:[1]");
        memcpy(got.key, rows[i].key, 7);
        expect(respond(&f, &got, (ssize_t)n) == NF_HO_NO, "%s", rows[i].what);
        expect(TAILQ_EMPTY(&f.tenures) && TAILQ_EMPTY(&f.records), "%s is taken on", rows[i].what);
    }
    got = m;
    assert_int_equal(respond(&f, &got, (ssize_t)n - 1), NF_HO_NO);
    TAILQ_REMOVE(&keeper.files, &f, link);
    nf_free(f.names);
}

static int started_with(const void *hello, size_t len)
{
    connect_both();
    assert_int_equal(nf_ho_send(pair[0], hello, len), 0);
    (void)shutdown(pair[0], SHUT_WR);
    int r = serve_start(pair[1]);
    char reply;
    assert_true(r == 0 || nf_sys.recv(pair[0], &reply, 1, MSG_DONTWAIT) == -EAGAIN);
    close_both();
    return r;
}

TEST(a_new_keeper_wants_a_whole_hello_and_whole_tenures)
{
    struct nf_ho_hello h = {.magic = NF_HO_MAGIC, .type = NF_HO_HELLO, .n = 1, .log = {.where = 's'}};
    (void)strcpy(h.redis.host, "h");
    assert_int_equal(started_with(&h, sizeof h), -EPROTO); /* no tenure follows */
    assert_int_equal(started_with(&h, sizeof h - 1), -EPROTO);
    assert_int_equal(started_with(&h, 1), -EPROTO);
    h.n = 0;
    assert_int_equal(started_with(&h, sizeof h - 1), -EPROTO);
    assert_int_equal(started_with(&h, sizeof h), 0);
    assert_string_equal(keeper.redis.host, "h");
    h.magic++;
    assert_int_equal(started_with(&h, sizeof h), -EPROTO);
    h.magic--;
    h.type = NF_HO_GIVE;
    assert_int_equal(started_with(&h, sizeof h), -EPROTO);
    h.type = NF_HO_HELLO;
    h.n = 2;
    connect_both();
    size_t n = pack("lock:/f", 7);
    assert_int_equal(nf_ho_send(pair[0], &h, sizeof h), 0);
    assert_int_equal(nf_ho_send(pair[0], &m, n - 1), 0);
    (void)shutdown(pair[0], SHUT_WR);
    assert_int_equal(serve_start(pair[1]), -EPROTO);
    assert_true(TAILQ_EMPTY(&keeper.files));
    close_both();
}

TEST(an_answer_is_one_byte_in_time)
{
    static const char answers[] = {NF_HO_MINE, NF_HO_IDLE, NF_HO_HELD, NF_HO_NO};
    connect_both();
    assert_int_equal(nf_ho_answer(pair[0], 0), -ETIMEDOUT);
    for (size_t i = 0; i < COUNT(answers); i++) {
        assert_int_equal(nf_ho_send(pair[1], &answers[i], 1), 0);
        assert_int_equal(nf_ho_answer(pair[0], 1000), answers[i]);
    }
    assert_int_equal(nf_ho_send(pair[1], "MM", 2), 0);
    assert_int_equal(nf_ho_answer(pair[0], 1000), -EPIPE);
    assert_int_equal(nf_ho_send(pair[1], unit_fill(500, 'M'), 500), 0);
    assert_int_equal(nf_ho_answer(pair[0], 1000), -EPIPE);
    assert_int_equal(nf_ho_answer(pair[0], 0), -ETIMEDOUT);
    (void)close(pair[1]);
    assert_int_equal(nf_ho_answer(pair[0], 1000), -EPIPE);
    assert_int_equal(nf_ho_send(pair[0], "M", 1), -EPIPE); /* and no SIGPIPE */
    (void)close(pair[0]);
}

TEST(a_file_has_an_address_of_its_own_for_each_server)
{
    struct nf_redis_opts here = {.host = "h", .port = 6379};
    struct nf_redis_opts port = {.host = "h", .port = 6380};
    struct nf_redis_opts db = {.host = "h", .port = 6379, .db = 1};
    struct nf_redis_opts path = {.unix_path = "/run/redis.sock"};
    const struct {
        uint64_t dev, ino;
        const char *key;
        const struct nf_redis_opts *redis;
    } rows[] = {
        {1, 2, "k", &here},
        {1, 2, "l", &here},
        {1, 3, "k", &here},
        {2, 2, "k", &here},
        {0x12, 3, "k", &here},
        {1, 0x23, "k", &here},
        {1, 2, "k", &port},
        {1, 2, "k", &db},
        {1, 2, "k", &path},
        {1, 2, "", &here},
        {UINT64_MAX, UINT64_MAX, "k", &here},
    };
    struct sockaddr_un a[COUNT(rows)];
    socklen_t len[COUNT(rows)];
    for (size_t i = 0; i < COUNT(rows); i++) {
        len[i] = nf_ho_address(&a[i], rows[i].dev, rows[i].ino, rows[i].key, strlen(rows[i].key), rows[i].redis);
        assert_true(len[i] > 20 && len[i] <= sizeof a[i]);
        assert_int_equal(a[i].sun_path[0], 0); /* abstract */
        for (size_t k = 0; k < i; k++)
            expect(len[i] != len[k] || memcmp(&a[i], &a[k], len[i]) != 0, "rows %zu and %zu", i, k);
        struct sockaddr_un again;
        memset(&again, 0x5a, sizeof again);
        assert_int_equal(nf_ho_address(&again, rows[i].dev, rows[i].ino, rows[i].key, strlen(rows[i].key), rows[i].redis), len[i]);
        assert_memory_equal(&again, &a[i], sizeof again);
    }
}

TEST(a_process_of_our_own_user_is_trusted)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    connect_both();
    assert_true(nf_ho_peer_trusted(pair[0]));
    assert_false(nf_ho_peer_trusted(null));
    close_both();
    (void)close(null);
    assert_false(nf_ho_peer_trusted(-1));
}

UNIT_MAIN(UNIT(a_tenure_comes_through_the_socket_unchanged), UNIT(of_a_file_with_a_stand_in_the_stand_in_is_named),
          UNIT(a_message_says_nothing_but_what_it_is_about), UNIT(a_key_that_is_too_long_for_a_message_is_refused),
          UNIT(a_message_that_is_short_or_long_is_refused), UNIT(a_message_with_a_wrong_number_in_it_is_refused),
          UNIT(strings_of_a_message_that_do_not_end_are_made_to_end), UNIT(a_garbled_message_is_refused_or_harmless),
          UNIT(a_keeper_says_no_to_what_is_not_for_it), UNIT(a_new_keeper_wants_a_whole_hello_and_whole_tenures),
          UNIT(an_answer_is_one_byte_in_time), UNIT(a_file_has_an_address_of_its_own_for_each_server),
          UNIT(a_process_of_our_own_user_is_trusted))
