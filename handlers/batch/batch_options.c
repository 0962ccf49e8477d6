/* The members of a request that say how its batch is laid out. */
#include "handlers/batch/batch.h"
#include "handlers/body.h"
#include "handlers/rows/generate_request.h"
#include "handlers/rows/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIELD_MAX = 32 };

static int parse_step(struct batch_step *out, const json_t *item, const char *at, struct err *e)
{
    struct step_request r;

    if (!json_is_object(item))
        return err_set(e, ERR_BAD_REQUEST, at,
                       "%s; an object with 'trajectory_id' and 'step' is expected",
                       body_type_name(item));
    if (member_read_only(&r, step_rows, item, at, e) != 0)
        return -1;
    out->step = r.step;
    (void)snprintf(out->id, sizeof out->id, "%s", r.trajectory_id);
    return 0;
}

/* Compares step i with those before it. */
static int check_order(struct batch_step *steps, uint32_t i, const char *at, struct err *e)
{
    struct batch_step *s = &steps[i];

    if (i > 0 && strcmp(steps[i - 1].id, s->id) == 0) {
        s->trajectory = steps[i - 1].trajectory;
        if (s->step == steps[i - 1].step + 1)
            return 0;
        return err_set(e, ERR_BAD_REQUEST, at,
                       "step %u of trajectory '%.100s' follows its step %u; steps of a trajectory "
                       "ascend by 1: send them in order, and none left out",
                       s->step, s->id, steps[i - 1].step);
    }
    for (uint32_t k = 0; k < i; k++)
        if (strcmp(steps[k].id, s->id) == 0)
            return err_set(e, ERR_BAD_REQUEST, at,
                           "trajectory '%.100s' goes on here, but its step at /steps/%u is "
                           "followed by another trajectory: the steps of one must be adjacent",
                           s->id, k);
    s->trajectory = i > 0 ? steps[i - 1].trajectory + 1 : 0;
    return 0;
}

static int parse_steps(struct batch_options *o, const json_t *body, struct err *e)
{
    const json_t *list = NULL;
    char at[FIELD_MAX];

    if (body_array(&list, body, "", "steps", e) != 0)
        return -1;
    if (list == NULL)
        return 0;
    if (json_array_size(list) != o->n_prompts)
        return err_set(e, ERR_BAD_REQUEST, "/steps",
                       "%zu steps for %u prompts; there is one for each prompt",
                       json_array_size(list), o->n_prompts);
    o->steps = calloc(o->n_prompts, sizeof *o->steps);
    if (o->steps == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u steps", o->n_prompts);
    for (uint32_t i = 0; i < o->n_prompts; i++) {
        (void)snprintf(at, sizeof at, "/steps/%u", i);
        if (parse_step(&o->steps[i], json_array_get(list, i), at, e) != 0 ||
            check_order(o->steps, i, at, e) != 0)
            return -1;
    }
    return 0;
}

int batch_options_parse(struct batch_options *out, const json_t *body, uint32_t n_prompts,
                        uint32_t vocab_size, struct err *e)
{
    *out = (struct batch_options){.n_prompts = n_prompts};
    if (member_read(out, batch_rows, body, "", e) != 0 ||
        body_u32(&out->pad_token_id, body, "", "pad_token_id", 0, vocab_size - 1, e) != 0)
        return -1;
    return parse_steps(out, body, e);
}

void batch_options_fini(struct batch_options *o)
{
    free(o->steps);
    *o = (struct batch_options){0};
}

struct batch_group batch_group_of(const struct batch_options *o, uint32_t i)
{
    struct batch_group g = {i, i + 1};

    if (o->steps == NULL)
        return g;
    while (g.first > 0 && o->steps[g.first - 1].trajectory == o->steps[i].trajectory)
        g.first--;
    while (g.end < o->n_prompts && o->steps[g.end].trajectory == o->steps[i].trajectory)
        g.end++;
    return g;
}
