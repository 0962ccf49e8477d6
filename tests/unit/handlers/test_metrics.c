/* The metrics: what was counted is what is told, and every line is Prometheus text.
 *
 * The other rooms are stood in for here, function by function, so that each value is known. */
#include "control/metrics.h"
#include "handlers/status/metrics_text.h"

#include "base/clock.h"
#include "base/jobs/workers.h"
#include "base/prometheus.h"
#include "control/admission.h"
#include "control/engine.h"
#include "control/life.h"
#include "control/pause_controller.h"
#include "handlers/app.h"
#include "handlers/route.h"
#include "transport/peer/seeder.h"
#include "weights/state/state_dir.h"
#include "weights/store/store.h"
#include "weights/update/update.h"

#include <ctype.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HEALTH, UPDATE, GENERATE, N_OPERATIONS };

static const char *operation_name(size_t i)
{
    static const char *const names[N_OPERATIONS] = {
        [HEALTH] = "health", [UPDATE] = "update", [GENERATE] = "generate"};

    return names[i];
}

bool app_live(const struct app *app, struct err *why)
{
    (void)app;
    (void)why;
    return true;
}

bool app_control_ready(const struct app *app, struct err *why)
{
    (void)app;
    (void)why;
    return true;
}

bool app_ready(const struct app *app, struct err *why)
{
    (void)app;
    (void)err_set(why, ERR_UNSYNCED, "", "not yet");
    return false;
}

void __wrap_store_info(struct store *s, struct store_info *out);
void __wrap_store_info(struct store *s, struct store_info *out)
{
    (void)s;
    *out = (struct store_info){.state = STORE_READY,
                               .serial = 7,
                               .nbytes = 4096,
                               .n_live = 2,
                               .committed_at_us = clock_now_us(),
                               .n_commits = 6};
}

void state_dir_info(struct state_dir *d, struct state_info *out)
{
    (void)d;
    *out = (struct state_info){.serial = 7,
                               .n_journal_failures = 3,
                               .n_snapshots = 2,
                               .snapshot_serial = 6,
                               .n_written = 5,
                               .n_failed = 1,
                               .n_given_up = 4};
}

void pause_controller_info(struct pause_controller *g, struct pause_controller_info *out)
{
    (void)g;
    *out = (struct pause_controller_info){.pause = {.state = PAUSE_HELD,
                                                    .mode = PAUSE_KEEP,
                                                    .lease = {.length_s = 2, .end_us = 1},
                                                    .n_pauses = 7,
                                                    .n_expired = 1,
                                                    .paused_us = 2500000,
                                                    .n_ended = {[9] = 1, [10] = 2},
                                                    .ended_us = 2400000}};
}

int pause_controller_allows(struct pause_controller *g, enum lifecycle_call call, struct err *e)
{
    (void)g;
    (void)call;
    (void)e;
    fail_msg("nothing is changed here");
    return -1;
}

void pause_controller_state(struct pause_controller *g, struct lifecycle_state *out)
{
    (void)g;
    *out = (struct lifecycle_state){.kv_released = true};
}

void updates_current(struct updates *u, struct update_info *out)
{
    (void)u;
    *out = (struct update_info){.phase = UPDATE_RECEIVING,
                                .nbytes_done = 100,
                                .nbytes_total = 400,
                                .lease_left_us = 1500000};
}

void updates_stats(struct updates *u, struct updates_stats *out)
{
    (void)u;
    *out = (struct updates_stats){.n_started = 9,
                                  .n_committed = 6,
                                  .n_aborted = 2,
                                  .nbytes_received = UINT64_C(1) << 40,
                                  .receive_us = 2500000,
                                  .verify_us = 1,
                                  .commit_us = 3000000};
}

void seeder_info(struct seeder *s, struct seeder_info *out)
{
    (void)s;
    *out = (struct seeder_info){
        .state = SEED_SEEDING, .n_versions = 2, .n_failures = 3, .nbytes_read = 4096};
}

bool seeder_is_seeding(struct seeder *s)
{
    (void)s;
    return false;
}

const char *seeder_state_name(enum seeder_state state)
{
    return state == SEED_SEEDING ? "seeding" : "none";
}

const char *update_phase_name(enum update_phase phase)
{
    static const char *const names[] = {"none",     "open",      "receiving", "verifying",
                                        "verified", "committed", "aborted"};

    return names[phase];
}

