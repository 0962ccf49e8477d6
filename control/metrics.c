/* Counters of requests and generations: relaxed atomics, because each is read alone and only ever
 * grows. Labels are names of operations and fixed words, never from a client, so the number
 * of series is bounded. */
#include "control/metrics.h"

#include "base/prometheus.h"
#include "control/histogram.h"
#include "control/update_metrics.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One counter for each of these, and one for all other statuses. */
static const int statuses[] = {200, 400, 401, 403, 404, 405, 408, 409, 413, 415,
                               417, 421, 422, 499, 500, 502, 503, 504, 507};
enum { N_STATUSES = sizeof statuses / sizeof statuses[0] };
static const char *const finishes[] = {"stop", "length", "abort", "error", "other"};
enum { N_FINISHES = sizeof finishes / sizeof finishes[0] };

struct operation_counters {
    atomic_uint_fast64_t by_status[N_STATUSES + 1];
    atomic_uint_fast64_t nbytes_in, nbytes_out;
    struct histogram duration;
};

struct metrics {
    struct operation_counters
        *operations; /* owned; [n + 1]: the last is for requests without an operation */
    size_t n_operations;
    const char *(*operation)(size_t i);

    atomic_uint_fast64_t finished[N_FINISHES];
    atomic_uint_fast64_t prompt_tokens, tokens;
    struct histogram first_token, generation, each_token; /* each_token: the mean of one sequence */
    struct histogram n_prompt, n_made;                    /* counts of one sequence */
    struct update_metrics updates;
};

