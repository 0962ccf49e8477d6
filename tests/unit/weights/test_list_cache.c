/* The cache of tensor lists: what is known again, by all bytes of its key, and what makes room. */
#include "tests/unit/update_fixture.h"
#include "weights/delta/delta_source.h"
#include "weights/update/list_cache.h"
#include "weights/update/update_priv.h"

#include <stdio.h>
#include <stdlib.h>

enum { HALF_TENSORS = LIST_CACHE_NBYTES / 2 / LIST_TENSOR_NBYTES };

static struct list_cache *cache_new(void)
{
    struct list_cache *c;
    struct err e = {0};

    assert_int_equal(list_cache_new(&c, NULL, &e), 0);
    return c;
}

/* Tensors t.<first> and so on; nothing asks the model about them here. */
static struct tensor_list *tensor_list_from(uint32_t first, uint32_t n)
{
    struct tensor_list_builder *b;
    struct tensor_list *p;
    uint64_t one = 1;
    char name[24];
    struct err e = {0};

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    assert_int_equal(tensor_list_builder_reserve(b, n, &e), 0);
    for (uint32_t i = first; i < first + n; i++) {
        (void)snprintf(name, sizeof name, "t.%u", (unsigned)i);
        assert_int_equal(tensor_list_builder_add(b, name, DTYPE_U8, &one, 1, UINT64_MAX, &e), 0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &p, &e), 0);
    return p;
}

static struct list_text text_of(const char *text)
{
    return (struct list_text){text, text != NULL ? strlen(text) : 0};
}

static struct list_key key_of(enum list_key_kind kind, const char *names, const char *dtypes,
                              const char *sizes)
{
    return (struct list_key){kind,
                             {[LIST_NAMES] = text_of(names),
                              [LIST_DTYPES] = text_of(dtypes),
                              [LIST_SIZES] = text_of(sizes)}};
}

/* `tensor_list` stays the caller's. */
static bool put_tensor_list(struct list_cache *c, const struct list_key *key,
                            struct tensor_list *tensor_list)
{
    struct tensor_list *cached = tensor_list_ref(tensor_list);
    bool put = list_cache_put(c, key, &cached);

    assert_string_equal(cached->digest, tensor_list->digest);
    tensor_list_unref(cached);
    return put;
}

/* Each list has tensors of its own unless its names are the same. */
static void put(struct list_cache *c, enum list_key_kind kind, const char *names,
                const char *dtypes, const char *sizes)
{
    static uint32_t n_lists;
    struct list_key key = key_of(kind, names, dtypes, sizes);
    struct tensor_list *p = tensor_list_from(n_lists++, 1);

    assert_true(put_tensor_list(c, &key, p));
    tensor_list_unref(p);
}

static bool has(struct list_cache *c, enum list_key_kind kind, const char *names,
                const char *dtypes, const char *sizes)
{
    struct list_key key = key_of(kind, names, dtypes, sizes);
    struct tensor_list *p = list_cache_get(c, &key);

    tensor_list_unref(p);
    return p != NULL;
}

static bool has_text(struct list_cache *c, const char *names)
{
    return has(c, LIST_BY_TEXT, names, NULL, NULL);
}

static bool finds(struct list_cache *c, enum list_column which, const char *text)
{
    struct list_entry *l = list_cache_find(c, which, text, strlen(text), NULL);

    list_entry_unref(l);
    return l != NULL;
}

static void test_list_cache_find_compares_all_bytes(void **state)
{
    struct list_cache *c = cache_new();

    (void)state;
    put(c, LIST_BY_TEXT, "[\"a\",\"b\"]", "[\"F32\",\"F32\"]", NULL);
    assert_true(finds(c, LIST_NAMES, "[\"a\",\"b\"]"));
    assert_true(finds(c, LIST_NAMES, "[\"a\",\"b\"],\"dtypes\":[]}"));
    assert_true(finds(c, LIST_DTYPES, "[\"F32\",\"F32\"]}"));
    assert_false(finds(c, LIST_NAMES, "[\"a\",\"b\"")); /* one byte short */
    assert_false(finds(c, LIST_NAMES, "[\"a\",\"B\"]"));
    assert_false(finds(c, LIST_NAMES, "[\"a\", \"b\"]"));
    assert_false(finds(c, LIST_DTYPES, "[\"a\",\"b\"]")); /* another column's text */
    assert_false(finds(c, LIST_SIZES, "[1]"));            /* it has none */
    put(c, LIST_BY_ID, "[\"id\"]", NULL, NULL);
    assert_false(finds(c, LIST_NAMES, "[\"id\"]")); /* no text */
    list_cache_free(c);
    assert_null(list_cache_find(NULL, LIST_NAMES, "[]", 2, NULL));
}

