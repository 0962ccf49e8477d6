/* Columns that are read from the text: whatever a body holds, the answer is the one that the tree
 * gives. */
#include "base/json_parse.h"
#include "handlers/body_columns.h"

#include "handlers/app.h"
#include "handlers/control_plane.h"
#include "handlers/route.h"
#include "handlers/tensor_list_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void *__real_malloc(size_t nbytes);
void *__real_realloc(void *p, size_t nbytes);
void *__wrap_malloc(size_t nbytes);
void *__wrap_realloc(void *p, size_t nbytes);

enum { TEXT_MAX = 8192, SAID_MAX = 4096, N_BODIES = 40000, LISTS_MAX = 16 };

static long fail_after = -1; /* allocations until one fails; -1: none does */

void *__wrap_malloc(size_t nbytes)
{
    return fail_after >= 0 && fail_after-- == 0 ? NULL : __real_malloc(nbytes);
}

void *__wrap_realloc(void *p, size_t nbytes)
{
    return fail_after >= 0 && fail_after-- == 0 ? NULL : __real_realloc(p, nbytes);
}

static struct route route; /* update_weights'; filled by set_up */

static int set_up(void **state)
{
    (void)state;
    route = (struct route){.body = BODY_TENSORS, .strict = true, .members = update_members};
    json_parse_init();
    return 0;
}

/* What a body comes to: all that a client or the worker could see of it. */
struct outcome {
    bool taken, from_text;
    char said[SAID_MAX]; /* the tensor lists, or the error */
};

static void say(struct outcome *o, const char *text)
{
    size_t len = strlen(o->said);

    (void)snprintf(o->said + len, sizeof o->said - len, "%s;", text);
}

static int read_sizes(struct outcome *o, const json_t *list, const struct body_columns *text,
                      const char *at, struct err *e)
{
    struct column c;
    char said[64];

    if (column_open(&c, text, list, at, "tensor_sizes", e) != 0)
        return -1;
    for (size_t i = 0; i < c.n; i++) {
        uint64_t value = 0;
        enum column_value kind = column_next_u64(&c, &value);

        (void)snprintf(said, sizeof said, "%d %llu", (int)kind, (unsigned long long)value);
        say(o, said);
    }
    return 0;
}

/* The tensor list of several lists, and the other columns that stand beside them. */
static int read_lists(struct outcome *o, json_t *const *lists, const struct chunk_origin *origins,
                      uint32_t n_lists, const struct body_columns *text, struct err *e)
{
    struct app_weights weights = {.lists = NULL};
    struct tensor_list_builder *b;
    struct tensor_list *tensor_list;

    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    for (uint32_t i = 0; i < n_lists; i++) {
        int rc = tensor_list_resolve(&tensor_list, &weights, lists[i], text, origins[i].at, false,
                                     e);

        if (rc == 0) {
            rc = tensor_list_append(b, tensor_list, origins, i + 1, e);
            tensor_list_unref(tensor_list);
        }
        if (rc != 0 || read_sizes(o, lists[i], text, origins[i].at, e) != 0) {
            tensor_list_builder_free(b);
            return -1;
        }
    }
    if (tensor_list_builder_finish(b, &tensor_list, e) != 0)
        return -1;
    say(o, tensor_list->digest);
    tensor_list_unref(tensor_list);
    return 0;
}

/* The body's own columns, its buckets', and those of lists for each GPU. */
static int read_body(struct outcome *o, const json_t *body, const struct body_columns *text,
                     struct err *e)
{
    struct chunk_origin origins[LISTS_MAX] = {{.rank = 0}};
    json_t *lists[LISTS_MAX] = {(json_t *)(uintptr_t)body}, *value;
    const json_t *buckets = json_object_get(body, "buckets");
    uint32_t n = buckets == NULL ? 1 : 0;
    const char *key;

    for (size_t i = 0; i < json_array_size(buckets) && n < LISTS_MAX; i++) {
        if (!json_is_object(json_array_get(buckets, i)))
            continue;
        lists[n] = json_array_get(buckets, i);
        (void)snprintf(origins[n++].at, sizeof origins[0].at, "/buckets/%zu", i);
    }
    json_object_foreach(json_object_get(body, "per_gpu"), key, value)
    {
        if (json_is_object(value) && tensor_columns_check(value, text, "/per_gpu/x", e) != 0)
            return -1;
    }
    return read_lists(o, lists, origins, n, text, e);
}

