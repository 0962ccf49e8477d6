/* The reply to POST /v1/rollouts.
 *
 * A stream has a frame for each group, as soon as its sequences have ended: 8 bytes of length,
 * little-endian, and a batch of its own. The last frame has no tensors; it says that the stream is
 * complete, or which error ended it. */
#include "handlers/generate/rollouts.h"

#include "control/life.h"
#include "handlers/body.h"
#include "handlers/generate/generation_reply.h"
#include "handlers/reply.h"

#include <endian.h>
#include <stdlib.h>

#define STREAM_TYPE "application/vnd.baton.rollouts"

enum { STREAM_PIECE_NBYTES = 1 << 20 /* of a frame, written at once */ };

/* Appends the rows of the group that begins with this prompt; returns how many. */
static uint32_t put_group(const struct rollouts_op *op, struct batch_row *rows, uint32_t first)
{
    struct batch_group group = batch_group_of(&op->options, first);
    const struct generation *g = &op->g;
    uint32_t n = 0;

    for (uint32_t sample = 0; sample < g->params.n; sample++)
        for (uint32_t p = group.first; p < group.end; p++)
            rows[n++] = (struct batch_row){.prompt = p,
                                           .sample = sample,
                                           .prompt_ids = g->prompts[p].ids,
                                           .n_prompt = g->prompts[p].n,
                                           .out = g->seqs[p * g->params.n + sample].out};
    return n;
}

static json_t *stop_reasons_json(const struct batch_row *rows, uint32_t n)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < n; i++)
        list = json_list_append(list, generation_stop_reason_json(rows[i].out));
    return list;
}

static json_t *route_layers_json(const struct rollouts_op *op)
{
    const struct engine_info *info = &op->g.app->generate->info;
    json_t *list = op->routes.n_experts > 0 ? json_array() : json_null();

    for (uint32_t i = 0; i < info->n_route_layers && op->routes.n_experts > 0; i++)
        list = json_list_append(list, json_integer(info->route_layers[i]));
    return list;
}

/* What every batch of this request says, and the last frame of a stream. */
static json_t *request_json(const struct rollouts_op *op)
{
    const struct generation *g = &op->g;
    uint32_t n_experts = op->routes.n_experts;

    return json_pack("{s:s, s:s, s:o, s:I, s:s, s:I, s:I, s:o, s:o}", "request_id", op->request_id,
                     "model", generation_model(g), "adapter", generation_adapter_json(g), "created",
                     (json_int_t)op->created_s, "boot_id", g->app->life->boot_id, "n_prompts",
                     (json_int_t)g->n_prompts, "n", (json_int_t)g->params.n, "n_experts",
                     n_experts > 0 ? json_integer(n_experts) : json_null(), "route_layers",
                     route_layers_json(op));
}

/* Fills the body with the batch of these rows. */
static int build_rollouts_batch(const struct rollouts_op *op, struct unread_body *out,
                                const struct batch_row *rows, uint32_t n, struct err *e)
{
    struct batch b = {.options = &op->options, .rows = rows, .n_rows = n, .routes = op->routes};
    json_t *stops = stop_reasons_json(rows, n);
    size_t nbytes;
    char *data;

    b.metadata = request_json(op);
    if (b.metadata == NULL || json_object_set_new(b.metadata, "stop_reasons", stops) != 0) {
        json_decref(b.metadata);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for what describes the batch");
    }
    if (batch_build(&data, &nbytes, &b, e) != 0)
        return -1;
    unread_body_fill(out, data, nbytes);
    return 0;
}

/* Counts a batch before it is made. NULL: no room, or no memory. */
static struct unread_body *batch_of(const struct rollouts_op *op, const struct batch_row *rows,
                                    uint32_t n, struct err *e)
{
    struct batch_shape shape = {0};
    struct unread_body *b;
    uint64_t nbytes;

    for (uint32_t i = 0; i < n; i++)
        batch_shape_add(&shape, rows[i].n_prompt, rows[i].out->n_tokens);
    nbytes = batch_nbytes(&shape, &op->options, &op->routes);
    if (unread_body_new(&b, op->g.app->settings.max_unread_nbytes, op->g.n_unread, nbytes, e) != 0)
        return NULL;
    if (build_rollouts_batch(op, b, rows, n, e) == 0)
        return b;
    unread_body_free(b);
    return NULL;
}

/* The rows of the group that begins with `first`, or of all groups, as one batch; NULL: an error.
 */
static struct unread_body *build_rows(const struct rollouts_op *op, uint32_t first, uint32_t end,
                                      struct err *e)
{
    struct batch_row *rows = calloc(op->g.n_seqs, sizeof *rows);
    struct unread_body *b;
    uint32_t n = 0;

    if (rows == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for %u rows", op->g.n_seqs);
        return NULL;
    }
    for (uint32_t p = first; p < end; p = batch_group_of(&op->options, p).end)
        n += put_group(op, rows + n, p);
    b = batch_of(op, rows, n, e);
    free(rows);
    return b;
}