static void test_list_cache_find_tries_the_first(void **state)
{
    struct list_cache *c = cache_new();
    struct list_entry *a, *b, *found;

    (void)state;
    put(c, LIST_BY_TEXT, "[\"a\"]", "[\"F32\"]", NULL);
    put(c, LIST_BY_TEXT, "[\"b\"]", "[\"F32\"]", "[1]");
    a = list_cache_find(c, LIST_NAMES, "[\"a\"]", 5, NULL);
    b = list_cache_find(c, LIST_NAMES, "[\"b\"]", 5, NULL);
    found = list_cache_find(c, LIST_DTYPES, "[\"F32\"]", 7, a);
    assert_ptr_equal(found, a);
    list_entry_unref(found);
    found = list_cache_find(c, LIST_DTYPES, "[\"F32\"]", 7, b);
    assert_ptr_equal(found, b);
    list_entry_unref(found);
    list_cache_free(c);
    assert_memory_equal(b->key.text[LIST_SIZES].text, "[1]", 3); /* held: still there */
    list_entry_unref(a);
    list_entry_unref(b);
}

static void test_list_cache_get_compares_the_whole_key(void **state)
{
    struct list_cache *c = cache_new();

    (void)state;
    put(c, LIST_BY_TEXT, "[\"a\"]", "[\"F32\"]", NULL);
    put(c, LIST_BY_TEXT, "[\"a\"]", "[\"F16\"]", "[1]");
    put(c, LIST_BY_PARTS, "abcd", NULL, NULL);
    assert_true(has(c, LIST_BY_TEXT, "[\"a\"]", "[\"F32\"]", NULL));
    assert_true(has(c, LIST_BY_TEXT, "[\"a\"]", "[\"F16\"]", "[1]"));
    assert_false(has(c, LIST_BY_TEXT, "[\"a\"]", "[\"F16\"]", NULL));
    assert_false(has(c, LIST_BY_TEXT, "[\"a\"]", "[\"F32\"]", "[1]"));
    assert_false(has(c, LIST_BY_TEXT, "[\"a\"]", NULL, NULL));
    assert_true(has(c, LIST_BY_PARTS, "abcd", NULL, NULL));
    assert_false(has(c, LIST_BY_PARTS, "cdab", NULL, NULL)); /* the order counts */
    assert_false(has(c, LIST_BY_PARTS, "abc", NULL, NULL));
    assert_false(has(c, LIST_BY_PARTS, "abcde", NULL, NULL));
    assert_false(has(c, LIST_BY_ID, "abcd", NULL, NULL)); /* a merged list has no id */
    assert_false(has(NULL, LIST_BY_ID, "abcd", NULL, NULL));
    list_cache_free(c);
}

/* Whatever they are known by. One that is put again is the one that was there. */
static void test_equal_lists_share_a_tensor_list(void **state)
{
    static const enum list_key_kind kinds[] = {LIST_BY_TEXT, LIST_BY_TEXT, LIST_BY_ID,
                                               LIST_BY_PARTS};
    static const char *const names[] = {"[\"t\"]", "[\"t\" ]", "t", "t"};
    struct list_cache *c = cache_new();
    struct tensor_list *first = tensor_list_from(0, 2);

    (void)state;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 4; i++) {
            struct list_key key = key_of(kinds[i], names[i], NULL, NULL);
            struct tensor_list *p = round == 0 && i == 0 ? tensor_list_ref(first)
                                                         : tensor_list_from(0, 2);

            assert_true(list_cache_put(c, &key, &p));
            assert_ptr_equal(p, first);
            tensor_list_unref(p);
        }
    list_cache_free(c);
    tensor_list_unref(first);
}

