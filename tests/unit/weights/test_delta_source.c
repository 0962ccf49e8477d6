/* Updates by deltas: they make what the steps were, what is wrong leaves the served version, and a
 * version that was committed since is no base. */
#include "tests/unit/update_fixture.h"
#include "tests/unit/weights/all_threads.h"
#include "tests/unit/weights/delta_fixture.h"

#include "weights/delta/delta_source.h"

/* ---- a source of parts in memory ---- */

struct parts_source {
    struct source source; /* first */
    struct part_bytes bytes;
    struct fx_pause_controller *door; /* NULL: none */
    unsigned n_failures;              /* of the next fills */
};

static int parts_fill(struct source *s, const struct tensor_list *list, uint32_t first, uint32_t n,
                      void *dst, struct progress *p, struct err *e)
{
    struct parts_source *from = (struct parts_source *)s;
    const struct tensor_spec *t = list->tensors, *last = &t[first + n - 1];
    uint64_t nbytes = last->offset + last->nbytes - t[first].offset;

    if (from->n_failures > 0) {
        from->n_failures--;
        return err_set(e, ERR_UNREADABLE, "", "the parts cannot be read");
    }
    if (from->door != NULL && fx_wait_pause_controller(from->door, p, e) != 0)
        return -1;
    memcpy(dst, from->bytes.data + t[first].offset, nbytes);
    (void)atomic_fetch_add(&p->nbytes_done, nbytes);
    progress_came(p, dst, nbytes);
    return 0;
}

static void parts_close(struct source *s)
{
    free(((struct parts_source *)s)->bytes.data);
    free(s);
}

static const struct source_ops parts_ops = {
    .name = "parts", .fill = parts_fill, .close = parts_close};

/* The change of the model's tensors of `mask` from one step to another, each as another kind. */
static struct delta_link link_of(unsigned mask, unsigned from, unsigned to)
{
    static const enum dtype uints[] = {[1] = DTYPE_U8, [2] = DTYPE_U16, [4] = DTYPE_U32};
    struct parts_source *source = calloc(1, sizeof *source);
    struct model_spec *m = fx_model_spec();
    struct tensor_list_builder *b = NULL;
    struct delta_link link = {0};
    struct err e = {0};

    assert_non_null(source);
    source->source.ops = &parts_ops;
    part_put(&source->bytes, NULL, 0);
    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (uint32_t i = 0; i < FX_N; i++) {
        unsigned char old[FX_NBYTES_MAX], new[FX_NBYTES_MAX];
        uint64_t nbytes = fx_bytes(fx_model[i].name, from, old), n;
        uint32_t unit = (uint32_t)dtype_nbytes(fx_model[i].dtype);
        struct written w;
        char name[64];

        if (!(mask & 1U << i))
            continue;
        (void)fx_bytes(fx_model[i].name, to, new);
        w = write_delta(i % 2 == 0 ? DELTA_GAP : DELTA_INDEX, unit, 4, (char *)old, (char *)new,
                        nbytes);
        n = w.values.nbytes / unit;
        (void)snprintf(name, sizeof name, "%s#%s", fx_model[i].name, i % 2 == 0 ? "gap" : "index");
        assert_int_equal(tensor_list_builder_add(b, name, i % 2 == 0 ? DTYPE_U16 : DTYPE_U32, &n, 1,
                                                 UINT64_MAX, &e),
                         0);
        (void)snprintf(name, sizeof name, "%s#%s", fx_model[i].name, i % 2 == 0 ? "xor" : "value");
        assert_int_equal(tensor_list_builder_add(b, name, uints[unit], &n, 1, UINT64_MAX, &e), 0);
        part_put(&source->bytes, w.positions.data, w.positions.nbytes);
        part_put(&source->bytes, w.values.data, w.values.nbytes);
        written_free(&w);
    }
    assert_int_equal(tensor_list_builder_finish(b, &link.sent.tensor_list, &e), 0);
    assert_int_equal(delta_of_parts(&link.delta, m, link.sent.tensor_list, &e), 0);
    model_spec_free(m);
    link.source = &source->source;
    return link;
}

