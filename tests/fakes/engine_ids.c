#include "tests/fakes/engine_ids.h"

#include <stdlib.h>
#include <string.h>

enum { MODEL_LEN = 1 << 20 };

uint32_t fnv1a(uint32_t hash, const void *data, size_t len)
{
    const uint8_t *at = data;

    for (size_t i = 0; i < len; i++)
        hash = (hash ^ at[i]) * 16777619U;
    return hash;
}

uint32_t fnv1a_of(const void *data, size_t len)
{
    return fnv1a(2166136261U, data, len);
}

static void ids_add(struct ids *ids, uint32_t id)
{
    if (ids->n == ids->cap) {
        ids->cap = ids->cap == 0 ? 64 : ids->cap * 2;
        ids->at = must(realloc(ids->at, ids->cap * sizeof *ids->at));
    }
    ids->at[ids->n++] = id;
}

void tokenize(struct ids *out, const char *text)
{
    while (*text != '\0') {
        char *end = NULL;
        unsigned long id = BYTES;

        if (text[0] == ' ' && text[1] == 't' && text[2] >= '0' && text[2] <= '9')
            id = strtoul(text + 2, &end, 10);
        if (id >= BYTES) {
            id = BYTES + (unsigned char)*text;
            end = NULL;
        }
        ids_add(out, (uint32_t)id);
        text = end != NULL ? end : text + 1;
    }
}

void put_text(struct buf *b, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char byte = (char)(ids[i] - BYTES);

        if (ids[i] < BYTES)
            buf_printf(b, " t%u", ids[i]);
        else
            buf_append(b, &byte, 1);
    }
}

void put_ids(struct buf *b, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_printf(b, i > 0 ? ",%u" : "%u", ids[i]);
}

/* False: it is no list of token ids. */
bool ids_of_list(struct ids *out, const json_t *list)
{
    const json_t *one;
    size_t i;

    json_array_foreach(list, i, one)
    {
        if (!json_is_integer(one) || json_integer_value(one) < 0 ||
            json_integer_value(one) >= VOCAB)
            return false;
        ids_add(out, (uint32_t)json_integer_value(one));
    }
    return json_is_array(list);
}

bool ids_of_prompt(struct ids *out, const json_t *prompt)
{
    const json_t *first = json_array_get(prompt, 0);

    if (json_is_string(first) || json_is_array(first))
        return json_array_size(prompt) == 1 && ids_of_prompt(out, first);
    if (!json_is_string(prompt))
        return ids_of_list(out, prompt);
    tokenize(out, json_string_value(prompt));
    return true;
}

bool ids_of_messages(struct ids *out, const json_t *messages)
{
    const json_t *one;
    size_t i;

    json_array_foreach(messages, i, one)
    {
        tokenize(out, text_member(one, "role", ""));
        tokenize(out, ":");
        tokenize(out, text_member(one, "content", ""));
        tokenize(out, "\n");
    }
    return json_array_size(messages) > 0;
}

void reply_tokenize(struct conn *c, const json_t *body)
{
    struct ids ids = {0};
    struct buf b = {0};
    const json_t *messages = json_object_get(body, "messages");
    const char *prompt = text_member(body, "prompt", NULL);

    if (prompt == NULL && !ids_of_messages(&ids, messages)) {
        conn_refuse(c, 400, "bad_request", "neither prompt nor messages");
        return;
    }
    if (prompt != NULL)
        tokenize(&ids, prompt);
    buf_printf(&b, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":[", ids.n, MODEL_LEN);
    put_ids(&b, ids.at, ids.n);
    buf_puts(&b, c->e->o.dialect == SGLANG ? "]}" : "],\"token_strs\":null}");
    free(ids.at);
    conn_reply(c, 200, "application/json", b.data, b.len);
    buf_fini(&b);
}

void reply_detokenize(struct conn *c, const json_t *body)
{
    struct ids ids = {0};
    struct buf b = {0};

    if (ids_of_list(&ids, json_object_get(body, "tokens"))) {
        put_text(&b, ids.at, ids.n);
        conn_reply_json(c, 200,
                        json_pack("{s:o}", c->e->o.dialect == SGLANG ? "text" : "prompt",
                                  b.len > 0 ? json_stringn(b.data, b.len) : json_string("")));
    } else {
        conn_refuse(c, 400, "bad_request", "tokens is no list of token ids below %d", VOCAB);
    }
    free(ids.at);
    buf_fini(&b);
}
