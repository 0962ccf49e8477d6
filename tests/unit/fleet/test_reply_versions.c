/* weight_versions in relayed replies: every byte of a reply stays, wherever it is cut. */
#include "fleet/members/fleet.h"
#include "fleet/proxy/reply_versions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The fleet of these tests: what was served, as each test sets it. */
static struct fleet_versions served;

void __wrap_fleet_versions_since(struct fleet *f, const struct fleet_ticket *t,
                                 struct fleet_versions *out);
void __wrap_fleet_versions_since(struct fleet *f, const struct fleet_ticket *t,
                                 struct fleet_versions *out)
{
    (void)f;
    (void)t;
    *out = served;
}

static void serve(bool one, size_t n, const char *const *labels)
{
    memset(&served, 0, sizeof served);
    served.one = one;
    served.complete = true;
    served.n = n;
    for (size_t i = 0; i < n; i++) {
        served.items[i].serial = 7 + i;
        (void)snprintf(served.items[i].label, sizeof served.items[i].label, "%s", labels[i]);
    }
}

static char *relay(const char *type, const char *text, size_t cut)
{
    struct reply_versions *v;
    struct http_head head = {.status = 200};
    struct buf out = {0};
    size_t n = strlen(text);

    (void)snprintf(head.content_type, sizeof head.content_type, "%s", type);
    assert_true(reply_versions_applies(&head));
    v = reply_versions_new(NULL, NULL, &head);
    assert_non_null(v);
    for (size_t at = 0; at < n; at += cut)
        reply_versions_feed(v, text + at, n - at < cut ? n - at : cut, &out);
    reply_versions_end(v, &out);
    reply_versions_free(v);
    assert_false(out.failed);
    return out.data != NULL ? out.data : calloc(1, 1);
}

/* '@' in `wanted` is the member. */
static char *with_member(const char *wanted, const char *member)
{
    struct buf out = {0};

    for (; *wanted != '\0'; wanted++)
        if (*wanted == '@')
            buf_puts(&out, member);
        else
            buf_append(&out, wanted, 1);
    return out.data != NULL ? out.data : calloc(1, 1);
}

static void check(const char *type, const char *text, const char *wanted, const char *member)
{
    char *whole = with_member(wanted, member);

    for (size_t cut = 1; cut <= strlen(text) + 1; cut++) {
        char *out = relay(type, text, cut);

        assert_string_equal(out, whole);
        free(out);
    }
    free(whole);
}

#define ONE                                                                                        \
    "\"weight_versions\":[{\"version\":\"a\",\"start\":0,\"end\":null,\"serial\":7,\"exact\":"     \
    "true}]"
#define TWO                                                                                        \
    "\"weight_versions\":[{\"version\":\"a\",\"start\":null,\"end\":null,\"serial\":7,\"exact\":"  \
    "false},{\"version\":\"b\",\"start\":null,\"end\":null,\"serial\":8,\"exact\":false}]"

static const struct {
    const char *text, *wanted;
} json[] = {
    {"{}", "{@}"},
    {" {\n} \n", " {\n@} \n"},
    {"{\"a\":1}", "{\"a\":1,@}"},
    {"{\"a\":{\"b\":[{}]}} ", "{\"a\":{\"b\":[{}]},@} "},
    {"{\"a\":\"}\\\"}\\\\\"}", "{\"a\":\"}\\\"}\\\\\",@}"},
    {"{\"a\":\"\\\"weight_versions\\\":[\"}", "{\"a\":\"\\\"weight_versions\\\":[\",@}"},
    {"{\"weight_versions\":[]}", "{\"weight_versions\":[]}"},
    {"{\"weight_versions\" : null}", "{\"weight_versions\" : null}"},
    {"[{\"a\":1}, {}]", "[{\"a\":1,@}, {@}]"},
    {"[[{\"a\":1}]]", "[[{\"a\":1}]]"},
    {"[]", "[]"},
    {"\"text {\"", "\"text {\""},
    {"17", "17"},
    {"", ""},
    {"{\"a\":1", "{\"a\":1"},
    {"{not json", "{not json"},
    {"}", "}"},
};

static void test_json_gets_one_member_wherever_it_is_cut(void **state)
{
    const char *labels[] = {"a", "b"};

    (void)state;
    for (size_t i = 0; i < sizeof json / sizeof json[0]; i++) {
        serve(true, 1, labels);
        check("application/json", json[i].text, json[i].wanted, ONE);
        serve(false, 2, labels);
        check("application/json; charset=utf-8", json[i].text, json[i].wanted, TWO);
    }
}

