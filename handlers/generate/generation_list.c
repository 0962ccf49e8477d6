/* GET /v1/generations: which sequences run or wait, and which versions made their tokens. No text:
 * the route needs the same key as the status. */
#include "base/clock.h"
#include "base/utf8.h"
#include "handlers/control_plane.h"
#include "handlers/generate/generation.h"
#include "handlers/reply.h"
#include "weights/version_label.h"

#include <stdio.h>
#include <stdlib.h>

static void copy_spans_locked(struct generations_row *row, const struct generation_seq *seq)
{
    uint32_t n = seq->n_spans, from = n > GENERATIONS_SPANS_MAX ? n - GENERATIONS_SPANS_MAX : 0;

    for (uint32_t i = from; i < n; i++)
        row->spans[row->n_spans++] = (struct generations_span){
            .start = seq->spans[i].start,
            .serial = seq->spans[i].serial,
            .name = version_label_ref(seq->spans[i].name),
        };
}

static void describe_locked(struct generations_row *row, const struct generation_seq *seq,
                            uint64_t now_us)
{
    const struct generation *g = seq->g;

    (void)snprintf(row->request_id, sizeof row->request_id, "%s",
                   g->request_id != NULL ? g->request_id : "");
    (void)snprintf(row->model, sizeof row->model, "%s", generation_model(g));
    row->index = seq->index;
    row->submitted = seq->id != 0 || seq->ended;
    row->ended = seq->ended;
    row->n_prompt = g->prepared ? g->prompts[seq->prompt].n : 0;
    row->n_tokens = seq->n_tokens;
    row->age_us = now_us > g->began_us ? now_us - g->began_us : 0;
    copy_spans_locked(row, seq);
}

size_t generation_list(void *arg, struct generations_row *rows, size_t cap)
{
    struct generation *g = arg;
    uint64_t now_us = clock_now_us();
    size_t n;

    mtx_lock(&g->lock);
    n = g->n_seqs;
    for (size_t i = 0; i < n && i < cap; i++)
        describe_locked(&rows[i], &g->seqs[i], now_us);
    mtx_unlock(&g->lock);
    return n;
}

static json_t *listed_versions_json(const struct generations_row *row)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < row->n_spans && list != NULL; i++) {
        const struct generations_span *s = &row->spans[i];
        uint32_t end = i + 1 < row->n_spans ? row->spans[i + 1].start : row->n_tokens;

        if (json_array_append_new(list,
                                  json_pack("{s:s, s:I, s:I, s:I}", "version", s->name->text,
                                            "start", (json_int_t)s->start, "end", (json_int_t)end,
                                            "serial", (json_int_t)s->serial)) == 0)
            continue;
        json_decref(list);
        list = NULL;
    }
    return list;
}

/* It may be cut within a character. */
static json_t *clean_json(char *text)
{
    (void)utf8_clean(text);
    return json_string(text);
}

static json_t *row_json(struct generations_row *row)
{
    return json_pack(
        "{s:o, s:I, s:o, s:s, s:I, s:I, s:f, s:o}", "request_id", clean_json(row->request_id),
        "index", (json_int_t)row->index, "model", clean_json(row->model), "state",
        row->ended       ? "ended"
        : row->submitted ? "running"
                         : "waiting",
        "n_prompt_tokens", (json_int_t)row->n_prompt, "n_tokens", (json_int_t)row->n_tokens,
        "age_s", (double)row->age_us / 1e6, "weight_versions", listed_versions_json(row));
}

static json_t *generations_json(struct generations_row *rows, size_t n, size_t n_all)
{
    json_t *list = json_array();

    for (size_t i = 0; i < n && list != NULL; i++) {
        if (json_array_append_new(list, row_json(&rows[i])) == 0)
            continue;
        json_decref(list);
        list = NULL;
    }
    return json_pack("{s:I, s:o}", "n", (json_int_t)n_all, "generations", list);
}

int handle_generations(struct app *app, struct http_request *x, struct err *e)
{
    struct generations_row *rows = calloc(GENERATIONS_LISTED_MAX, sizeof *rows);
    size_t n, n_all;
    json_t *reply;

    if (rows == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the list of generations");
    n_all = generations_list(app->generate->generations, rows, GENERATIONS_LISTED_MAX);
    n = n_all < GENERATIONS_LISTED_MAX ? n_all : GENERATIONS_LISTED_MAX;
    reply = generations_json(rows, n, n_all);
    generations_rows_fini(rows, n);
    free(rows);
    reply_json(x, 200, reply);
    return 0;
}