static struct update_chunk *delta_chunk(struct bench *b, struct delta_link *link, uint64_t serial)
{
    struct delta_source_cfg cfg = {.store = b->store, .base_serial = serial};
    struct update_chunk *c = calloc(1, sizeof *c);
    struct err e = {0};

    assert_non_null(c);
    assert_int_equal(delta_source_new(&c->source, &c->tensor_list, link, &cfg, &e), 0);
    c->sent = delta_source_sent(c->source, &c->sent_at);
    c->partial = true;
    c->base = (struct update_base){.serial = serial, .label = "base", .delta = true};
    c->done = fx_done;
    c->done_arg = &b->answer;
    return c;
}

static enum err_code send_delta(struct bench *b, struct update_chunk *c)
{
    submit(b, c);
    return fx_await(&b->answer);
}

/* Two, one after the other; then some tensors, and the rest keeps its bytes. */
static void test_delta_source_makes_what_the_steps_were(void **state)
{
    const struct version *v;
    struct delta_link link;
    struct bench b;
    struct err e = {0};

    (void)state;
    bench_open(&b);
    assert_int_equal(push(&b, 0, "base"), ERR_NONE);
    for (unsigned step = 0; step < 2; step++) {
        link = link_of(FX_ALL, step, step + 1);
        assert_int_equal(send_delta(&b, delta_chunk(&b, &link, step + 1)), ERR_NONE);
        fx_assert_step(b.store, step + 1);
        assert_true(b.answer.info.base.delta && b.answer.info.partial);
        assert_string_equal(b.answer.info.source, "parts");
        assert_int_equal(b.answer.info.nbytes_done, store_model_spec(b.store)->tensor_list->nbytes);
    }
    link = link_of(1U << 0 | 1U << 5, 2, 3);
    assert_int_equal(send_delta(&b, delta_chunk(&b, &link, 3)), ERR_NONE);
    assert_int_equal(store_pin(b.store, &v, &e), 0);
    for (uint32_t i = 0; i < FX_N; i++)
        assert_true(fx_is_step(v, i, i == 0 || i == 5 ? 3 : 2));
    store_unpin(b.store, v);
    bench_close(&b);
}

static void test_delta_source_refuses_a_part_with_another_checksum(void **state)
{
    struct bench b;
    struct delta_link link;

    (void)state;
    bench_open(&b);
    assert_int_equal(push(&b, 0, "base"), ERR_NONE);
    link = link_of(FX_ALL, 0, 1);
    link.sent.checksums = calloc(link.sent.tensor_list->n_tensors, sizeof *link.sent.checksums);
    link.sent.has_checksum = calloc(link.sent.tensor_list->n_tensors, sizeof(bool));
    assert_non_null(link.sent.checksums);
    assert_non_null(link.sent.has_checksum);
    link.sent.has_checksum[3] = true;
    assert_int_equal(send_delta(&b, delta_chunk(&b, &link, 1)), ERR_CHECKSUM);
    assert_string_equal(b.answer.e.field, "/checksums/3");
    fx_assert_step(b.store, 0);
    bench_close(&b);
}

/* Nothing is made of memory into which they were not read. */
static void test_parts_that_could_not_be_read_are_read_again(void **state)
{
    struct progress progress = {.deadline_us = CLOCK_NEVER};
    unsigned char want[FX_NBYTES_MAX], made[FX_NBYTES_MAX];
    struct delta_link link;
    struct update_chunk *c;
    struct bench b;
    struct err e = {0};

    (void)state;
    bench_open(&b);
    assert_int_equal(push(&b, 0, "base"), ERR_NONE);
    link = link_of(1U << 0, 0, 1);
    ((struct parts_source *)link.source)->n_failures = 2;
    c = delta_chunk(&b, &link, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(c->source->ops->fill(c->source, c->tensor_list, 0, 1, made, &progress, &e),
                         -1);
        assert_int_equal(e.code, ERR_UNREADABLE);
        err_clear(&e);
    }
    assert_int_equal(c->source->ops->fill(c->source, c->tensor_list, 0, 1, made, &progress, &e), 0);
    assert_memory_equal(made, want, fx_bytes(fx_model[0].name, 1, want));
    update_chunk_free(c);
    bench_close(&b);
}

