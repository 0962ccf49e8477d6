/* Metrics of admission, the engine and its adapters. */
#include "handlers/status/metrics_text_priv.h"

#include "control/admission.h"
#include "control/engine.h"
#include "control/lora_loads.h"

static void put_lora_loads(struct lora_loads *loads, struct buf *out)
{
    static const char name[] = "baton_lora_loads_total";
    struct lora_stats s;

    lora_stats(loads, &s);
    prom_head(out, name, "counter", "Loads of adapters, by result");
    prom_u64(out, name, LABELS({"result", "loaded"}), s.n_ended[LORA_LOADED]);
    prom_u64(out, name, LABELS({"result", "unchanged"}), s.n_ended[LORA_UNCHANGED]);
    prom_u64(out, name, LABELS({"result", "failed"}), s.n_ended[LORA_FAILED]);
    prom_one(out, "baton_lora_loads_queued", "gauge", "Loads of adapters that wait for a thread",
             s.n_queued);
}

enum { N_QUEUES = 3 };

struct queues {
    struct admission_stats s[N_QUEUES];
    size_t n;
};

static void put_admission_family(struct buf *out, const struct queues *q, const char *name,
                                 const char *type, const char *help, const uint64_t *values)
{
    prom_head(out, name, type, help);
    for (size_t i = 0; i < q->n; i++)
        prom_u64(out, name, LABELS({"queue", q->s[i].name}), values[i]);
}

static void put_admission(const struct app_generate *g, struct buf *out)
{
    static const char waited[] = "baton_admission_wait_seconds_total",
                      longest[] = "baton_admission_wait_seconds_max";
    struct admission *const all[N_QUEUES] = {g->admission, g->text_admission, g->prompt_admission};
    struct queues q = {0};

    while (q.n < N_QUEUES && all[q.n] != NULL) {
        admission_stats(all[q.n], &q.s[q.n]);
        q.n++;
    }
#define FAMILY(name, type, help, field)                                                            \
    put_admission_family(out, &q, "baton_admission_" name, type, help,                             \
                         (const uint64_t[]){q.s[0].field, q.s[1].field, q.s[2].field})
    FAMILY("running", "gauge", "Permits in use", n_running);
    FAMILY("permits", "gauge", "Permits in total", n_permits);
    FAMILY("waiting", "gauge", "Requests in the queue", n_waiting);
    FAMILY("queue_limit", "gauge", "Most requests that the queue holds", n_queue_max);
    FAMILY("granted_total", "counter", "Permits granted", n_granted);
    FAMILY("refused_total", "counter", "Requests refused because the queue was full", n_refused);
    FAMILY("cancelled_total", "counter", "Queued requests whose client disconnected", n_cancelled);
#undef FAMILY
    prom_head(out, waited, "counter", "Time that granted requests have waited");
    for (size_t i = 0; i < q.n; i++)
        prom_seconds(out, waited, LABELS({"queue", q.s[i].name}), q.s[i].wait_us_sum);
    prom_head(out, longest, "gauge", "Longest wait of a granted request");
    for (size_t i = 0; i < q.n; i++)
        prom_seconds(out, longest, LABELS({"queue", q.s[i].name}), q.s[i].wait_us_max);
}

static void put_engine(struct buf *out, const struct engine_stats *s)
{
    prom_one_seconds(out, "baton_engine_heartbeat_age_seconds", "gauge",
                     "Time since the last iteration of the step loop",
                     metrics_text_age_us(s->heartbeat_us));
    prom_one(out, "baton_engine_running", "gauge", "Sequences in the batch", s->n_running);
    prom_one(out, "baton_engine_waiting", "gauge", "Sequences waiting for the batch", s->n_waiting);
    prom_one(out, "baton_engine_prompt_tokens_total", "counter", "Prompt tokens computed",
             s->n_prompt_tokens);
    prom_one(out, "baton_engine_prefix_queried_tokens_total", "counter",
             "Prompt tokens whose KV was looked up among what is there",
             s->n_prefix_queried_tokens);
    prom_one(out, "baton_engine_prefix_found_tokens_total", "counter",
             "Of these, tokens whose KV was there and was not computed", s->n_prefix_found_tokens);
    prom_one(out, "baton_engine_generated_tokens_total", "counter", "Tokens generated",
             s->n_generated_tokens);
    prom_one(out, "baton_engine_recomputed_tokens_total", "counter",
             "Tokens whose KV was made again after a commit", s->n_recomputed_tokens);
    prom_one(out, "baton_engine_steps_total", "counter", "Steps of the batch", s->n_steps);
    prom_one_seconds(out, "baton_engine_step_seconds_max", "gauge", "Longest step since the start",
                     s->step_us_max);
    prom_one(out, "baton_engine_kv_tokens_used", "gauge", "Tokens that the KV cache holds",
             s->kv_tokens_used);
    prom_one(out, "baton_engine_kv_tokens_kept", "gauge",
             "Tokens of ended generations whose KV is kept until its room is needed",
             s->kv_tokens_kept);
    prom_one(out, "baton_engine_kv_tokens_limit", "gauge", "Tokens that the KV cache can hold",
             s->kv_tokens_max);
}

static void put_engine_vllm(const struct app_generate *g, struct buf *out,
                            const struct engine_stats *s)
{
    const struct prom_label labels[] = {
        {"model_name", g->model_name}, {"engine", "0"}, {NULL, NULL}};
    struct admission_stats queue = {0};
    double used = s->kv_tokens_max > 0 ? (double)s->kv_tokens_used / (double)s->kv_tokens_max : 0.0;

    admission_stats(g->admission, &queue);
    prom_head(out, "vllm:num_requests_running", "gauge", "Sequences in the batch");
    prom_u64(out, "vllm:num_requests_running", labels, s->n_running);
    prom_head(out, "vllm:num_requests_waiting", "gauge", "Waiting for admission or for the batch");
    prom_u64(out, "vllm:num_requests_waiting", labels, s->n_waiting + (uint64_t)queue.n_waiting);
    prom_head(out, "vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache in use, 0 to 1");
    prom_f64(out, "vllm:kv_cache_usage_perc", labels, used);
    prom_head(out, "vllm:prompt_tokens_total", "counter", "Prompt tokens processed");
    prom_u64(out, "vllm:prompt_tokens_total", labels,
             s->n_prompt_tokens + s->n_prefix_found_tokens);
    prom_head(out, "vllm:generation_tokens_total", "counter", "Tokens generated");
    prom_u64(out, "vllm:generation_tokens_total", labels, s->n_generated_tokens);
    prom_head(out, "vllm:num_preemptions_total", "counter",
              "Always 0: an admitted request is never preempted");
    prom_u64(out, "vllm:num_preemptions_total", labels, 0);
    prom_head(out, "vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up");
    prom_u64(out, "vllm:prefix_cache_queries_total", labels, s->n_prefix_queried_tokens);
    prom_head(out, "vllm:prefix_cache_hits_total", "counter", "Of these, tokens found");
    prom_u64(out, "vllm:prefix_cache_hits_total", labels, s->n_prefix_found_tokens);
}

void metrics_text_generate(const struct app *app, struct buf *out)
{
    const struct app_generate *g = app->generate;
    struct engine_stats stats = {0};

    put_admission(g, out);
    if (g->engine != NULL) {
        engine_stats_get(g->engine, &stats);
        put_engine(out, &stats);
        if (metrics_text_has_vllm(app))
            put_engine_vllm(g, out, &stats);
    }
    if (g->lora != NULL)
        g->lora->metrics(g, out);
    if (g->loads != NULL)
        put_lora_loads(g->loads, out);
}
