/* Whose fault is the end of a call? */
#include "http/client/http_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_an_upstreams_fault_is_never_called_ours(void **state)
{
    static const struct {
        const char *what;
        struct call_facts facts;
        enum http_outcome outcome;
    } rows[] = {
        {"whole", {CURLE_OK, 200, true, false}, HTTP_WHOLE},
        {"a refusal is an answer", {CURLE_OK, 503, true, false}, HTTP_WHOLE},
        {"closed within its head", {CURLE_OK, 0, true, false}, HTTP_BROKEN},
        {"a redirect", {CURLE_OK, 302, true, false}, HTTP_BROKEN},
        {"no status of HTTP", {CURLE_OK, 999, true, false}, HTTP_BROKEN},
        {"a header line over libcurl's limit", {CURLE_OUT_OF_MEMORY, 0, true, false}, HTTP_BROKEN},
        {"the same when we lack something too", {CURLE_OUT_OF_MEMORY, 0, true, true}, HTTP_BROKEN},
        {"no memory for the connection", {CURLE_OUT_OF_MEMORY, 0, false, false}, HTTP_NO_MEMORY},
        {"no descriptor for it", {CURLE_COULDNT_CONNECT, 0, false, true}, HTTP_NO_MEMORY},
        {"nobody listens", {CURLE_COULDNT_CONNECT, 0, false, false}, HTTP_UNREACHABLE},
        {"no name server", {CURLE_COULDNT_RESOLVE_HOST, 0, false, false}, HTTP_UNRESOLVED},
        {"no descriptor to ask one", {CURLE_COULDNT_RESOLVE_HOST, 0, false, true}, HTTP_NO_MEMORY},
        {"another's certificate",
         {CURLE_PEER_FAILED_VERIFICATION, 0, false, false},
         HTTP_UNREACHABLE},
        {"cut before a byte was sent", {CURLE_SEND_ERROR, 0, false, false}, HTTP_BROKEN},
        {"closed without a word", {CURLE_GOT_NOTHING, 0, true, false}, HTTP_BROKEN},
        {"cut in its body", {CURLE_PARTIAL_FILE, 200, true, false}, HTTP_BROKEN},
        {"reset in its body", {CURLE_RECV_ERROR, 200, true, true}, HTTP_BROKEN},
        {"HTTP/0.9", {CURLE_UNSUPPORTED_PROTOCOL, 0, true, false}, HTTP_BROKEN},
        {"too much of a head for us", {CURLE_WRITE_ERROR, 0, true, false}, HTTP_BROKEN},
        {"late", {CURLE_OPERATION_TIMEDOUT, 0, true, false}, HTTP_TIMED_OUT},
        {"we could not watch it", {CURLE_ABORTED_BY_CALLBACK, 0, true, false}, HTTP_NO_MEMORY},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (call_outcome(&rows[i].facts) != rows[i].outcome)
            fail_msg("%s: %d, not %d", rows[i].what, (int)call_outcome(&rows[i].facts),
                     (int)rows[i].outcome);
}

/* No code of libcurl's that comes after the request has left is ours, but for the one by which we
 * end calls; and none is taken for a whole answer. */
static void test_of_what_was_sent_no_end_is_ours(void **state)
{
    (void)state;
    for (int code = CURLE_OK + 1; code < CURL_LAST; code++)
        for (int lacks = 0; lacks <= 1; lacks++) {
            enum http_outcome o = call_outcome(
                &(struct call_facts){(CURLcode)code, 200, true, lacks != 0});

            if (code == CURLE_ABORTED_BY_CALLBACK)
                assert_int_equal(o, HTTP_NO_MEMORY);
            else
                assert_true(o == HTTP_BROKEN || o == HTTP_TIMED_OUT);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_upstreams_fault_is_never_called_ours),
        cmocka_unit_test(test_of_what_was_sent_no_end_is_ours),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