static struct outcome outcome_of(const char *text, size_t len, bool columns)
{
    /* Exactly as long as it is: reading further is seen. */
    char *copy = __real_malloc(len > 0 ? len : 1);
    struct http_request x = {.body = copy, .body_len = len, .content_type = (char[]){""}};
    struct outcome o = {.taken = false};
    struct body_columns lifted = {0};
    json_t *body = NULL;
    struct err e = {0};
    char said[sizeof e.field + sizeof e.msg + 32];
    int rc;

    assert_non_null(copy);
    memcpy(copy, text, len);
    rc = columns ? body_parse_columns(&body, &lifted, &x, &route, NULL, &e)
                 : body_parse(&body, &x, &route, &e);
    o.from_text = lifted.n > 0;
    if (rc == 0)
        rc = read_body(&o, body, columns ? &lifted : NULL, &e);
    o.taken = rc == 0;
    if (rc != 0) {
        (void)snprintf(said, sizeof said, "%d at '%s': %s", (int)e.code, e.field, e.msg);
        say(&o, said);
    }
    json_decref(body);
    body_columns_fini(&lifted);
    free(copy);
    return o;
}

/* Both ways say the same. Returns what. */
static struct outcome compare(const char *text, size_t len)
{
    struct outcome tree = outcome_of(text, len, false), columns = outcome_of(text, len, true);

    if (tree.taken != columns.taken || strcmp(tree.said, columns.said) != 0)
        fail_msg("of %.*s\nthe tree says %s\nthe text says %s", (int)len, text, tree.said,
                 columns.said);
    return columns;
}

#define LIST "\"dtypes\":[\"bfloat16\",\"F32\"],\"shapes\":[[2,3],[]]"

static void test_body_parse_columns_takes_plain_ones_from_the_text(void **state)
{
    static const char *const bodies[] = {
        "{\"names\":[\"a\",\"b\"]," LIST "}",
        " {\"names\" :\t[ \"a\" ,\n\"b\" ] ," LIST ",\"sizes\":[6, 1],\"tensor_sizes\":[12,4]}\r\n",
        "{\"names\":[\"a\",\"b\"]," LIST ",\"sizes\":null,\"chunk_id\":\"\\u006e\\\"names\\\":[\"}",
        "{\"buckets\":[{\"names\":[\"a\",\"b\"]," LIST "},{\"names\":[\"c\",\"d\"]," LIST "}]}",
        "{\"names\":[\"a\",\"b\"]," LIST ",\"per_gpu\":{\"x\":{\"names\":[\"a\",\"b\"]," LIST "}}}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        struct outcome o = compare(bodies[i], strlen(bodies[i]));

        if (!o.taken || !o.from_text)
            fail_msg("%s: %s", bodies[i], o.said);
    }
}

static void test_body_parse_columns_leaves_the_rest_to_the_tree(void **state)
{
    static const char *const bodies[] = {
        "{\"names\":[\"\\u0061\",\"b\"]," LIST "}",
        "{\"names\":[\"\xc3\xa4\",\"b\"]," LIST "}",
        "{\"n\\u0061mes\":[\"a\",\"b\"]," LIST "}",
        "{\"names\":[\"a\",\"b\"]," LIST ",\"sizes\":[null,1]}",
        "{\"names\":[\"a\",\"b\"],\"dtypes\":[\"F32\",\"F32\"],\"shapes\":[[-0],[1]]}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        struct outcome o = compare(bodies[i], strlen(bodies[i]));

        if (!o.taken || o.from_text)
            fail_msg("%s: %s", bodies[i], o.said);
    }
}

