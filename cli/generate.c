/* generate: one streamed completion; its text goes to stdout as it comes. */
#include "cli/cli_priv.h"
#include "cli/terminal.h"

#include "base/clock.h"
#include "base/json_parse.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROMPT_NBYTES_MAX = 16 << 20, EVENT_NBYTES_MAX = 16 << 20 };
enum { WAIT_HINT_US = 2000000 }; /* without a first event */

/* The loop's thread writes it while main waits for the call; main reads it after that. */
struct reply {
    struct buf line; /* the rest of an event that has not ended */
    json_t *last;    /* owned: of the event that had the finish reason */
    json_t *error;   /* owned */
    double n_tokens;
    size_t n_events;
    bool raw; /* --json: events as they come */

    atomic_bool has_begun; /* something came; relaxed: it decides a hint only */
    uint64_t hint_at_us;   /* main's; CLOCK_NEVER: the hint was given */
};

/* A paused server lets requests wait without an answer. */
static void reply_waiting(void *arg, uint64_t nbytes_sent)
{
    struct reply *r = arg;

    (void)nbytes_sent;
    if (!clock_passed(r->hint_at_us) || atomic_load_explicit(&r->has_begun, memory_order_relaxed))
        return;
    r->hint_at_us = CLOCK_NEVER;
    (void)fprintf(stderr, "baton generate: waiting for the first token; 'baton status' shows "
                          "whether the server is paused or its queue is long\n");
}

static void event_take(struct reply *r, const char *text, size_t len)
{
    json_error_t why;
    bool starved;
    json_t *event = json_parse(text, len, 0, &why, &starved);
    const json_t *choice = json_array_get(cli_at(event, "choices"), 0);
    const char *piece = cli_text(choice, "text");

    if (piece[0] == '\0')
        piece = cli_text(choice, "delta.content");
    if (r->raw)
        json_print(text, len);
    else
        (void)fputs(piece, stdout);
    (void)fflush(stdout);
    r->n_events += json_is_object(event);
    json_show(event); /* its reply is printed */
    if (json_is_object(cli_at(event, "usage")))
        r->n_tokens = cli_real(event, "usage.completion_tokens");
    if (json_is_object(cli_at(event, "error"))) {
        json_decref(r->error);
        r->error = json_incref(event);
    }
    if (json_is_string(cli_at(choice, "finish_reason"))) {
        json_decref(r->last);
        r->last = json_incref(event);
    }
    json_decref(event);
}

/* Server-sent events: lines of "data: JSON". */
static void reply_data(void *arg, const char *data, size_t len)
{
    struct reply *r = arg;
    char *end;

    atomic_store_explicit(&r->has_begun, true, memory_order_relaxed);
    if (r->line.len + len <= EVENT_NBYTES_MAX)
        buf_append(&r->line, data, len);
    while (r->line.data != NULL && (end = memchr(r->line.data, '\n', r->line.len)) != NULL) {
        size_t n = (size_t)(end - r->line.data);

        if (n > 6 && strncmp(r->line.data, "data: {", 7) == 0)
            event_take(r, r->line.data + 6, n - 6);
        memmove(r->line.data, end + 1, r->line.len - n - 1);
        r->line.len -= n + 1;
    }
}

/* The prompt, or all of stdin for "-". NULL after a message. */
static char *prompt_read(const struct cli *c)
{
    struct buf text = {0};
    char piece[4096];
    size_t n;

    if (strcmp(c->args[0], "-") != 0)
        return strdup(c->args[0]);
    while (text.len <= PROMPT_NBYTES_MAX && (n = fread(piece, 1, sizeof piece, stdin)) > 0)
        buf_append(&text, piece, n);
    if (text.failed || text.len > PROMPT_NBYTES_MAX) {
        buf_fini(&text);
        (void)cli_usage_error(c, "the prompt on stdin is longer than %d bytes", PROMPT_NBYTES_MAX);
        return NULL;
    }
    return buf_take(&text, &n);
}

static enum cli_exit request_make(const struct cli *c, const char *prompt, json_t **out)
{
    double max_tokens, temperature, seed;
    json_t *body, *text = json_string(prompt);

    json_decref(text);
    if (text == NULL)
        return cli_usage_error(c, "the prompt is not valid UTF-8");