/* '@' is the whole event here. */
static const struct {
    const char *text, *wanted;
} events[] = {
    {"data: {\"a\":1}\n\ndata: [DONE]\n\n", "data: {\"a\":1}\n\n@data: [DONE]\n\n"},
    {"data: {\"a\":1}\r\n\r\ndata: [DONE]\r\n\r\n", "data: {\"a\":1}\r\n\r\n@data: [DONE]\r\n\r\n"},
    {"data: {\"a\":1}\r\rdata: [DONE]\r\r", "data: {\"a\":1}\r\r@data: [DONE]\r\r"},
    {"data:{\"a\":1}\n\ndata:[DONE]\n\n", "data:{\"a\":1}\n\n@data:[DONE]\n\n"},
    {"data: [DONE]", "@data: [DONE]"},
    {"data: {\"t\":\"data: [DONE]\"}\n\ndata: [DONE]\n\n",
     "data: {\"t\":\"data: [DONE]\"}\n\n@data: [DONE]\n\n"},
    {"data: [DONE]x\n\ndata: [DONE]\n\n", "data: [DONE]x\n\n@data: [DONE]\n\n"},
    {"data: [DON\n\ndata: [DONE]\n\n", "data: [DON\n\n@data: [DONE]\n\n"},
    {"data: x\ndata: [DONE]\n\ndata: [DONE]\n\n", "data: x\ndata: [DONE]\n\n@data: [DONE]\n\n"},
    {": ping\n\n\n\ndata: 1\n\ndata: [DONE]\n\n: bye\n\n",
     ": ping\n\n\n\ndata: 1\n\n@data: [DONE]\n\n: bye\n\n"},
    {"data: [DONE]\n\ndata: [DONE]\n\n", "@data: [DONE]\n\ndata: [DONE]\n\n"},
    {"event: stop\ndata: {\"x\":[1]}\n\n", "event: stop\ndata: {\"x\":[1]}\n\n@"},
    {"event: stop\r\ndata: {}\r\n\r\n", "event: stop\r\ndata: {}\r\n\r\n@"},
    {"data: {\"cut\":", "data: {\"cut\":"},
    {"data: {\"cut\":1}\n", "data: {\"cut\":1}\n"},
    {"data: {\"weight_versions\":[]}\n\ndata: [DONE]\n\n",
     "data: {\"weight_versions\":[]}\n\ndata: [DONE]\n\n"},
    {"", "@"},
};

static void test_a_stream_gets_one_event_wherever_it_is_cut(void **state)
{
    const char *labels[] = {"a", "b"};

    (void)state;
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        serve(true, 1, labels);
        check("text/event-stream", events[i].text, events[i].wanted, "data: {" ONE "}\n\n");
        serve(false, 2, labels);
        check("text/event-stream; charset=utf-8", events[i].text, events[i].wanted,
              "data: {" TWO "}\n\n");
    }
}

#define OWN(version, start, end) "{\"version\":\"" version "\",\"start\":" start ",\"end\":" end "}"
#define SPAN(version, start, end, serial)                                                          \
    "{\"version\":\"" version "\",\"start\":" start ",\"end\":" end ",\"serial\":" serial          \
    ",\"exact\":true}"
#define CHOICE(list) "{\"finish_reason\":\"stop\",\"weight_versions\":[" list "]}"
#define NO_LABEL                                                                                   \
    "\"weight_versions\":[{\"version\":null,\"start\":0,\"end\":null,\"serial\":7,\"exact\":true}" \
    "]"

/* @labels  what was served, "" for none; first and last without an end: the engine's do not count
 */
static const struct {
    bool one;
    const char *labels[4], *lists, *member;
} own[] = {
    {true, {"a"}, CHOICE(OWN("a", "0", "5")), "\"weight_versions\":[" SPAN("a", "0", "5", "7") "]"},
    {false,
     {"a", "b"},
     CHOICE(OWN("a", "0", "2") ", " OWN("b", "2", "5")),
     "\"weight_versions\":[" SPAN("a", "0", "2", "7") "," SPAN("b", "2", "5", "8") "]"},
    {false,
     {"a", "b", "c"},
     CHOICE(OWN("a", "0", "2") "," OWN("c", "2", "5")),
     "\"weight_versions\":[" SPAN("a", "0", "2", "7") "," SPAN("c", "2", "5", "9") "]"},
    {false,
     {"a", "b"},
     CHOICE(OWN("b", "0", "5")),
     "\"weight_versions\":[" SPAN("b", "0", "5", "8") "]"},
    /* the same versions in each of several sequences */
    {true, {"a"}, CHOICE(OWN("a", "0", "5")) "," CHOICE(OWN("a", "0", "3")), ONE},
    {false, {"a", "b"}, CHOICE(OWN("a", "0", "5")) "," CHOICE(OWN("b", "0", "3")), TWO},
    /* a list for one sequence of two says nothing of the other */
    {false, {"a", "b"}, CHOICE(OWN("a", "0", "5")) ",{\"finish_reason\":\"stop\"}", TWO},
    {true, {"a"}, CHOICE(OWN("a", "0", "5")) ",{\"finish_reason\":\"stop\"}", ONE},
    {true, {"a"}, "{\"finish_reason\":null,\"weight_versions\":null}", ONE},
    /* names that were not served here, in another order, or of two versions */
    {false, {"a", "b"}, CHOICE(OWN("x", "0", "5")), TWO},
    {false, {"a", "b"}, CHOICE(OWN("b", "0", "2") "," OWN("a", "2", "5")), TWO},
    {false, {"a", "b"}, CHOICE("{\"version\":\"a\",\"start\":0}"), TWO},
    {false, {"a", "b"}, CHOICE(OWN("a", "0", "2.5")), TWO},
    {true, {""}, "{}", NO_LABEL},
};