void __wrap_admission_stats(struct admission *a, struct admission_stats *out);
void __wrap_admission_stats(struct admission *a, struct admission_stats *out)
{
    bool first = a == (struct admission *)(uintptr_t)16;

    *out = (struct admission_stats){.name = first ? "generate" : "detokenize",
                                    .n_permits = 512,
                                    .n_running = first ? 3 : 1,
                                    .n_waiting = first ? 4 : 0,
                                    .n_granted = 11,
                                    .wait_us_sum = 1250000};
}

struct tls_identity *__wrap_http_server_tls_identity(struct http_server *f);
struct tls_identity *__wrap_http_server_tls_identity(struct http_server *f)
{
    assert_int_equal((uintptr_t)f, 16);
    return (struct tls_identity *)(uintptr_t)17;
}

int64_t __wrap_tls_identity_expires_s(const struct tls_identity *t);
int64_t __wrap_tls_identity_expires_s(const struct tls_identity *t)
{
    assert_int_equal((uintptr_t)t, 17);
    return 1893456000;
}

void __wrap_tls_identity_unref(struct tls_identity *t);
void __wrap_tls_identity_unref(struct tls_identity *t)
{
    assert_int_equal((uintptr_t)t, 17);
}

void __wrap_http_server_stats(struct http_server *f, struct http_server_stats *out);
void __wrap_http_server_stats(struct http_server *f, struct http_server_stats *out)
{
    (void)f;
    *out = (struct http_server_stats){.n_connections = 5, .n_requests = 50, .lag_us_max = 1200};
}

static int fake_engine_stats(struct engine *en, uint64_t deadline_us, struct engine_stats *out,
                             struct err *e)
{
    (void)deadline_us;
    (void)e;
    (void)en;
    *out = (struct engine_stats){.heartbeat_us = clock_now_us(),
                                 .n_running = 2,
                                 .n_waiting = 1,
                                 .n_prompt_tokens = 1000,
                                 .n_generated_tokens = 2000,
                                 .n_steps = 300,
                                 .kv_tokens_used = 1,
                                 .kv_tokens_max = 4,
                                 .step_us_max = 20000};
    return 0;
}

static const struct engine_ops ops = {.name = "fake", .stats = fake_engine_stats};
static struct engine engine = {.ops = &ops};
static struct life life;

static struct app_weights weights = {.store = (struct store *)(uintptr_t)16,
                                     .updates = (struct updates *)(uintptr_t)16,
                                     .state = (struct state_dir *)(uintptr_t)16,
                                     .seeder = (struct seeder *)(uintptr_t)16};
static struct app_generate generate = {.engine = &engine,
                                       .admission = (struct admission *)(uintptr_t)16,
                                       .text_admission = (struct admission *)(uintptr_t)32,
                                       .model_name = "a \"model\"\\of\nmine \xff\xc3\xa9"};

static struct app whole_app(void)
{
    return (struct app){.life = &life,
                        .pause_controller = (struct pause_controller *)(uintptr_t)16,
                        .weights = &weights,
                        .generate = &generate,
                        .http_server = (struct http_server *)(uintptr_t)16,
                        .settings = {.dialects = 1U << DIALECT_VLLM}};
}

/* --- a small parser of the text format --- */

enum { FAMILIES_MAX = 256, SERIES_MAX = 2048, TEXT_MAX = 200 };

struct checker {
    char families[FAMILIES_MAX][TEXT_MAX];
    size_t n_families;
    char series[SERIES_MAX][TEXT_MAX * 2];
    size_t n_series;
    char family[TEXT_MAX], type[16];
    bool helped;        /* a HELP line came, its TYPE has to follow */
    double last_bucket; /* of the series of buckets being read; -1 outside */
    bool last_was_inf;
};

static const char *check_name(const char *p, bool colon)
{
    assert_true(isalpha((unsigned char)*p) || *p == '_');
    while (isalnum((unsigned char)*p) || *p == '_' || (colon && *p == ':'))
        p++;
    return p;
}

static const char *check_labels(const char *p)
{
    assert_int_equal(*p, '{');
    do {
        p = check_name(p + 1, false);
        assert_memory_equal(p, "=\"", 2);
        for (p += 2; *p != '"'; p++) {
            assert_true(*p != '\0');
            if (*p == '\\')
                assert_non_null(strchr("\\\"n", *++p));
        }
        p++;
    } while (*p == ',');
    assert_int_equal(*p, '}');
    return p + 1;
}