static void reply_batch(struct rollouts_op *op, struct err *e)
{
    struct http_request *x = op->g.x;
    struct unread_body *b = build_rows(op, 0, op->g.n_prompts, e);

    if (b == NULL)
        reply_error(x, e, NULL);
    else
        generation_reply_body(x, b, BODY_TENSORS_TYPE);
}

/* A batch in which every sequence failed is of no use: it is the error of the first one. */
static bool all_failed(const struct generation *g, struct err *why)
{
    for (uint32_t i = 0; i < g->n_seqs; i++)
        if (g->seqs[i].out->finish != GEN_ERROR)
            return false;
    *why = g->seqs[0].out->error;
    return true;
}

static bool group_ended(const struct rollouts_op *op, struct batch_group group)
{
    uint32_t n = op->g.params.n;

    for (uint32_t i = group.first * n; i < group.end * n; i++) {
        const struct gen_token *tokens;
        struct gen_output *out;
        uint32_t n_tokens;

        generation_snapshot(&op->g.seqs[i], &tokens, &n_tokens, &out);
        if (out == NULL)
            return false;
    }
    return true;
}

/* Without it the stream ends: a missing frame must not look like a whole stream. */
static void begin_frame(struct rollouts_op *op, struct batch_group group)
{
    op->frame = build_rows(op, group.first, group.end, &op->frame_error);
    if (op->frame == NULL) {
        generation_cancel(&op->g);
        return;
    }
    op->n_written = 0;
    op->group_sent[group.first] = true;
    op->n_groups_sent++;
}

/* Makes the frame of a group that has ended. Returns false if there is none now. */
static bool next_frame(struct rollouts_op *op)
{
    struct err why = {0};
    uint32_t end;

    if (op->frame_error.code != ERR_NONE || generation_failed(&op->g, &why))
        return false;
    for (uint32_t p = 0; p < op->g.n_prompts; p = end) {
        struct batch_group group = batch_group_of(&op->options, p);

        end = group.end;
        if (op->group_sent[p] || !group_ended(op, group))
            continue;
        begin_frame(op, group);
        return op->frame != NULL;
    }
    return false;
}

static void stream_length(struct generation *g, size_t nbytes)
{
    uint64_t length = htole64(nbytes);

    generation_stream(g, STREAM_TYPE, &length, sizeof length);
}

/* Writes a piece of the frame, or of the next one. Returns false if there is nothing to write. */
static bool send_piece(struct rollouts_op *op)
{
    size_t n;

    if (op->g.stream_broken || (op->frame == NULL && !next_frame(op)))
        return false;
    if (op->n_written == 0)
        stream_length(&op->g, op->frame->nbytes);
    n = op->frame->nbytes - op->n_written;
    n = n < STREAM_PIECE_NBYTES ? n : STREAM_PIECE_NBYTES;
    generation_stream(&op->g, STREAM_TYPE, op->frame->data + op->n_written, n);
    op->n_written += n;
    if (op->n_written < op->frame->nbytes)
        return true;
    unread_body_free(op->frame);
    op->frame = NULL;
    return true;
}

void rollouts_on_ended(struct generation *g)
{
    while (generation_client_keeps_up(g) && send_piece(rollouts_of(g)))
        ;
}

/* The last frame. @why  no error: the stream is complete */
static void send_end(struct rollouts_op *op, const struct err *why)
{
    const struct generation *g = &op->g;
    json_t *metadata = request_json(op), *end;
    char *frame;
    size_t nbytes;
    struct err e = {0};

    end = json_pack("{s:b, s:o, s:I, s:o}", "complete", why->code == ERR_NONE, "error",
                    error_json(why), "n_groups", (json_int_t)op->n_groups_sent, "usage",
                    generation_usage_json(g, generation_n_made(g)));
    if (metadata != NULL && json_object_set_new(metadata, "end", end) != 0) {
        json_decref(metadata);
        metadata = NULL;
    }
    if (batch_build_end(&frame, &nbytes, metadata, &e) != 0) {
        generation_break_stream(&op->g);
        return;
    }
    stream_length(&op->g, nbytes);
    generation_stream(&op->g, STREAM_TYPE, frame, nbytes);
    free(frame);
}

static void finish_rollouts_stream(struct rollouts_op *op)
{
    struct generation *g = &op->g;
    struct http_request *x = g->x;
    struct err why = op->frame_error;
    bool failed = generation_failed(g, &why), gone = why.code == ERR_GONE;

    if (!g->stream_open && failed) {
        reply_error(x, &why, NULL);
        g->x = NULL;
        return;
    }
    if (op->frame != NULL)
        generation_break_stream(g); /* the end must not look like the rest of the frame */
    if (!gone)
        send_end(op, &why);
    g->x = NULL;
    http_request_stream_close(x, !g->stream_broken && !gone);
}

void rollouts_finish(struct generation *g)
{
    struct rollouts_op *op = rollouts_of(g);
    struct http_request *x = g->x;
    struct err why = {0};

    if (op->stream) {
        finish_rollouts_stream(op);
        return;
    }
    if (generation_failed(g, &why) || all_failed(g, &why))
        reply_error(x, &why, NULL);
    else
        reply_batch(op, &why);
    g->x = NULL;
}
