/* What describes a batch: its versions, and the members of "baton.rollouts". */
#include "handlers/batch/batch_priv.h"
#include "handlers/reply.h"
#include "handlers/rows/rows.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static bool same_version(const struct gen_span *x, const struct gen_span *y)
{
    return x->serial == y->serial && strcmp(x->label, y->label) == 0;
}

/* The index of the span's version; v->n if it is not there. The newest ones are the likeliest. */
static uint32_t find(const struct batch_versions *v, const struct gen_span *span)
{
    for (uint32_t i = v->n; i-- > 0;)
        if (same_version(v->spans[i], span))
            return i;
    return v->n;
}

int batch_versions_collect(struct batch_versions *v, const struct batch *b)
{
    size_t n_spans = 1; /* malloc(0) may return NULL */

    for (uint32_t i = 0; i < b->n_rows; i++)
        n_spans += b->rows[i].out->n_spans;
    v->spans = malloc(n_spans * sizeof *v->spans);
    if (v->spans == NULL)
        return -1;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        const struct gen_output *out = b->rows[i].out;

        for (uint32_t k = 0; k < out->n_spans; k++)
            if (find(v, &out->spans[k]) == v->n)
                v->spans[v->n++] = &out->spans[k];
    }
    return 0;
}

void batch_versions_fini(struct batch_versions *v)
{
    free(v->spans);
}

uint32_t batch_versions_index(const struct batch_versions *v, const struct gen_span *span)
{
    uint32_t index = find(v, span);

    assert(index < v->n);
    return index;
}

static json_t *batch_versions_json(const struct batch_versions *v)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < v->n; i++)
        list = json_list_append(list, json_pack("{s:s, s:I}", "version", v->spans[i]->label,
                                                "serial", (json_int_t)v->spans[i]->serial));
    return list;
}

/* Ours, and "repetition" of vLLM, which clients find in replies of vLLM: one index for each name,
 * whichever engine made the batch. */
static json_t *finish_reasons_json(void)
{
    json_t *list = json_array();

    for (int f = 0; f <= GEN_ERROR; f++)
        list = json_list_append(list, f == GEN_RUNNING
                                          ? json_null()
                                          : json_string(gen_finish_name((enum gen_finish)f)));
    return json_list_append(list, json_string("repetition"));
}

/* For each row why it failed, or null. */
static json_t *row_errors_json(const struct batch *b)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < b->n_rows; i++) {
        const struct gen_output *out = b->rows[i].out;

        list = json_list_append(list,
                                out->finish == GEN_ERROR ? error_json(&out->error) : json_null());
    }
    return list;
}

static json_t *trajectory_ids_json(const struct batch *b)
{
    const struct batch_step *steps = b->options->steps;
    json_t *list = steps != NULL ? json_array() : json_null();

    for (uint32_t i = 0; i < b->n_rows && steps != NULL; i++)
        list = json_list_append(list, json_string(steps[b->rows[i].prompt].id));
    return list;
}

static json_t *row_shape_json(const struct batch *b, const struct batch_widths *w)
{
    const struct batch_options *o = b->options;

    return json_pack("{s:i, s:s, s:I, s:I, s:I, s:I, s:I}", "format", BATCH_FORMAT, "layout",
                     member_find(batch_rows, "layout", 0)->words[o->layout], "sequence_multiple",
                     (json_int_t)o->sequence_multiple, "pad_token_id", (json_int_t)o->pad_token_id,
                     "n_rows", (json_int_t)b->n_rows, "width", (json_int_t)w->total,
                     "response_width", (json_int_t)w->response);
}

json_t *batch_metadata_text(json_t *members)
{
    json_t *metadata = NULL;
    struct buf text = {0};

    reply_append_json(&text, members);
    if (!text.failed) /* torch's and transformers' readers ask for the format */
        metadata = json_pack("{s:s, s:s%}", "format", "pt", "baton.rollouts", text.data, text.len);
    buf_fini(&text);
    json_decref(members);
    return metadata;
}

json_t *batch_metadata(const struct batch *b, const struct batch_widths *w,
                       const struct batch_versions *v)
{
    json_t *shape = row_shape_json(b, w);
    bool ok = b->metadata != NULL && shape != NULL && json_object_update(b->metadata, shape) == 0 &&
              json_object_set_new(b->metadata, "versions", batch_versions_json(v)) == 0 &&
              json_object_set_new(b->metadata, "finish_reasons", finish_reasons_json()) == 0 &&
              json_object_set_new(b->metadata, "errors", row_errors_json(b)) == 0 &&
              json_object_set_new(b->metadata, "trajectory_ids", trajectory_ids_json(b)) == 0;

    json_decref(shape);
    if (ok)
        return batch_metadata_text(b->metadata);
    json_decref(b->metadata);
    return NULL;
}
