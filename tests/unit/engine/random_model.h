/* Random weights for a config: what the tests of the forward pass compute with. Included after
 * cmocka.h. */
#ifndef BATON_TESTS_RANDOM_MODEL_H
#define BATON_TESTS_RANDOM_MODEL_H

#include "weights/model/model_config.h"
#include "weights/store/store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct weights {
    struct model_spec *model_spec;
    struct view *views;
    float **values; /* [n_tensors]: what the views hold, as float32 */
    struct version version;
};

static uint64_t rng_state;

/* Uniform in [-1, 1). */
static inline double rng(void)
{
    rng_state = rng_state * 6364136223846793005U + 1442695040888963407U;
    return (double)(int64_t)(rng_state >> 11) * 0x1p-52 - 1.0;
}

/* Fan-in scaled, norms around 1: what makes mistakes visible (and not a flat distribution). */
static inline void fill(float *x, const struct tensor_spec *t)
{
    bool norm = strstr(t->name, "norm") != NULL;
    double scale = t->ndim == 2 ? sqrt(3.0 / (double)t->shape[1]) : 0.5;

    if (strstr(t->name, "embed") != NULL)
        scale = 1.5;
    if (strstr(t->name, "lm_head") != NULL)
        scale *= 2.0;
    for (uint64_t i = 0; i < t->numel; i++)
        x[i] = (float)(norm ? 1.0 + 0.5 * rng() : scale * rng());
}

/* Tensors take turns at BF16, F16 and F32. */
static inline struct tensor_list *mixed_tensor_list(const struct tensor_list *p)
{
    static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    struct tensor_list_builder *b;
    struct tensor_list *out;
    struct err e = {0};

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (uint32_t i = 0; i < p->n_tensors; i++)
        assert_int_equal(tensor_list_builder_add(b, p->tensors[i].name, dtypes[i % 3],
                                                 p->tensors[i].shape, p->tensors[i].ndim,
                                                 UINT64_MAX, &e),
                         0);
    assert_int_equal(tensor_list_builder_finish(b, &out, &e), 0);
    return out;
}

/* Weights of the config's model, the same for the same seed. */
static inline struct weights weights_new(const struct model_config *c, uint64_t seed)
{
    struct weights w = {0};
    struct model_spec *uniform;
    struct tensor_list *stored;
    struct err e = {0};

    assert_int_equal(model_spec_of_config(&uniform, c, NULL, &e), 0);
    stored = mixed_tensor_list(uniform->tensor_list);
    assert_int_equal(model_spec_of_config(&w.model_spec, c, stored, &e), 0);
    tensor_list_unref(stored);
    model_spec_free(uniform);
    w.views = calloc(w.model_spec->tensor_list->n_tensors, sizeof *w.views);
    w.values = calloc(w.model_spec->tensor_list->n_tensors, sizeof *w.values);
    assert_true(w.views != NULL && w.values != NULL);
    rng_state = seed;
    for (uint32_t i = 0; i < w.model_spec->tensor_list->n_tensors; i++) {
        const struct tensor_spec *t = &w.model_spec->tensor_list->tensors[i];
        void *data = malloc(t->nbytes);

        w.values[i] = malloc(t->numel * sizeof(float));
        assert_true(data != NULL && w.values[i] != NULL);
        fill(w.values[i], t);
        dtype_convert(data, t->dtype, w.values[i], DTYPE_F32, t->numel);
        dtype_convert(w.values[i], DTYPE_F32, data, t->dtype, t->numel);
        w.views[i].data = data;
    }
    w.version = (struct version){.serial = 1, .views = w.views};
    return w;
}

static inline void weights_free(struct weights *w)
{
    for (uint32_t i = 0; i < w->model_spec->tensor_list->n_tensors; i++) {
        free((void *)(uintptr_t)w->views[i].data);
        free(w->values[i]);
    }
    free(w->values);
    free(w->views);
    model_spec_free(w->model_spec);
}

#endif