static void check_comment(struct checker *c, const char *line)
{
    char kind[8], name[TEXT_MAX], rest[TEXT_MAX];

    assert_int_equal(sscanf(line, "# %7s %199s %199[^\n]", kind, name, rest), 3);
    if (strcmp(kind, "HELP") == 0) {
        assert_false(c->helped);
        for (size_t i = 0; i < c->n_families; i++)
            assert_string_not_equal(c->families[i], name); /* a family comes once */
        assert_true(c->n_families < FAMILIES_MAX);
        strcpy(c->families[c->n_families++], name);
        strcpy(c->family, name);
        c->helped = true;
        return;
    }
    assert_string_equal(kind, "TYPE");
    assert_true(c->helped);
    assert_string_equal(name, c->family);
    assert_true(strcmp(rest, "counter") == 0 || strcmp(rest, "gauge") == 0 ||
                strcmp(rest, "histogram") == 0);
    assert_true((strcmp(rest, "counter") == 0) ==
                (strlen(name) > 6 && strcmp(name + strlen(name) - 6, "_total") == 0));
    strcpy(c->type, rest);
    c->helped = false;
}

static void check_bucket(struct checker *c, const char *suffix, const char *line, double value)
{
    if (strcmp(suffix, "_bucket") == 0) {
        assert_true(c->last_bucket <= value);
        c->last_bucket = value;
        c->last_was_inf = strstr(line, "le=\"+Inf\"") != NULL;
        return;
    }
    assert_true(c->last_was_inf); /* +Inf is the last bucket, _sum and _count come after it */
    if (strcmp(suffix, "_count") == 0) {
        assert_true(value >= c->last_bucket && value <= c->last_bucket);
        c->last_bucket = -1;
    } else {
        assert_string_equal(suffix, "_sum");
    }
}

static void check_sample(struct checker *c, const char *line)
{
    const char *end = check_name(line, true), *labels_end = end;
    size_t family_len = strlen(c->family);
    char suffix[TEXT_MAX], *rest;
    double value;

    assert_false(c->helped);
    assert_memory_equal(line, c->family, family_len);
    (void)snprintf(suffix, sizeof suffix, "%.*s", (int)((size_t)(end - line) - family_len),
                   line + family_len);
    if (*end == '{')
        labels_end = check_labels(end);
    assert_int_equal(*labels_end, ' ');
    value = strtod(labels_end + 1, &rest);
    assert_true(rest > labels_end + 1 && *rest == '\0');
    if (strcmp(c->type, "histogram") == 0)
        check_bucket(c, suffix, line, value);
    else
        assert_string_equal(suffix, "");
    assert_true(c->n_series < SERIES_MAX);
    (void)snprintf(c->series[c->n_series], sizeof c->series[0], "%.*s", (int)(labels_end - line),
                   line);
    for (size_t i = 0; i < c->n_series; i++)
        assert_string_not_equal(c->series[i], c->series[c->n_series]); /* a series comes once */
    c->n_series++;
}

static size_t check_text(const char *text)
{
    struct checker *c = calloc(1, sizeof *c);
    size_t n;

    assert_non_null(c);
    c->last_bucket = -1;
    while (*text != '\0') {
        size_t len = strcspn(text, "\n");
        char *line = strndup(text, len);

        assert_non_null(line);
        assert_int_equal(text[len], '\n'); /* the last line has its end, too */
        if (line[0] == '#')
            check_comment(c, line);
        else
            check_sample(c, line);
        free(line);
        text += len + 1;
    }
    n = c->n_series;
    free(c);
    return n;
}

static void assert_line(const char *text, const char *line)
{
    char want[512];

    (void)snprintf(want, sizeof want, "\n%s\n", line);
    if (strstr(text, want) == NULL)
        fail_msg("no line: %s", line);
}

static char *text_of(struct metrics *m, struct app *app)
{
    struct buf out = {0};
    size_t len;

    metrics_text(m, app, &out);
    assert_false(out.failed);
    return buf_take(&out, &len);
}

static struct metrics *metrics_made(void)
{
    struct metrics *m;
    struct err e = {0};

    assert_int_equal(metrics_new(&m, N_OPERATIONS, operation_name, &e), 0);
    return m;
}