int metrics_new(struct metrics **out, size_t n, const char *(*operation)(size_t i), struct err *e)
{
    struct metrics *m = calloc(1, sizeof *m);

    if (m == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the metrics");
    m->n_operations = n;
    m->operation = operation;
    m->operations = calloc(n + 1, sizeof *m->operations);
    if (m->operations == NULL) {
        free(m);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the metrics");
    }
    *out = m;
    return 0;
}

void metrics_free(struct metrics *m)
{
    if (m == NULL)
        return;
    free(m->operations);
    free(m);
}

static void counter_add(atomic_uint_fast64_t *counter, uint64_t n)
{
    (void)atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static uint64_t counter_get(const atomic_uint_fast64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static size_t status_index(int status)
{
    size_t i = 0;

    while (i < N_STATUSES && statuses[i] != status)
        i++;
    return i;
}

void metrics_request(struct metrics *m, size_t operation, int status, uint64_t duration_us,
                     uint64_t nbytes_in, uint64_t nbytes_out)
{
    struct operation_counters *c =
        &m->operations[operation < m->n_operations ? operation : m->n_operations];

    counter_add(&c->by_status[status_index(status)], 1);
    counter_add(&c->nbytes_in, nbytes_in);
    counter_add(&c->nbytes_out, nbytes_out);
    histogram_observe(&c->duration, histogram_times, duration_us);
}

void metrics_generation(struct metrics *m, uint32_t n_prompt, uint32_t n_tokens,
                        uint64_t first_token_us, uint64_t total_us, const char *finish)
{
    size_t i = 0;

    while (i < N_FINISHES - 1 && strcmp(finishes[i], finish) != 0)
        i++;
    counter_add(&m->finished[i], 1);
    counter_add(&m->prompt_tokens, n_prompt);
    counter_add(&m->tokens, n_tokens);
    histogram_observe(&m->n_prompt, histogram_counts, HISTOGRAM_COUNT(n_prompt));
    histogram_observe(&m->n_made, histogram_counts, HISTOGRAM_COUNT(n_tokens));
    if (n_tokens > 0)
        histogram_observe(&m->first_token, histogram_times, first_token_us);
    if (n_tokens > 1 && total_us > first_token_us)
        histogram_observe(&m->each_token, histogram_times,
                          (total_us - first_token_us) / (n_tokens - 1));
    histogram_observe(&m->generation, histogram_times, total_us);
}

void metrics_token_age(struct metrics *m, uint64_t serial)
{
    update_metrics_token_age(&m->updates, serial);
}

void metrics_update(struct metrics *m, const struct update_record *u)
{
    update_metrics_count(&m->updates, u);
}

static uint64_t requests_of(const struct operation_counters *c)
{
    uint64_t n = 0;

    for (size_t s = 0; s <= N_STATUSES; s++)
        n += counter_get(&c->by_status[s]);
    return n;
}

static const char *operation_of(const struct metrics *m, size_t i)
{
    return i < m->n_operations ? m->operation(i) : "none";
}

static void put_statuses(const struct metrics *m, struct buf *out)
{
    static const char name[] = "baton_http_requests_total";
    char code[16];

    prom_head(out, name, "counter",
              "Requests ended, by operation and status (499: client disconnected)");
    for (size_t i = 0; i <= m->n_operations; i++) {
        for (size_t s = 0; s <= N_STATUSES; s++) {
            uint64_t n = counter_get(&m->operations[i].by_status[s]);

            if (n == 0)
                continue;
            if (s < N_STATUSES)
                (void)snprintf(code, sizeof code, "%d", statuses[s]);
            prom_u64(out, name,
                     (struct prom_label[]){{"operation", operation_of(m, i)},
                                           {"code", s < N_STATUSES ? code : "other"},
                                           {NULL, NULL}},
                     n);
        }
    }
}

static void put_nbytes(const struct metrics *m, struct buf *out, bool in)
{
    const char *name = in ? "baton_http_request_bytes_total" : "baton_http_response_bytes_total";

    prom_head(out, name, "counter", in ? "Bytes of request bodies" : "Bytes of reply bodies");
    for (size_t i = 0; i <= m->n_operations; i++) {
        if (requests_of(&m->operations[i]) > 0)
            prom_u64(out, name,
                     (struct prom_label[]){{"operation", operation_of(m, i)}, {NULL, NULL}},
                     counter_get(in ? &m->operations[i].nbytes_in : &m->operations[i].nbytes_out));
    }
}

static void put_requests(const struct metrics *m, struct buf *out)
{
    static const char name[] = "baton_http_request_duration_seconds";

    put_statuses(m, out);
    put_nbytes(m, out, true);
    put_nbytes(m, out, false);
    prom_head(out, name, "histogram", "From the first header to the end of the reply");
    for (size_t i = 0; i <= m->n_operations; i++) {
        if (requests_of(&m->operations[i]) > 0)
            histogram_put(out, name,
                          (struct prom_label[]){{"operation", operation_of(m, i)}, {NULL, NULL}},
                          histogram_times, &m->operations[i].duration);
    }
}

static void put_generations(const struct metrics *m, struct buf *out)
{
    static const char total[] = "baton_generations_total", took[] = "baton_generation_seconds",
                      first[] = "baton_generation_first_token_seconds";

    prom_head(out, total, "counter", "Sequences ended, by how they ended");
    for (size_t i = 0; i < N_FINISHES; i++)
        prom_u64(out, total, (struct prom_label[]){{"finish", finishes[i]}, {NULL, NULL}},
                 counter_get(&m->finished[i]));
    prom_one(out, "baton_generation_prompt_tokens_total", "counter",
             "Prompt tokens of ended sequences", counter_get(&m->prompt_tokens));
    prom_one(out, "baton_generation_tokens_total", "counter", "Tokens generated by ended sequences",
             counter_get(&m->tokens));
    prom_head(out, first, "histogram", "From submission to the first token");
    histogram_put(out, first, NULL, histogram_times, &m->first_token);
    prom_head(out, took, "histogram", "From submission to the last token");
    histogram_put(out, took, NULL, histogram_times, &m->generation);
}

void metrics_put_vllm(const struct metrics *m, const char *model, struct buf *out)
{
    static const char first[] = "vllm:time_to_first_token_seconds",
                      took[] = "vllm:e2e_request_latency_seconds",
                      each[] = "vllm:request_time_per_output_token_seconds",
                      n_prompt[] = "vllm:request_prompt_tokens",
                      n_made[] = "vllm:request_generation_tokens",
                      ended[] = "vllm:request_success_total";
    const struct prom_label labels[] = {{"model_name", model}, {"engine", "0"}, {NULL, NULL}};

    prom_head(out, first, "histogram", "Time to first token");
    histogram_put(out, first, labels, histogram_times, &m->first_token);
    prom_head(out, took, "histogram", "End-to-end latency of a sequence");
    histogram_put(out, took, labels, histogram_times, &m->generation);
    prom_head(out, each, "histogram", "Mean time of a sequence's tokens after its first");
    histogram_put(out, each, labels, histogram_times, &m->each_token);
    prom_head(out, n_prompt, "histogram", "Prompt tokens of a sequence");
    histogram_put(out, n_prompt, labels, histogram_counts, &m->n_prompt);
    prom_head(out, n_made, "histogram", "Tokens generated by a sequence");
    histogram_put(out, n_made, labels, histogram_counts, &m->n_made);
    prom_head(out, ended, "counter", "Sequences ended, by reason");
    for (size_t i = 0; i < N_FINISHES - 1; i++)
        prom_u64(out, ended,
                 (struct prom_label[]){{"model_name", model},
                                       {"engine", "0"},
                                       {"finished_reason", finishes[i]},
                                       {NULL, NULL}},
                 counter_get(&m->finished[i]));
}

void metrics_put(const struct metrics *m, struct buf *out)
{
    put_requests(m, out);
    update_metrics_put(&m->updates, out);
    put_generations(m, out);
}