static void test_an_engines_own_versions_count_if_they_are_known(void **state)
{
    char text[1024], wanted[1024];

    (void)state;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        size_t n = 0;

        while (n < 4 && own[i].labels[n] != NULL)
            n++;
        serve(own[i].one, n, own[i].labels);
        (void)snprintf(text, sizeof text, "{\"choices\":[%s]}", own[i].lists);
        (void)snprintf(wanted, sizeof wanted, "{\"choices\":[%s],@}", own[i].lists);
        check("application/json", text, wanted, own[i].member);
        (void)snprintf(text, sizeof text,
                       "data: {\"finish_reason\":null}\n\ndata: {\"choices\":[%s]}\n\ndata: "
                       "{\"choices\":[]}\n\ndata: [DONE]\n\n",
                       own[i].lists);
        (void)snprintf(wanted, sizeof wanted,
                       "data: {\"finish_reason\":null}\n\ndata: {\"choices\":[%s]}\n\ndata: "
                       "{\"choices\":[]}\n\ndata: {@}\n\ndata: [DONE]\n\n",
                       own[i].lists);
        check("text/event-stream", text, wanted, own[i].member);
    }
}

static void test_versions_of_one_label_are_not_told_apart(void **state)
{
    const char *labels[] = {"a", "b", "a"};
    char *out;

    (void)state;
    serve(false, 3, labels);
    out = relay("application/json", "{\"choices\":[" CHOICE(OWN("a", "0", "5")) "]}", 9);
    assert_non_null(strstr(out, "\"exact\":false"));
    assert_null(strstr(out, "\"exact\":true"));
    free(out);
}

static void test_versions_of_an_update_that_has_not_ended_are_not_named(void **state)
{
    const char *labels[] = {"a"};
    char *out;

    (void)state;
    serve(false, 1, labels);
    served.last_is_unknown = true;
    served.complete = false;
    out = relay("application/json", "{\"a\":1}", 3);
    assert_string_equal(out, "{\"a\":1,\"weight_versions\":[{\"version\":\"a\",\"start\":null,"
                             "\"end\":null,\"serial\":7,\"exact\":false},{\"version\":null,"
                             "\"start\":null,\"end\":null,\"serial\":null,\"exact\":false}]}");
    free(out);
}

static void test_a_list_that_is_too_long_does_not_count(void **state)
{
    const char *labels[] = {"a"};
    struct buf text = {0};
    char *out;

    (void)state;
    serve(true, 1, labels);
    buf_puts(&text, "{\"choices\":[{\"finish_reason\":\"stop\",\"weight_versions\":[");
    for (int i = 0; i < 300; i++)
        buf_printf(&text, "%s" OWN("a", "0", "1"), i > 0 ? "," : "");
    buf_puts(&text, "]}]}");
    out = relay("application/json", text.data, 100);
    assert_int_equal(strncmp(out, text.data, text.len - 1), 0);
    assert_non_null(strstr(out, "\"exact\":false}]}"));
    free(out);
    buf_fini(&text);
}

static void test_other_replies_stay_as_they_are(void **state)
{
    static const struct http_head heads[] = {
        {.status = 400, .content_type = "application/json"},
        {.status = 200, .content_type = "application/jsonl"},
        {.status = 200, .content_type = "audio/wav"},
        {.status = 200, .content_type = ""},
        {.status = 200, .content_type = "application/json", .content_encoding = "gzip"}};

    (void)state;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
        assert_false(reply_versions_applies(&heads[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_gets_one_member_wherever_it_is_cut),
        cmocka_unit_test(test_a_stream_gets_one_event_wherever_it_is_cut),
        cmocka_unit_test(test_an_engines_own_versions_count_if_they_are_known),
        cmocka_unit_test(test_versions_of_one_label_are_not_told_apart),
        cmocka_unit_test(test_versions_of_an_update_that_has_not_ended_are_not_named),
        cmocka_unit_test(test_a_list_that_is_too_long_does_not_count),
        cmocka_unit_test(test_other_replies_stay_as_they_are),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
