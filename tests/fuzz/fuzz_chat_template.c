/* Templates and messages from outside. An input is a template, or one, a NUL and the JSON of its
 * messages. A refusal must explain itself and leave nothing; what is rendered is bounded, and the
 * same each time. */
#include "text/chat_template.h"
#include "text/jinja/jinja.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_refusal(const struct err *e)
{
    assert(e->code == ERR_BAD_REQUEST || e->code == ERR_NO_MEMORY);
    assert(e->msg[0] != '\0');
}

static json_t *read_messages(const uint8_t *json, size_t len)
{
    static const char fixed[] =
        "[{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": "
        "[{\"type\": \"text\", \"text\": \" a\\u00e9\\n\"}]}, {\"role\": \"assistant\", "
        "\"content\": "
        "null, \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5, "
        "true]}}}]}]";
    json_t *messages = len > 0 ? json_loadb((const char *)json, len, JSON_ALLOW_NUL, NULL) : NULL;

    if (json_is_array(messages) && json_array_size(messages) > 0)
        return messages;
    json_decref(messages);
    return json_loads(fixed, 0, NULL);
}

static void check_render(const struct chat_template *t, const struct chat_input *in)
{
    struct buf first = {0}, second = {0};
    struct err e = {0}, again = {0};
    int rc = chat_template_render(t, in, &first, &e);

    if (rc != 0) {
        check_refusal(&e);
        assert(first.len == 0);
    } else {
        assert(first.len <= JINJA_OUTPUT_NBYTES_MAX);
    }
    if (first.len < 4096) { /* the same once more, but not of what took its time */
        assert(chat_template_render(t, in, &second, &again) == rc && again.code == e.code);
        assert(first.len == second.len);
        assert(first.len == 0 || memcmp(first.data, second.data, first.len) == 0);
    }
    buf_fini(&first);
    buf_fini(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    const uint8_t *nul = len > 0 ? memchr(data, '\0', len) : NULL;
    size_t n = nul != NULL ? (size_t)(nul - data) : len;
    struct chat_template *t = NULL;
    struct chat_input in = {.add_generation_prompt = true, .now_s = 1700000000};
    struct err e = {0};
    json_t *messages;

    if (chat_template_parse(&t, (const char *)data, n, NULL, &e) != 0) {
        check_refusal(&e);
        assert(t == NULL);
        return 0;
    }
    messages = read_messages(nul != NULL ? nul + 1 : data, nul != NULL ? len - n - 1 : 0);
    assert(messages != NULL);
    in.messages = messages;
    check_render(t, &in);
    in.continue_final = true;
    check_render(t, &in);
    json_decref(messages);
    chat_template_free(t);
    return 0;
}