/* Above all what looks like the place of a column that was cut out. */
static void test_body_parse_columns_refuses_what_the_tree_refuses(void **state)
{
    static const char *const bodies[] = {
        "{\"names\":[0]," LIST "}",
        "{\"names\":0," LIST "}",
        "{\"n\\u0061mes\":[0]," LIST "}",
        "{\"names\":[\"a\",\"b\"],\"dtypes\":[1],\"shapes\":[[2,3],[]]}",
        "{\"names\":[\"a\",\"b\"],\"d\\u0074ypes\":[2],\"shapes\":[[2,3],[]]}",
        "{\"names\":[\"a\",\"b\"],\"dtypes\":[\"F32\",\"F32\"],\"shapes\":[[0]]}",
        "{\"names\":[\"a\",\"b\"]," LIST ",\"sizes\":[0]}",
        "{\"names\":[\"a\",\"b\"]," LIST ",\"names\":[\"c\",\"d\"]}",
        "{\"names\":[\"a\",\"b\"]," LIST ",\"n\\u0061mes\":[\"c\",\"d\"]}",
        "{\"names\":[\"a\",\"a\"]," LIST "}",
        "{\"names\":[\"a\",\"b\",]," LIST "}",
        "{\"names\":[\"a\" \"b\"]," LIST "}",
        "{\"names\":[\"a\",\"b\"]," LIST ",}",
        "{\"names\":[\"a\",\"b\"]," LIST "}}",
        "{\"names\":[\"a\",\"b\"]," LIST ",\"sizes\":[6.0,1]}",
        "{\"names\":[\"a\",\"b\"]," LIST ",\"sizes\":[6e0,1]}",
        "{\"names\":[\"a\",\"b\"]," LIST ",\"sizes\":[06,1]}",
        "{\"names\":[\"a\",\"b\"]," LIST ",\"sizes\":[-6,1]}",
        "{\"names\":[\"a\",\"b\"]," LIST ",\"sizes\":[9223372036854775808,1]}",
        "{\"names\":[\"a\",\"b\"]," LIST ",\"sizes\":[6,2]}",
        "{\"names\":[\"a\",\"b\"]," LIST ",\"nmaes\":[\"x\"]}",
        "{\"names\":[\"a\",\"\\ud800\"]," LIST "}",
        "{\"names\":[\"a\",\"\\u0000\"]," LIST "}",
        "{\"names\":[\"a\",\"\xff\"]," LIST "}",
        "{\"names\":[\"a\",\"\n\"]," LIST "}",
        "{\"names\":[\"a\",\"\x7f\"]," LIST "}",
        "{\"names\":[]," LIST "}",
        "{\"names\":[\"a\"]," LIST "}",
        "[\"names\":[\"a\",\"b\"]]",
        "[\"names\",[\"a\",\"b\"]]",
        "{\"names\":[\"a\",\"b\"",
        "{\"names\":[1",
        "{\"names\"",
        "",
    };

    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
        if (compare(bodies[i], strlen(bodies[i])).taken)
            fail_msg("%s is taken", bodies[i]);
}

/* As long as a name may be, and one byte longer. */
static void test_body_parse_columns_judges_length_as_it_came(void **state)
{
    char name[TENSOR_LIST_NAME_LEN_MAX + 2], text[TEXT_MAX];

    (void)state;
    for (size_t len = TENSOR_LIST_NAME_LEN_MAX - 1; len <= TENSOR_LIST_NAME_LEN_MAX + 1; len++) {
        int n;

        memset(name, 'n', len);
        name[len] = '\0';
        n = snprintf(text, sizeof text, "{\"names\":[\"%s\",\"b\"]," LIST "}", name);
        assert_int_equal(compare(text, (size_t)n).taken, len <= TENSOR_LIST_NAME_LEN_MAX);
        n = snprintf(text, sizeof text, "{\"names\":[\"a\"],\"shapes\":[[]],\"dtypes\":[\"%s\"]}",
                     name);
        assert_false(compare(text, (size_t)n).taken);
    }
}

/* Nested as deep as is allowed with a column at the bottom, and one deeper. */
static void test_body_parse_columns_judges_depth_as_it_came(void **state)
{
    static const char *const inner[] = {"{\"shapes\":[[1]]}", "{\"shapes\":[]}",
                                        "{\"names\":[\"a\"]}"};
    char text[TEXT_MAX];

    (void)state;
    for (int depth = BODY_DEPTH_MAX - 5; depth <= BODY_DEPTH_MAX; depth++) {
        for (size_t i = 0; i < sizeof inner / sizeof inner[0]; i++) {
            size_t len = (size_t)snprintf(text, sizeof text, "{\"buckets\":");

            for (int k = 0; k < depth; k++)
                text[len++] = '[';
            len += (size_t)snprintf(text + len, sizeof text - len, "%s", inner[i]);
            for (int k = 0; k < depth; k++)
                text[len++] = ']';
            text[len++] = '}';
            (void)compare(text, len);
        }
    }
}