static void test_metrics_text_is_well_formed(void **state)
{
    struct metrics *m = metrics_made();
    struct app app = whole_app(), bare = {0};
    char *text;

    (void)state;
    metrics_request(m, UPDATE, 200, 1000, 10, 20);
    metrics_request(m, N_OPERATIONS, 404, 1, 0, 5);
    metrics_generation(m, 5, 7, 1000, 2000, "stop");
    text = text_of(m, &app);
    assert_true(check_text(text) > 100);
    free(text);
    text = text_of(m, &bare); /* every part missing */
    assert_true(check_text(text) > 20);
    assert_null(strstr(text, "vllm:"));
    assert_null(strstr(text, "baton_engine"));
    free(text);
    metrics_free(m);
    metrics_free(NULL);
}

static void test_metrics_request_counts(void **state)
{
    struct metrics *m = metrics_made();
    struct app app = {0};
    char *text;

    (void)state;
    metrics_request(m, UPDATE, 200, 1000, 10, 20); /* le 0.001 takes its bound */
    metrics_request(m, UPDATE, 200, 1001, 10, 20);
    metrics_request(m, UPDATE, 422, 700000000, 1, 2); /* beyond every bound */
    metrics_request(m, GENERATE, 299, 5, 0, 0);
    metrics_request(m, N_OPERATIONS, 404, 1, 0, 5);
    metrics_request(m, SIZE_MAX, 404, 1, 0, 5);
    text = text_of(m, &app);
    (void)check_text(text);
    assert_null(
        strstr(text, "baton_http_requests_total{operation=\"health\"")); /* not called yet */
    assert_line(text, "baton_http_requests_total{operation=\"update\",code=\"200\"} 2");
    assert_line(text, "baton_http_requests_total{operation=\"update\",code=\"422\"} 1");
    assert_line(text, "baton_http_requests_total{operation=\"generate\",code=\"other\"} 1");
    assert_line(text, "baton_http_requests_total{operation=\"none\",code=\"404\"} 2");
    assert_line(text, "baton_http_request_bytes_total{operation=\"update\"} 21");
    assert_line(text, "baton_http_response_bytes_total{operation=\"update\"} 42");
    assert_line(text,
                "baton_http_request_duration_seconds_bucket{operation=\"update\",le=\"0.001\"} 1");
    assert_line(text,
                "baton_http_request_duration_seconds_bucket{operation=\"update\",le=\"0.0025\"} 2");
    assert_line(text,
                "baton_http_request_duration_seconds_bucket{operation=\"update\",le=\"600\"} 2");
    assert_line(text,
                "baton_http_request_duration_seconds_bucket{operation=\"update\",le=\"+Inf\"} 3");
    assert_line(text, "baton_http_request_duration_seconds_sum{operation=\"update\"} 700.002001");
    assert_line(text, "baton_http_request_duration_seconds_count{operation=\"update\"} 3");
    free(text);
    metrics_free(m);
}

static void test_metrics_generation_counts(void **state)
{
    struct metrics *m = metrics_made();
    struct app app = whole_app();
    char *text;

    (void)state;
    metrics_generation(m, 5, 7, 3000, 40000, "stop");
    metrics_generation(m, 5, 3, 2000, 4000, "length");
    metrics_generation(m, 1, 0, 0, 100, "abort"); /* no first token to time */
    metrics_generation(m, 1, 0, 0, 100, "surprise");
    text = text_of(m, &app);
    (void)check_text(text);
    assert_line(text, "baton_generations_total{finish=\"stop\"} 1");
    assert_line(text, "baton_generations_total{finish=\"abort\"} 1");
    assert_line(text, "baton_generations_total{finish=\"other\"} 1");
    assert_line(text, "baton_generation_prompt_tokens_total 12");
    assert_line(text, "baton_generation_tokens_total 10");
    assert_line(text, "baton_generation_first_token_seconds_count 2");
    assert_line(text, "baton_generation_first_token_seconds_sum 0.005");
    assert_line(text, "baton_generation_seconds_count 4");
    free(text);
    metrics_free(m);
}