    if (cli_number(c, OPT_MAX_TOKENS, 128, 1, 1 << 20, &max_tokens) != CLI_OK ||
        cli_number(c, OPT_TEMPERATURE, 1, 0, 100, &temperature) != CLI_OK ||
        cli_number(c, OPT_SEED, 0, 0, 9007199254740992.0, &seed) != CLI_OK)
        return CLI_USAGE;
    body = json_pack("{s:I, s:f, s:b, s:{s:b}}", "max_tokens", (json_int_t)max_tokens,
                     "temperature", temperature, "stream", 1, "stream_options", "include_usage", 1);
    if (cli_has(c, OPT_SEED))
        (void)json_object_set_new(body, "seed", json_integer((json_int_t)seed));
    if (cli_has(c, OPT_MODEL))
        (void)json_object_set_new(body, "model", json_string(c->values[OPT_MODEL]));
    if (cli_has(c, OPT_CHAT))
        (void)json_object_set_new(body, "messages",
                                  json_pack("[{s:s, s:s}]", "role", "user", "content", prompt));
    else
        (void)json_object_set_new(body, "prompt", json_string(prompt));
    *out = body;
    return CLI_OK;
}

static const char *finish_reason(const struct reply *r)
{
    return cli_text(json_array_get(cli_at(r->last, "choices"), 0), "finish_reason");
}

/* "[42 tokens, 120 tokens/s of MODEL at URL, step-100 0..20, step-101 20..42, length]" on stderr of
 * a terminal. */
static void reply_summary(const struct cli *c, const struct reply *r, uint64_t begun_us)
{
    const json_t *choice = json_array_get(cli_at(r->last, "choices"), 0), *span;
    double s = (double)(clock_now_us() - begun_us) / 1e6;
    size_t i;

    (void)fprintf(stderr, "[%.0f tokens, %.0f tokens/s", r->n_tokens,
                  s > 0 ? r->n_tokens / s : 0.0);
    (void)fprintf(stderr, " of %s at %s", cli_text(r->last, "model"),
                  connection_url(c->connection));
    json_array_foreach(cli_at(choice, "weight_versions"), i, span)(void)
        fprintf(stderr, ", %s %.0f..%.0f", cli_text(span, "version"), cli_real(span, "start"),
                cli_real(span, "end"));
    (void)fprintf(stderr, ", %s]\n", finish_reason(r));
}

static enum cli_exit reply_end(const struct cli *c, struct reply *r, const struct answer *a,
                               enum cli_exit rc, uint64_t begun_us)
{
    struct answer failed = {.status = 200, .json = r->error};

    if (!r->raw && r->n_events > 0)
        (void)putchar('\n');
    if (rc != CLI_OK && rc != CLI_INTERRUPTED)
        answer_report(a, c->connection, c->name);
    if (rc == CLI_OK && r->error != NULL) {
        answer_report(&failed, c->connection, c->name);
        rc = CLI_REFUSED;
    }
    if (rc == CLI_OK && r->last == NULL) {
        (void)fprintf(stderr, "baton generate: %s: %s\n", connection_url(c->connection),
                      r->n_events > 0 ? "the stream ended without a finish reason"
                                      : "this is not an answer of a baton server: the reply has no "
                                        "event");
        rc = CLI_UNREACHABLE;
    }
    if (rc == CLI_OK && isatty(STDERR_FILENO))
        reply_summary(c, r, begun_us);
    if (rc == CLI_OK && strcmp(finish_reason(r), "abort") == 0) {
        (void)fprintf(stderr, "baton generate: the server ended the reply before it was complete: "
                              "its requests were aborted, or it stops\n");
        rc = CLI_REFUSED;
    }
    return rc;
}

enum cli_exit cmd_generate(struct cli *c)
{
    char *prompt = prompt_read(c), *text;
    struct reply r = {.raw = cli_has(c, OPT_JSON), .hint_at_us = clock_after_us(WAIT_HINT_US)};
    uint64_t begun_us = clock_now_us();
    json_t *body = NULL;
    struct answer a;
    enum cli_exit rc;
    struct call call = {.method = "POST", .data = reply_data, .progress = reply_waiting, .arg = &r};

    if (prompt == NULL || request_make(c, prompt, &body) != CLI_OK)
        return free(prompt), CLI_USAGE;
    text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    free(prompt);
    if (text == NULL)
        return cli_usage_error(c, "there is no memory for the request");
    call.path = cli_has(c, OPT_CHAT) ? "/v1/chat/completions" : "/v1/completions";
    call.body = text;
    call.body_len = strlen(text);
    if (!r.raw && !isatty(STDOUT_FILENO))
        terminal_pass_stdout();
    rc = connection_call(c->connection, &call, &a);
    rc = reply_end(c, &r, &a, rc, begun_us);
    answer_fini(&a);
    json_decref(r.last);
    json_decref(r.error);
    buf_fini(&r.line);
    free(text);
    return rc;
}