/* Another update is committed while this one waits for the worker: it is refused, and no mixture is
 * served. A session that began before it, likewise. */
static void test_delta_is_refused_once_another_version_is_served(void **state)
{
    struct fx_pause_controller door;
    struct update_base found;
    struct fx_answer other;
    struct delta_link link;
    struct update_chunk *c;
    struct bench b;
    struct err e = {0};

    (void)state;
    bench_open(&b);
    fx_answer_init(&other);
    fx_pause_controller_init(&door);
    assert_int_equal(update_base_find(b.store, "base", NULL, &found, &e), -1);
    assert_int_equal(e.code, ERR_PRECONDITION);
    err_clear(&e);
    assert_int_equal(push(&b, 0, "base"), ERR_NONE);
    assert_int_equal(update_base_find(b.store, "base", NULL, &found, &e), 0);
    assert_int_equal(found.serial, 1);

    link = link_of(FX_ALL, 0, 2);
    ((struct parts_source *)link.source)->door = &door;
    c = delta_chunk(&b, &link, 1);
    c->done_arg = &other;
    submit(&b, c);
    fx_pause_controller_await(&door);
    link = link_of(1U << 0, 0, 1);
    c = delta_chunk(&b, &link, 1);
    submit(&b, c); /* the base is served still */
    fx_pause_controller_open(&door);
    assert_int_equal(fx_await(&other), ERR_NONE);
    assert_int_equal(fx_await(&b.answer), ERR_PRECONDITION);
    assert_string_equal(b.answer.e.field, "/base_version");
    fx_assert_step(b.store, 2);

    link = link_of(1U << 0, 0, 1);
    c = delta_chunk(&b, &link, 1);
    assert_int_equal(refused(&b, c).code, ERR_PRECONDITION);
    assert_int_equal(update_base_find(b.store, "base", NULL, &found, &e), -1);
    assert_non_null(strstr(e.msg, "'base'"));
    fx_assert_step(b.store, 2);
    fx_pause_controller_fini(&door);
    fx_answer_fini(&other);
    bench_close(&b);
}

/* The same for tensors that come as they are: the base is a condition of any update. */
static void test_a_partial_update_is_refused_once_its_base_is_not_served(void **state)
{
    struct fx_pause_controller door;
    struct fx_answer other;
    struct delta_link link;
    struct update_chunk *c;
    struct bench b;

    (void)state;
    bench_open(&b);
    fx_answer_init(&other);
    fx_pause_controller_init(&door);
    assert_int_equal(push(&b, 0, "base"), ERR_NONE);
    link = link_of(FX_ALL, 0, 2);
    ((struct parts_source *)link.source)->door = &door;
    c = delta_chunk(&b, &link, 1);
    c->done_arg = &other;
    submit(&b, c);
    fx_pause_controller_await(&door);
    c = chunk_of(&b, "", fx_tensor_list_of(1U << 0), FX_STEP(1));
    c->partial = true;
    c->base = (struct update_base){.serial = 1, .label = "base"};
    submit(&b, c); /* the base is served still */
    fx_pause_controller_open(&door);
    assert_int_equal(fx_await(&other), ERR_NONE);
    assert_int_equal(fx_await(&b.answer), ERR_PRECONDITION);
    assert_string_equal(b.answer.e.field, "/base_version");
    fx_assert_step(b.store, 2);
    fx_pause_controller_fini(&door);
    fx_answer_fini(&other);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_delta_source_makes_what_the_steps_were),
        cmocka_unit_test(test_delta_source_refuses_a_part_with_another_checksum),
        cmocka_unit_test(test_parts_that_could_not_be_read_are_read_again),
        cmocka_unit_test(test_delta_is_refused_once_another_version_is_served),
        cmocka_unit_test(test_a_partial_update_is_refused_once_its_base_is_not_served),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