static void test_the_last_used_stay(void **state)
{
    struct list_cache *c = cache_new();
    char name[32];

    (void)state;
    for (int i = 0; i < LIST_CACHE_MAX; i++) {
        (void)snprintf(name, sizeof name, "[\"t.%d\"]", i);
        put(c, i % 2 == 0 ? LIST_BY_TEXT : LIST_BY_PARTS, name, NULL, NULL);
    }
    assert_true(has_text(c, "[\"t.0\"]"));
    put(c, LIST_BY_TEXT, "[\"new\"]", NULL, NULL);
    assert_true(has_text(c, "[\"t.0\"]"));
    assert_false(has(c, LIST_BY_PARTS, "[\"t.1\"]", NULL, NULL));
    assert_true(finds(c, LIST_NAMES, "[\"t.2\"]")); /* a use, too */
    put(c, LIST_BY_PARTS, "new", NULL, NULL);
    put(c, LIST_BY_PARTS, "newer", NULL, NULL);
    assert_true(has_text(c, "[\"t.2\"]"));
    assert_false(has(c, LIST_BY_PARTS, "[\"t.3\"]", NULL, NULL));
    assert_false(has_text(c, "[\"t.4\"]"));
    assert_true(has_text(c, "[\"t.6\"]") && has_text(c, "[\"new\"]"));
    list_cache_free(c);
}

/* However many lists come in text, and however large they are: a plan_id is good until as many
 * others as there may be were registered or used. */
static void test_registered_lists_only_make_room_for_each_other(void **state)
{
    struct list_cache *c = cache_new();
    struct tensor_list *half = tensor_list_from(0, HALF_TENSORS);
    struct list_key large = key_of(LIST_BY_ID, "large", NULL, NULL),
                    text = key_of(LIST_BY_TEXT, "[]", NULL, NULL);
    char name[32];

    (void)state;
    assert_true(put_tensor_list(c, &large, half) && put_tensor_list(c, &text, half));
    for (int i = 1; i < LIST_CACHE_REGISTERED_MAX; i++) {
        (void)snprintf(name, sizeof name, "id.%d", i);
        put(c, LIST_BY_ID, name, NULL, NULL);
    }
    for (int i = 0; i < 2 * LIST_CACHE_MAX; i++) {
        (void)snprintf(name, sizeof name, "[\"t.%d\"]", i);
        put(c, LIST_BY_TEXT, name, NULL, NULL);
    }
    assert_false(has_text(c, "[]"));
    for (int i = LIST_CACHE_REGISTERED_MAX - 1; i > 0; i--) {
        (void)snprintf(name, sizeof name, "id.%d", i);
        assert_true(has(c, LIST_BY_ID, name, NULL, NULL));
    }
    assert_true(has(c, LIST_BY_ID, "large", NULL, NULL));
    put(c, LIST_BY_ID, "one more", NULL, NULL);
    assert_true(has(c, LIST_BY_ID, "large", NULL, NULL));
    (void)snprintf(name, sizeof name, "id.%d", LIST_CACHE_REGISTERED_MAX - 1);
    assert_false(has(c, LIST_BY_ID, name, NULL, NULL)); /* used longest ago */
    assert_true(has(c, LIST_BY_ID, "id.1", NULL, NULL) && has_text(c, "[\"t.639\"]"));
    list_cache_free(c);
    tensor_list_unref(half);
}

/* In so few words that their keys leave room for all. */
static void test_the_tensors_of_all_are_bounded(void **state)
{
    struct list_cache *c = cache_new();
    struct list_key half = key_of(LIST_BY_PARTS, "half", NULL, NULL),
                    other = key_of(LIST_BY_PARTS, "other", NULL, NULL),
                    least = key_of(LIST_BY_TEXT, "[]", NULL, NULL);
    struct tensor_list *p = tensor_list_from(0, HALF_TENSORS - 1);

    (void)state;
    assert_true(put_tensor_list(c, &least, p) && put_tensor_list(c, &half, p));
    assert_true(has_text(c, "[]") && has(c, LIST_BY_PARTS, "half", NULL, NULL));
    assert_true(put_tensor_list(c, &other, p));
    assert_false(has_text(c, "[]"));
    assert_true(has(c, LIST_BY_PARTS, "half", NULL, NULL)); /* used after the other one */
    put(c, LIST_BY_TEXT, "[\"one more\"]", NULL, NULL);
    assert_true(has_text(c, "[\"one more\"]") && has(c, LIST_BY_PARTS, "half", NULL, NULL));
    assert_true(put_tensor_list(c, &least, p));
    assert_false(has(c, LIST_BY_PARTS, "other", NULL, NULL));
    list_cache_free(c);
    tensor_list_unref(p);
}