/* generated bodies */

static uint64_t seed;

static uint32_t any(uint32_t n)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33) % n;
}

struct body_text {
    char text[TEXT_MAX];
    size_t len;
};

static void put(struct body_text *b, const char *text)
{
    size_t len = strlen(text);

    assert_true(b->len + len < sizeof b->text);
    memcpy(b->text + b->len, text, len);
    b->len += len;
}

static void put_u32(struct body_text *b, uint32_t value)
{
    char text[16];

    (void)snprintf(text, sizeof text, "%u", (unsigned)value);
    put(b, text);
}

static void put_blank(struct body_text *b)
{
    static const char *const blanks[] = {"", "", "", " ", "\n", "\t\r "};

    put(b, blanks[any(sizeof blanks / sizeof blanks[0])]);
}

static void put_list(struct body_text *b, uint32_t first)
{
    static const char *const dtypes[] = {"bfloat16", "F32", "float16", "torch.float32", "I64"};
    uint32_t n = any(4) + (any(20) != 0), dims[4][2], width = any(2);

    put(b, "\"names\":[");
    for (uint32_t i = 0; i < n; i++) {
        put_blank(b);
        put(b, i > 0 ? ",\"m.l." : "\"m.l.");
        put_u32(b, first + i);
        put(b, any(300) == 0 ? "\\u0077\"" : "w\"");
    }
    put(b, any(2) == 0 ? "],\"dtypes\" :[" : "],\"dtype_names\": [");
    for (uint32_t i = 0; i < n; i++) {
        put(b, i > 0 ? ",\"" : "\"");
        put(b, dtypes[any(sizeof dtypes / sizeof dtypes[0])]);
        put(b, "\"");
    }
    put(b, "], \"shapes\":[");
    for (uint32_t i = 0; i < n && i < 4; i++) {
        put(b, i > 0 ? ",[" : "[");
        for (uint32_t k = 0; k < width; k++) {
            put_blank(b);
            put_u32(b, dims[i][k] = any(1000));
        }
        put(b, "]");
    }
    put(b, "]");
    if (any(2) == 0) {
        put(b, any(2) == 0 ? ",\"sizes\":[" : ",\"tensor_sizes\":[");
        for (uint32_t i = 0; i < n && i < 4; i++) {
            put(b, i > 0 ? ", " : "");
            put_u32(b, width > 0 ? dims[i][0] : 1);
        }
        put(b, "]");
    }
}

static void put_body(struct body_text *b)
{
    uint32_t n = any(3);

    b->len = 0;
    put(b, "{");
    put_blank(b);
    if (n == 0)
        put_list(b, 0);
    else
        put(b, "\"buckets\":[");
    for (uint32_t i = 0; i < n; i++) {
        put(b, i > 0 ? ",{" : "{");
        put_list(b, 10 * i);
        put(b, "}");
    }
    put(b, n == 0 ? "" : "]");
    put(b, any(3) == 0 ? ",\"chunk_id\":\"a\\\"b\"" : "");
    put(b, "}");
}

/* Cuts out `gone` bytes at a place and puts others there. */
static void splice(struct body_text *b, size_t at, size_t gone, const char *in, size_t n_in)
{
    if (at + gone > b->len || b->len - gone + n_in > sizeof b->text)
        return;
    memmove(b->text + at + n_in, b->text + at + gone, b->len - at - gone);
    memcpy(b->text + at, in, n_in);
    b->len = b->len - gone + n_in;
}