static void test_metrics_text_tells_every_room(void **state)
{
    static const char *const lines[] = {
        "baton_life_state{state=\"serving\"} 1",
        "baton_life_state{state=\"draining\"} 0",
        "baton_pause{mode=\"none\"} 0",
        "baton_pause{mode=\"keep\"} 1",
        "baton_pauses_total 7",
        "baton_pauses_expired_total 1",
        "baton_paused_seconds_total 2.5",
        "baton_pause_duration_seconds_bucket{le=\"1\"} 1",
        "baton_pause_duration_seconds_bucket{le=\"2.5\"} 3",
        "baton_pause_duration_seconds_sum 2.4",
        "baton_pause_duration_seconds_count 3",
        "baton_pause_lease_left_seconds 0",
        "baton_kv_cache_released 1",
        "baton_live 1",
        "baton_ready 0",
        "baton_control_ready 1",
        "baton_tls_certificate_expiry_timestamp_seconds 1893456000",
        "baton_weights_serial 7",
        "baton_weights_state{state=\"ready\"} 1",
        "baton_weights_state{state=\"unsynced\"} 0",
        "baton_weights_bytes 4096",
        "baton_weights_versions_alive 2",
        "baton_weights_commits_total 6",
        "baton_journal_serial 7",
        "baton_journal_failures_total 3",
        "baton_snapshot_serial 6",
        "baton_snapshots_written_total 5",
        "baton_snapshots_given_up_total 4",
        "baton_snapshot_failures_total 1",
        "baton_update_phase{phase=\"receiving\"} 1",
        "baton_update_phase{phase=\"none\"} 0",
        "baton_update_received_bytes 100",
        "baton_update_expected_bytes 400",
        "baton_update_lease_seconds 1.5",
        "baton_updates_started_total 9",
        "baton_updates_received_bytes_total 1099511627776",
        "baton_update_seconds_total{phase=\"receive\"} 2.5",
        "baton_update_seconds_total{phase=\"verify\"} 0.000001",
        "baton_update_seconds_total{phase=\"commit\"} 3",
        "baton_admission_running{queue=\"generate\"} 3",
        "baton_admission_running{queue=\"detokenize\"} 1",
        "baton_admission_wait_seconds_total{queue=\"generate\"} 1.25",
        "baton_engine_steps_total 300",
        "baton_engine_step_seconds_max 0.02",
        "baton_engine_kv_tokens_limit 4",
        "baton_front_connections 5",
        "baton_front_lag_seconds_max 0.0012",
        "baton_pool_queued{pool=\"control\"} 0",
        "baton_log_dropped_total 0",
    };
    static const struct workers_cfg cfg = {.name = "control", .n_threads = 1, .n_queue_max = 1};
    struct metrics *m = metrics_made();
    struct app app = whole_app();
    struct err e = {0};
    char want[128];
    char *text;

    (void)state;
    assert_int_equal(workers_new(&app.control_executor, &cfg, &e), 0);
    text = text_of(m, &app);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        assert_line(text, lines[i]);
    (void)snprintf(want, sizeof want, "baton_info{version=\"%s\",boot_id=\"%s\"} 1", BATON_VERSION,
                   life.boot_id);
    assert_line(text, want);
    free(text);
    workers_free(app.control_executor);
    metrics_free(m);
}

static void test_metrics_text_tells_of_seeds(void **state)
{
    struct metrics *m = metrics_made();
    struct app app = whole_app();
    char *text = text_of(m, &app);

    (void)state;
    assert_line(text, "baton_seed_active 1");
    assert_line(text, "baton_seed_versions_total 2");
    assert_line(text, "baton_seed_failures_total 3");
    assert_line(text, "baton_seed_read_bytes_total 4096");
    free(text);
    metrics_free(m);
}