/* A text of so many bytes; `c` makes it another one. */
static char *long_text(size_t len, char c)
{
    char *text = malloc(len + 1);

    assert_non_null(text);
    memset(text, c, len);
    text[0] = '[';
    text[len - 1] = ']';
    text[len] = '\0';
    return text;
}

/* One that leaves no room for any other, and one that is over the limit by itself. */
static void test_the_bytes_of_all_are_bounded(void **state)
{
    struct list_cache *c = cache_new();
    char *all = long_text(LIST_CACHE_NBYTES - LIST_TENSOR_NBYTES, 'a'),
         *over = long_text(LIST_CACHE_NBYTES - LIST_TENSOR_NBYTES + 1, 'b'), name[32];
    struct list_key larger = key_of(LIST_BY_TEXT, over, NULL, NULL);
    struct tensor_list *one = tensor_list_from(0, 1);

    (void)state;
    for (int i = 0; i < LIST_CACHE_MAX; i++) {
        (void)snprintf(name, sizeof name, "[\"t.%d\"]", i);
        put(c, LIST_BY_TEXT, name, "[]", NULL);
    }
    assert_false(put_tensor_list(c, &larger, one));
    assert_false(has_text(c, over));
    assert_true(finds(c, LIST_NAMES, "[\"t.0\"]")); /* nothing made room for it */
    put(c, LIST_BY_TEXT, all, NULL, NULL);
    assert_true(has_text(c, all));
    assert_false(finds(c, LIST_DTYPES, "[]"));
    put(c, LIST_BY_TEXT, "[\"last\"]", NULL, NULL);
    assert_true(has_text(c, "[\"last\"]"));
    assert_false(has_text(c, all));
    list_cache_free(c);
    tensor_list_unref(one);
    free(all);
    free(over);
}

/* Lists of more than there is room for, put, found and let go by several threads at once: a list
 * that is known is the one that its key says. */
static void *many_lists_main(void *arg)
{
    struct list_cache *c = arg;

    for (unsigned i = 0; i < 4 * LIST_CACHE_MAX; i++) {
        char name[24];
        struct list_key key;
        struct list_entry *l;
        struct tensor_list *p, *mine = tensor_list_from(i % (LIST_CACHE_MAX + 8), 1);

        (void)snprintf(name, sizeof name, "[\"t.%u\"]", i % (LIST_CACHE_MAX + 8));
        key = key_of(i % 3 == 0 ? LIST_BY_ID : LIST_BY_TEXT, name, NULL, NULL);
        p = list_cache_get(c, &key);
        if (p == NULL) {
            p = tensor_list_ref(mine);
            assert_true(list_cache_put(c, &key, &p));
        }
        assert_string_equal(p->digest, mine->digest);
        l = list_cache_find(c, LIST_NAMES, name, strlen(name), NULL);
        assert_true(l == NULL || strcmp(l->tensor_list->digest, mine->digest) == 0);
        list_entry_unref(l);
        tensor_list_unref(p);
        tensor_list_unref(mine);
    }
    return NULL;
}

static void test_many_threads(void **state)
{
    struct list_cache *c = cache_new();
    pthread_t threads[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, many_lists_main, c), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    list_cache_free(c);
}

static struct layout *layout_of(struct bench *b, struct tensor_list *tensor_list, bool convert)
{
    struct layout *l = NULL;
    struct err e = {0};

    assert_int_equal(list_cache_layout(updates_lists(b->updates), tensor_list, convert, &l, &e), 0);
    return l;
}