static void mutate(struct body_text *b)
{
    static const char *const pieces[] = {"1.0",
                                         "1e3",
                                         "-0",
                                         "-1",
                                         "00",
                                         "0",
                                         "999999999999999999",
                                         "9223372036854775807",
                                         "9223372036854775808",
                                         "99999999999999999999",
                                         "null",
                                         "true",
                                         "\"\\ud800\"",
                                         "\"\\ud83d\\ude00\"",
                                         "\"\\u0000\"",
                                         "\\u006e",
                                         "\\",
                                         "\"",
                                         "\"\"",
                                         "[",
                                         "]",
                                         "{",
                                         "}",
                                         ",",
                                         ":",
                                         "[0]",
                                         "[[0]]",
                                         "[[1]]",
                                         "[]",
                                         "\"names\":",
                                         "\"names\":[0],",
                                         "\"sizes\":[1],",
                                         "\"shapes\"",
                                         "\"n\\u0061mes\":[0],",
                                         " ",
                                         "\n",
                                         "\x7f",
                                         "\xff",
                                         "\xc3\xa4",
                                         "\x01",
                                         "n",
                                         "[1,2,3,4,5,6,7,8,9]",
                                         "\"dtypes\":[\"F32\"],",
                                         "{\"names\":[\"x\"]}"};
    size_t at = any((uint32_t)b->len + 1);
    const char *piece = pieces[any(sizeof pieces / sizeof pieces[0])];
    char byte = (char)any(256);

    switch (any(5)) {
    case 0:
        splice(b, at, 1, &byte, 1);
        break;
    case 1:
        splice(b, at, any(4), "", 0);
        break;
    case 2:
        splice(b, at, any(3), piece, strlen(piece));
        break;
    case 3: /* in the place of a whole element, most often */
        while (at < b->len && strchr(",[:", b->text[at]) == NULL)
            at++;
        splice(b, at + 1, any(2) * 2, piece, strlen(piece));
        break;
    default:
        b->len = any((uint32_t)b->len + 1);
        break;
    }
}

static void test_body_parse_columns_agrees_with_the_tree(void **state)
{
    const char *given = getenv("SEED");
    uint32_t n_text = 0, n_tree = 0, n_refused = 0;
    struct body_text *b = malloc(sizeof *b);

    (void)state;
    assert_non_null(b);
    seed = given != NULL ? strtoull(given, NULL, 10) : 1;
    for (uint32_t i = 0; i < N_BODIES; i++) {
        struct outcome o;

        put_body(b);
        for (uint32_t n = any(4); n > 0; n--)
            mutate(b);
        o = compare(b->text, b->len);
        n_text += o.taken && o.from_text;
        n_tree += o.taken && !o.from_text;
        n_refused += !o.taken;
    }
    free(b);
    assert_true(n_text > N_BODIES / 10 && n_tree > N_BODIES / 200 && n_refused > N_BODIES / 4);
}

/* Whichever allocation fails, what is taken is what was sent; nothing is kept. */
static void test_body_parse_columns_without_memory(void **state)
{
    static const char text[] = "{\"buckets\":[{\"names\":[\"a\",\"b\"]," LIST
                               "},{\"names\":[\"c\",\"d\"]," LIST "},{\"names\":[\"e\",\"f\"]," LIST
                               "}]}";
    struct outcome all = outcome_of(text, sizeof text - 1, true), o = {.taken = false};
    char no_memory[16];
    uint32_t n_taken = 0;
    long n;

    (void)state;
    (void)snprintf(no_memory, sizeof no_memory, "%d at", (int)ERR_NO_MEMORY);
    assert_true(all.taken && all.from_text);
    for (n = 0; n < 1000 && !(o.taken && o.from_text); n++) {
        fail_after = n;
        o = outcome_of(text, sizeof text - 1, true);
        fail_after = -1;
        assert_true(o.taken ? strcmp(o.said, all.said) == 0
                            : strncmp(o.said, no_memory, strlen(no_memory)) == 0);
        n_taken += o.taken;
    }
    assert_true(n > 10 && n < 1000 && n_taken > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_body_parse_columns_takes_plain_ones_from_the_text),
        cmocka_unit_test(test_body_parse_columns_leaves_the_rest_to_the_tree),
        cmocka_unit_test(test_body_parse_columns_refuses_what_the_tree_refuses),
        cmocka_unit_test(test_body_parse_columns_judges_length_as_it_came),
        cmocka_unit_test(test_body_parse_columns_judges_depth_as_it_came),
        cmocka_unit_test(test_body_parse_columns_agrees_with_the_tree),
        cmocka_unit_test(test_body_parse_columns_without_memory),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