/* What is read of vLLM's names, with the labels that readers group by; and the escapes. */
static void test_metrics_text_speaks_vllm(void **state)
{
#define VLLM_LABELS "{model_name=\"a \\\"model\\\"\\\\of\\nmine ?\xc3\xa9\",engine=\"0\"}"
    struct metrics *m = metrics_made();
    struct app app = whole_app();
    char *text;

    (void)state;
    metrics_generation(m, 300, 5, 2000000, 6000000, "stop"); /* 1 s each after the first */
    text = text_of(m, &app);
    assert_non_null(strstr(text, "vllm:request_time_per_output_token_seconds_sum{"));
    assert_non_null(
        strstr(text, ",le=\"1\"} 1\nvllm:request_time_per_output_token_seconds_bucket"));
    assert_non_null(strstr(text, ",le=\"500\"} 1\nvllm:request_prompt_tokens_bucket"));
    assert_non_null(strstr(text, ",le=\"2\"} 0\nvllm:request_generation_tokens_bucket"));
    assert_line(text, "vllm:request_generation_tokens_sum" VLLM_LABELS " 5");
    assert_line(text, "vllm:num_preemptions_total" VLLM_LABELS " 0");
    assert_line(text, "vllm:num_requests_running" VLLM_LABELS " 2");
    assert_line(text, "vllm:num_requests_waiting" VLLM_LABELS " 5"); /* engine's and admission's */
    assert_line(text, "vllm:kv_cache_usage_perc" VLLM_LABELS " 0.25");
    assert_line(text, "vllm:prompt_tokens_total" VLLM_LABELS " 1000");
    assert_line(text, "vllm:generation_tokens_total" VLLM_LABELS " 2000");
    free(text);
    app.settings.dialects = 1U << DIALECT_NATIVE;
    text = text_of(m, &app);
    assert_null(strstr(text, "vllm:"));
    free(text);
    metrics_free(m);
}

/* Of the process itself: true within what can be known here. */
static void test_metrics_text_tells_of_the_process(void **state)
{
    struct metrics *m = metrics_made();
    struct app app = {0};
    unsigned long long rss = 0, fds[2] = {0, 0};
    FILE *extra;

    (void)state;
    for (int i = 0; i < 2; i++) {
        char *text;
        const char *at;

        extra = i == 0 ? NULL : fopen("/dev/null", "r");
        text = text_of(m, &app);
        at = strstr(text, "\nprocess_open_fds ");
        assert_non_null(at);
        assert_int_equal(sscanf(at, "\nprocess_open_fds %llu", &fds[i]), 1);
        at = strstr(text, "\nprocess_resident_memory_bytes ");
        assert_non_null(at);
        assert_int_equal(sscanf(at, "\nprocess_resident_memory_bytes %llu", &rss), 1);
        assert_true(rss > 100000);
        free(text);
        if (extra != NULL)
            assert_int_equal(fclose(extra), 0);
    }
    assert_int_equal(fds[1], fds[0] + 1);
    metrics_free(m);
}

enum { THREADS = 4, COUNTS = 20000 };

static void *count_many(void *arg)
{
    struct metrics *m = arg;

    for (unsigned i = 0; i < COUNTS; i++) {
        metrics_request(m, i % N_OPERATIONS, 200, i, 1, 2);
        metrics_generation(m, 1, 1, i, i, "stop");
    }
    return NULL;
}

static void test_metrics_count_from_any_thread(void **state)
{
    struct metrics *m = metrics_made();
    struct app app = {0};
    pthread_t threads[THREADS];
    char *text;

    (void)state;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, count_many, m), 0);
    for (int i = 0; i < 20; i++) { /* while they count: consistent in itself */
        text = text_of(m, &app);
        (void)check_text(text);
        free(text);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    text = text_of(m, &app);
    assert_line(text, "baton_generations_total{finish=\"stop\"} 80000");
    assert_line(text, "baton_generation_seconds_count 80000");
    assert_line(text, "baton_http_requests_total{operation=\"health\",code=\"200\"} 26668");
    free(text);
    metrics_free(m);
}

static void test_prom_label_values_are_bounded(void **state)
{
    struct buf out = {0};
    char *big = malloc(100001);

    (void)state;
    assert_non_null(big);
    memset(big, '"', 100000);
    big[100000] = '\0';
    prom_head(&out, "x", "gauge", "help");
    prom_u64(&out, "x", (struct prom_label[]){{"l", big}, {NULL, NULL}}, 1);
    assert_int_equal(check_text(out.data), 1);
    assert_true(out.len < 1000);
    buf_fini(&out);
    free(big);
}

static int setup(void **state)
{
    (void)state;
    life_init(&life);
    life_set(&life, LIFE_SERVING);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics_text_is_well_formed),
        cmocka_unit_test(test_metrics_request_counts),
        cmocka_unit_test(test_metrics_generation_counts),
        cmocka_unit_test(test_metrics_text_tells_every_room),
        cmocka_unit_test(test_metrics_text_tells_of_seeds),
        cmocka_unit_test(test_metrics_text_speaks_vllm),
        cmocka_unit_test(test_metrics_text_tells_of_the_process),
        cmocka_unit_test(test_metrics_count_from_any_thread),
        cmocka_unit_test(test_prom_label_values_are_bounded),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