/* Once for a tensor list, for those that convert and for those that do not. */
static void test_layouts_are_kept_with_their_list(void **state)
{
    static const struct fx_tensor wide = {"embed.weight", DTYPE_F32, 2, {16, 8}};
    static const struct fx_tensor *const wider[] = {&wide};
    static const struct list_key id = {LIST_BY_ID, {{"all", 3}}},
                                 text = {LIST_BY_TEXT, {{"[]", 2}}},
                                 converts = {LIST_BY_ID, {{"converts", 8}}};
    struct tensor_list *kept = fx_tensor_list_of(FX_ALL), *same = fx_tensor_list_of(FX_ALL), *again;
    struct tensor_list *converted = fx_tensor_list(wider, 1);
    struct layout *first, *l;
    struct bench b;
    struct err e = {0};

    (void)state;
    bench_open(&b);
    assert_true(list_cache_put(updates_lists(b.updates), &id, &kept));
    first = layout_of(&b, kept, false);
    l = layout_of(&b, kept, false);
    assert_ptr_equal(l, first);
    layout_unref(l);
    l = layout_of(&b, kept, true);
    assert_ptr_not_equal(l, first);
    layout_unref(l);
    l = layout_of(&b, same, false); /* another tensor list, though it is equal */
    assert_ptr_not_equal(l, first);
    layout_unref(l);
    again = tensor_list_ref(same);
    assert_true(list_cache_put(updates_lists(b.updates), &text, &again));
    l = layout_of(&b, again, false); /* and the other entry, which came first now, has none */
    assert_ptr_equal(l, first);
    layout_unref(l);
    assert_true(list_cache_put(updates_lists(b.updates), &converts, &converted));
    l = layout_of(&b, converted, true);
    assert_int_equal(l->parts[0].how, PART_CONVERT);
    layout_unref(l);
    assert_int_equal(list_cache_layout(updates_lists(b.updates), converted, false, &l, &e), -1);
    assert_int_equal(e.code, ERR_MISMATCH);
    tensor_list_unref(kept);
    tensor_list_unref(same);
    tensor_list_unref(again);
    tensor_list_unref(converted);
    bench_close(&b);
    assert_int_equal(first->parts[0].match.index, 0); /* held: still there */
    layout_unref(first);
}

static int of_one_more(void *arg, uint32_t i, uint64_t *shape, uint32_t *ndim, uint64_t *numel,
                       struct err *e)
{
    const struct tensor_list *parts = arg;

    (void)e;
    *ndim = 1;
    shape[0] = parts->tensors[i].shape[0] + 1;
    *numel = UINT64_MAX;
    return 0;
}

static struct delta *delta_in(struct bench *b, const struct tensor_list *parts)
{
    struct delta *d = NULL;
    struct err e = {0};

    assert_int_equal(
        delta_of_list(&d, updates_lists(b->updates), store_model_spec(b->store), parts, &e), 0);
    return d;
}

/* The deltas of one step after another have the same names: they make the same list. */
static void test_a_delta_is_kept_with_its_names(void **state)
{
    static const struct fx_tensor gap = {"bias#gap", DTYPE_U16, 1, {2}},
                                  xored = {"bias#xor", DTYPE_U8, 1, {2}};
    static const struct fx_tensor *const parts[] = {&gap, &xored};
    static const struct list_key key = {LIST_BY_TEXT, {{"[]", 2}}};
    struct tensor_list *sent = fx_tensor_list(parts, 2), *next;
    struct delta *apart, *new, *first, *second;
    struct layout *layout, *same;
    struct err e = {0};
    struct bench b;

    (void)state;
    bench_open(&b);
    apart = delta_in(&b, sent); /* not cached */
    assert_true(list_cache_put(updates_lists(b.updates), &key, &sent));
    new = delta_in(&b, sent);
    first = delta_in(&b, sent);
    assert_ptr_not_equal(first->result, apart->result);
    assert_ptr_equal(first->result, new->result);
    assert_int_equal(tensor_list_reshape(&next, sent, of_one_more, sent, &e), 0);
    second = delta_in(&b, next);
    assert_ptr_equal(second->result, first->result);
    assert_int_equal(first->tensors[0].positions.nbytes, 4);
    assert_int_equal(second->tensors[0].positions.nbytes, 6);
    assert_int_equal(second->tensors[0].values.nbytes, 3);
    layout = layout_of(&b, second->result, false);
    same = layout_of(&b, first->result, false);
    assert_ptr_equal(layout, same);
    layout_unref(layout);
    layout_unref(same);
    delta_free(apart);
    delta_free(new);
    delta_free(first);
    delta_free(second);
    tensor_list_unref(sent);
    tensor_list_unref(next);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_cache_find_compares_all_bytes),
        cmocka_unit_test(test_list_cache_find_tries_the_first),
        cmocka_unit_test(test_list_cache_get_compares_the_whole_key),
        cmocka_unit_test(test_equal_lists_share_a_tensor_list),
        cmocka_unit_test(test_the_last_used_stay),
        cmocka_unit_test(test_registered_lists_only_make_room_for_each_other),
        cmocka_unit_test(test_the_tensors_of_all_are_bounded),
        cmocka_unit_test(test_the_bytes_of_all_are_bounded),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_layouts_are_kept_with_their_list),
        cmocka_unit_test(test_a_delta_is_kept_with_its_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
