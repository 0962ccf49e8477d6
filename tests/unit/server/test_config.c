/* The configuration: which layer wins, what is refused and how, and that the help tells it all. */
#include "server/config/build.h"
#include "server/config/config.h"

#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { ARGS_MAX = CONFIG_LIST_MAX + 8 };

static int load(struct config *c, const char *const *args, const char *const *env, struct err *e)
{
    char *argv[ARGS_MAX + 1], *envp[ARGS_MAX + 1];
    int argc = 0, n_env = 0, rc;

    memset(c, 0, sizeof *c);
    memset(e, 0, sizeof *e);
    for (; args != NULL && args[argc] != NULL; argc++)
        argv[argc] = strdup(args[argc]);
    argv[argc] = NULL;
    for (; env != NULL && env[n_env] != NULL; n_env++)
        envp[n_env] = strdup(env[n_env]);
    envp[n_env] = NULL;
    rc = config_load(c, argc, argv, envp, e);
    /* Nothing of the config may point into what the caller gave. */
    for (int i = 0; i < argc; i++)
        free(argv[i]);
    for (int i = 0; i < n_env; i++)
        free(envp[i]);
    return rc;
}

#define LIST_OF(...) ((const char *const[]){__VA_ARGS__, NULL})

/* A configuration file with that text; its path is valid until the next call. */
static const char *file_with(const char *text)
{
    static char path[64], flag[80];
    FILE *f;
    int fd;

    if (path[0] != '\0')
        (void)unlink(path);
    (void)snprintf(path, sizeof path, "/tmp/test_config.XXXXXX");
    fd = mkstemp(path);
    assert_true(fd >= 0);
    f = fdopen(fd, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    (void)snprintf(flag, sizeof flag, "--config=%s", path);
    return flag;
}

static int remove_file(void **state)
{
    const char *flag = file_with("{}");

    (void)state;
    return unlink(strchr(flag, '/'));
}

static void test_config_load_defaults(void **state)
{
    struct config c;
    struct err e;

    (void)state;
    assert_int_equal(load(&c, NULL, NULL, &e), 0);
    assert_null(c.model);
    assert_string_equal(c.engine, "embedded");
    assert_string_equal(c.listen, "127.0.0.1:8700");
    assert_false(c.insecure);
    assert_int_equal(c.generate_concurrency, 512);
    assert_int_equal(c.kv_cache, 256 << 20);
    assert_int_equal(c.update_timeout, 600000);
    assert_int_equal(c.allow_path.n, 0);
    assert_string_equal(c.device, "cpu");
    config_fini(&c);
    config_fini(&c); /* a zeroed one */
}

static void test_config_load_layers(void **state)
{
    const char *file = file_with("{\"generate_queue\": 1, \"model\": \"/file\", \"insecure\": true,"
                                 " \"max_weight_bytes\": \"1GiB\", \"max_versions\": 5,"
                                 " \"allow_path\": [\"/file/a\", \"/file/b\"]}");
    struct config c;
    struct err e;

    (void)state;
    assert_int_equal(load(&c, LIST_OF(file), NULL, &e), 0);
    assert_int_equal(c.generate_queue, 1);
    assert_string_equal(c.model, "/file");
    assert_true(c.insecure);
    assert_int_equal(c.max_weight_bytes, 1 << 30);
    assert_int_equal(c.allow_path.n, 2);
    assert_string_equal(c.allow_path.items[1], "/file/b");
    config_fini(&c);

    assert_int_equal(load(&c,
                          LIST_OF(file, "--generate-queue", "3", "--insecure=false",
                                  "--sglang-base-gpu-id", "-1"),
                          LIST_OF("BATON_GENERATE_QUEUE=2", "BATON_MODEL=/env", "BATON_ENGINE=",
                                  "BATON_ALLOW_PATH=/env/a:/env/b:/env/c", "PATH=/bin"),
                          &e),
                     0);
    assert_int_equal(c.generate_queue, 3); /* flag over variable over file */
    assert_true(c.sglang_base_gpu_id == CONFIG_NO_LIMIT);
    assert_string_equal(c.model, "/env");      /* variable over file */
    assert_int_equal(c.max_versions, 5);       /* file over default */
    assert_string_equal(c.engine, "embedded"); /* an empty variable is unset */
    assert_false(c.insecure);
    assert_int_equal(c.allow_path.n, 3); /* a stronger list replaces a weaker one */
    assert_string_equal(c.allow_path.items[2], "/env/c");
    config_fini(&c);

    /* A list of devices is one value: its separator is the comma in every layer. */
    assert_int_equal(load(&c, NULL, LIST_OF("BATON_DEVICE=cuda:1,cuda:0"), &e), 0);
    assert_string_equal(c.device, "cuda:1,cuda:0");
    config_fini(&c);
    assert_int_equal(load(&c, LIST_OF("--device="), NULL, &e), -1);
    assert_string_equal(e.field, "--device");

    assert_int_equal(load(&c, LIST_OF("--allow-path", "/x", "--allow-path=/y", file),
                          LIST_OF("BATON_ALLOW_PATH=/env/a"), &e),
                     0);
    assert_int_equal(c.allow_path.n, 2); /* a repeated flag adds */
    assert_string_equal(c.allow_path.items[0], "/x");
    assert_string_equal(c.allow_path.items[1], "/y");
    config_fini(&c);
}

/* URLs hold ':', so blanks stand between them. */
static void test_config_load_words(void **state)
{
    const char *file = file_with("{\"upstream\": [\"http://f:1\", \"unix:/f\"]}");
    struct config c;
    struct err e;

    (void)state;
    assert_int_equal(load(&c, NULL, LIST_OF("BATON_UPSTREAM=  http://a:1,vllm\thttp://b:2 "), &e),
                     0);
    assert_int_equal(c.upstream.n, 2);
    assert_string_equal(c.upstream.items[0], "http://a:1,vllm");
    assert_string_equal(c.upstream.items[1], "http://b:2");
    assert_int_equal(c.min_ready, 0);
    config_fini(&c);
    assert_int_equal(load(&c, LIST_OF(file), NULL, &e), 0);
    assert_int_equal(c.upstream.n, 2);
    assert_string_equal(c.upstream.items[1], "unix:/f");
    config_fini(&c);
    assert_int_equal(load(&c, LIST_OF("--upstream-file", "/x", "--min-ready", "2"), NULL, &e), 0);
    assert_int_equal(c.min_ready, 2);
    config_fini(&c);
}

/* Whatever is given is heeded, or refused under the name that it was given by. */
static void test_config_load_refuses_what_it_would_not_heed(void **state)
{
    static const struct {
        const char *flag, *variable, *field;
    } rows[] = {
        {"--weights=/w", NULL, "--weights"},
        {"--engine=embedded", NULL, "--engine"}, /* also its default */
        {"--device=cpu", NULL, "--device"},
        {"--allow-path=/p", NULL, "--allow-path"},
        {"--max-loras=3", NULL, "--max-loras"},
        {"--model=/m", "BATON_MANIFEST=/s", "BATON_MANIFEST"}, /* one of them */
        {NULL, "BATON_WEIGHTS=/w", "BATON_WEIGHTS"},
    };
    struct config c;
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(load(&c, LIST_OF("--upstream=http://a:1", rows[i].flag),
                              LIST_OF("X=", rows[i].variable), &e),
                         -1);
        assert_string_equal(e.field, rows[i].field);
        assert_non_null(strstr(e.msg, build_has_engine || strcmp(rows[i].field, "--max-loras") != 0
                                          ? "--upstream"
                                          : BUILD_LACKS_ENGINE));
    }
    assert_int_equal(load(&c, LIST_OF("--min-ready=1"), NULL, &e), -1);
    assert_string_equal(e.field, "--min-ready");
    assert_int_equal(load(&c, LIST_OF("--probe-timeout=100"), NULL, &e), -1);
    assert_string_equal(e.field, "--probe-timeout");
}

static void test_config_load_file_by_variable(void **state)
{
    const char *file = strdup(file_with("{\"log_level\": \"debug\"}"));
    char variable[128];
    struct config c;
    struct err e;

    (void)state;
    (void)snprintf(variable, sizeof variable, "BATON_CONFIG=%s", strchr(file, '/'));
    assert_int_equal(load(&c, NULL, LIST_OF(variable), &e), 0);
    assert_string_equal(c.log_level, "debug");
    config_fini(&c);

    /* The flag's file is read instead of the variable's, wherever the flag stands. */
    assert_int_equal(load(&c, LIST_OF("--insecure", "--config", strchr(file, '/')),
                          LIST_OF("BATON_CONFIG=/nowhere"), &e),
                     0);
    assert_true(c.insecure);
    config_fini(&c);
    free((void *)(uintptr_t)file);
}

static void test_config_load_forms(void **state)
{
    static const struct {
        const char *text;
        uint64_t nbytes;
    } rows[] = {
        {"65536", 65536},
        {"64KiB", 65536},
        {"3MiB", UINT64_C(3) << 20},
        {"2GiB", UINT64_C(2) << 30},
        {"5TiB", UINT64_C(5) << 40},
    };
    char flag[64];
    struct config c;
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        (void)snprintf(flag, sizeof flag, "--json-body-max=%s", rows[i].text);
        assert_int_equal(load(&c, LIST_OF(flag), NULL, &e), 0);
        assert_int_equal(c.json_body_max, rows[i].nbytes);
        config_fini(&c);
    }
    assert_int_equal(
        load(&c, LIST_OF("--insecure", "--model", "a=b", "--listen=0.0.0.0:1"), NULL, &e), 0);
    assert_true(c.insecure);
    assert_string_equal(c.model, "a=b");
    config_fini(&c);
    assert_int_equal(load(&c, LIST_OF("--model", "a", "--model", "b"), NULL, &e), 0);
    assert_string_equal(c.model, "b");
    config_fini(&c);
    assert_int_equal(load(&c, LIST_OF("dir", "--insecure"), NULL, &e), 0);
    assert_string_equal(c.model, "dir");
    assert_true(c.insecure);
    config_fini(&c);
}

/* One row a rule: where the error points, and words that the message must have. */
static const struct refusal {
    const char *what, *flag, *value, *env, *file, *field, *says;
} refusals[] = {
    {"unknown flag", "--modle", "x", NULL, NULL, "--modle", "did you mean --model?"},
    {"unknown flag, underscores", "--max_num_batched_tokens=5", NULL, NULL, NULL,
     "--max_num_batched_tokens", "did you mean --max-num-batched-tokens?"},
    {"unknown flag, nothing near", "--frobnicate", NULL, NULL, NULL, "--frobnicate",
     "unknown option; 'baton serve --help' lists all"},
    {"another server's flag", "--port", "9000", NULL, NULL, "--port", "--listen ADDRESS:PORT"},
    {"another server's flag, attached", "--model-path=x", NULL, NULL, NULL, "--model-path",
     "--model DIR"},
    {"no value", "--model", NULL, NULL, NULL, "--model", "needs a value, DIR"},
    {"a flag as value", "--model", "--insecure", NULL, NULL, "--model", "needs a value"},
    {"an argument behind options", "--insecure", "model", NULL, NULL, "",
     "unexpected argument 'model'; a model directory comes before all options"},
    {"two models", "model", "--model=other", NULL, NULL, "--model", "'model' is given before"},
    {"an empty argument", "", NULL, NULL, NULL, "", "unexpected argument ''"},
    {"one dash", "-h", NULL, NULL, NULL, "", "unexpected argument '-h'"},
    {"a truth value apart", "--insecure", "false", NULL, NULL, "", "--insecure=false"},
    {"not a truth value", "--insecure=yes", NULL, NULL, NULL, "--insecure",
     "neither true nor false"},
    {"not a number", "--max-num-seqs", "many", NULL, NULL, "--max-num-seqs", "1 to 65536"},
    {"trailing", "--max-num-seqs", "5x", NULL, NULL, "--max-num-seqs", "'5x'"},
    {"a sign", "--max-num-seqs=+5", NULL, NULL, NULL, "--max-num-seqs", "'+5'"},
    {"negative", "--max-num-seqs=-5", NULL, NULL, NULL, "--max-num-seqs", "'-5'"},
    {"less than no limit", "--max-logprobs", "-2", NULL, NULL, "--max-logprobs", "'-2'"},
    {"a blank", "--max-num-seqs", " 5", NULL, NULL, "--max-num-seqs", "' 5'"},
    {"empty number", "--max-num-seqs=", NULL, NULL, NULL, "--max-num-seqs", "''"},
    {"below", "--max-num-seqs", "0", NULL, NULL, "--max-num-seqs", "expected 1 to 65536"},
    {"above", "--max-num-seqs", "65537", NULL, NULL, "--max-num-seqs", "expected 1 to 65536"},
    {"overflow", "--max-num-seqs", "18446744073709551617", NULL, NULL, "--max-num-seqs", "1 to"},
    {"milliseconds", "--pin-timeout", "9", NULL, NULL, "--pin-timeout", "milliseconds"},
    {"bytes suffix", "--kv-cache", "64MB", NULL, NULL, "--kv-cache", "64MiB"},
    {"bytes overflow", "--kv-cache", "16777217TiB", NULL, NULL, "--kv-cache", "bytes"},
    {"bytes below", "--kv-cache", "1KiB", NULL, NULL, "--kv-cache", "65536"},
    {"engine", "--engine", "vllm", NULL, NULL, "--engine", "embedded, none"},
    {"level", "--log-level=trace", NULL, NULL, NULL, "--log-level", "debug, info, warn, error"},
    {"empty entry", "--allow-path=", NULL, NULL, NULL, "--allow-path", "empty"},
    {"empty config", "--config=", NULL, NULL, NULL, "--config", "empty"},
    {"no such file", "--config=/nowhere/x.json", NULL, NULL, NULL, "--config", "No such file"},
    {"a directory", "--config=/tmp", NULL, NULL, NULL, "--config", "cannot be read"},
    {"empty listen", "--listen=", NULL, NULL, NULL, "--listen", "ADDRESS is expected"},
    {"variable", NULL, NULL, "BATON_MAX_NUM_SEQS=0", NULL, "BATON_MAX_NUM_SEQS", "1 to 65536"},
    {"variable list", NULL, NULL, "BATON_ALLOW_PATH=/a::/b", NULL, "BATON_ALLOW_PATH", "empty"},
    {"file syntax", NULL, NULL, NULL, "{\n\"model\": }", "FILE:2", "column"},
    {"file twice", NULL, NULL, NULL, "{\"model\": \"a\",\n \"model\": \"b\"}", "FILE:2",
     "duplicate"},
    {"file not an object", NULL, NULL, NULL, "[]", "FILE:1", "not a JSON object"},
    {"file empty", NULL, NULL, NULL, "", "FILE:1", "not JSON"},
    {"file member", NULL, NULL, NULL, "{\n\"max-num-seq\": 1}", "FILE:2: max-num-seq",
     "did you mean max_num_seqs?"},
    {"file member, far", NULL, NULL, NULL, "{\"x\": 1}", "FILE:1: x", "unknown member"},
    {"file null", NULL, NULL, NULL, "{\"model\": null}", "FILE:1: model", "a string"},
    {"file type", NULL, NULL, NULL, "{\"max_num_seqs\": \"5\"}", "FILE:1: max_num_seqs",
     "an integer"},
    {"file real", NULL, NULL, NULL, "{\"max_num_seqs\": 5.0}", "FILE:1: max_num_seqs",
     "an integer"},
    {"file negative", NULL, NULL, NULL, "{\"max_num_seqs\": -5}", "FILE:1: max_num_seqs", "'-5'"},
    {"file range", NULL, NULL, NULL, "{\"max_num_seqs\": 0}", "FILE:1: max_num_seqs", "1 to 65536"},
    {"file bool", NULL, NULL, NULL, "{\"insecure\": 1}", "FILE:1: insecure", "true or false"},
    {"file list", NULL, NULL, NULL, "{\"allow_path\": \"/a\"}", "FILE:1: allow_path", "an array"},
    {"file list item", NULL, NULL, NULL, "{\"allow_path\": [\"/a\", 1]}", "FILE:1: allow_path",
     "entry 1 is not a string"},
    {"file, the line of a member that is like another's value", NULL, NULL, NULL,
     "{\"model\": \"engine\", \"allow_path\":\n [\"engine\", \"{\\\"\"],\n\n \"engine\"\n: \"x\"}",
     "FILE:4: engine", "embedded, none"},
    {"file, a member spelt with an escape", NULL, NULL, NULL, "{\"engin\\u0065\": \"x\"}",
     "FILE: engine", "embedded, none"},
    {"file choice", NULL, NULL, NULL, "{\"engine\": \"x\"}", "FILE:1: engine", "embedded, none"},
};

static void test_config_load_refuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *r = &refusals[i];
        const char *args[4] = {0}, *env[2] = {r->env, NULL};
        size_t n = 0;
        char field[ERR_FIELD_MAX];
        struct config c;
        struct err e;

        (void)snprintf(field, sizeof field, "%s", r->field);
        if (r->file != NULL) {
            args[n++] = file_with(r->file);
            if (strncmp(r->field, "FILE", 4) == 0)
                (void)snprintf(field, sizeof field, "%s%s", strchr(args[0], '/'), r->field + 4);
        }
        if (r->flag != NULL)
            args[n++] = r->flag;
        if (r->value != NULL)
            args[n++] = r->value;
        if (load(&c, args, env, &e) == 0)
            fail_msg("%s: was accepted", r->what);
        if (err_http_status(e.code) / 100 != 4 || strcmp(e.field, field) != 0 ||
            strstr(e.msg, r->says) == NULL)
            fail_msg("%s: %s '%s' at '%s'", r->what, err_wire_name(e.code), e.msg, e.field);
        assert_null(c.storage); /* untouched on failure */
    }
}

static void test_config_load_bounds_what_comes(void **state)
{
    char *big = malloc(2 << 20), *entries[CONFIG_LIST_MAX + 2] = {0};
    struct config c;
    struct err e;

    (void)state;
    assert_non_null(big);
    memset(big, 'a', 2 << 20);
    memcpy(big, "--model=", 8);
    big[8 + 4097] = '\0';
    assert_int_equal(load(&c, LIST_OF(big), NULL, &e), -1);
    assert_non_null(strstr(e.msg, "longer than 4096 bytes"));
    big[8 + 4096] = '\0';
    assert_int_equal(load(&c, LIST_OF(big), NULL, &e), 0);
    config_fini(&c);

    memset(big, ' ', 2 << 20);
    memcpy(big, "{}", 2);
    big[(1 << 20) + 1] = '\0';
    assert_int_equal(load(&c, LIST_OF(file_with(big)), NULL, &e), -1);
    assert_non_null(strstr(e.msg, "longer than 1048576 bytes"));
    big[1 << 20] = '\0';
    assert_int_equal(load(&c, LIST_OF(file_with(big)), NULL, &e), 0);
    config_fini(&c);
    free(big);

    for (size_t i = 0; i <= CONFIG_LIST_MAX; i++)
        entries[i] = (char *)(uintptr_t) "--allow-path=/x";
    assert_int_equal(load(&c, (const char *const *)entries, NULL, &e), -1);
    assert_non_null(strstr(e.msg, "more than 256 entries"));
}

/* Runs a load with the log in a pipe; returns what was logged. */
static size_t logged(char *out, size_t cap, const char *const *env)
{
    struct config c;
    struct err e = {0};
    size_t len = 0;
    ssize_t got;
    int fds[2];

    assert_int_equal(pipe(fds), 0);
    assert_int_equal(log_open(fds[1], LOG_INFO, &e), 0);
    assert_int_equal(load(&c, NULL, env, &e), 0);
    log_close();
    assert_int_equal(close(fds[1]), 0);
    while ((got = read(fds[0], out + len, cap - 1 - len)) > 0)
        len += (size_t)got;
    out[len] = '\0';
    assert_int_equal(close(fds[0]), 0);
    config_fini(&c);
    return len;
}

static void test_config_load_warns_of_unknown_variables(void **state)
{
    char text[4096];

    (void)state;
    assert_true(
        logged(text, sizeof text,
               LIST_OF("BATON_FOO=10.0.0.1", "BATON_MODLE=x", "BATONX=1", "BATON_PORT=9000")) > 0);
    assert_non_null(strstr(text, "BATON_FOO is not an option"));
    assert_non_null(strstr(text, "BATON_PORT is not an option"));
    assert_non_null(strstr(text, "BATON_MODLE is not an option, did you mean BATON_MODEL?"));
    assert_null(strstr(text, "BATONX"));
    assert_null(strstr(text, "10.0.0.1")); /* values may be secrets */
    assert_int_equal(
        logged(text, sizeof text,
               LIST_OF("BATON_URL=x", "BATON_LOG_LEVEL=info", "BATON_CONFIG=", "HOME=/")),
        0);
}

/* As Kubernetes sets them for services named "baton" and "baton-a". */
static void test_config_load_ignores_the_variables_of_services(void **state)
{
    char text[4096];

    (void)state;
    assert_int_equal(
        logged(text, sizeof text,
               LIST_OF("BATON_SERVICE_HOST=10.0.0.1", "BATON_SERVICE_PORT=8700",
                       "BATON_SERVICE_PORT_HTTP=8700", "BATON_PORT=tcp://10.0.0.1:8700",
                       "BATON_PORT_8700_TCP=tcp://10.0.0.1:8700", "BATON_PORT_8700_TCP_PROTO=tcp",
                       "BATON_PORT_8700_TCP_PORT=8700", "BATON_PORT_8700_TCP_ADDR=10.0.0.1",
                       "BATON_A_SERVICE_HOST=10.0.0.1", "BATON_A_PORT=udp://10.0.0.1:1")),
        0);
}

/* What is found wrong later, when files are read and sockets opened, is named as it was given. */
static void test_config_where_names_the_layer(void **state)
{
    const char *file = file_with("{\n\"model\": \"/m\", \"weights\": \"/w\",\n"
                                 "\"max_weight_bytes\": \"1GiB\", \"allow_path\": [\"/a\"]}");
    char where[ERR_FIELD_MAX], want[ERR_FIELD_MAX];
    struct config c;
    struct err e;

    (void)state;
    assert_int_equal(load(&c, LIST_OF(file, "--weights=/x"), LIST_OF("BATON_LISTEN=[::1]:0"), &e),
                     0);
    config_where(where, &c, "--allow-path");
    (void)snprintf(want, sizeof want, "%s:3: allow_path", strchr(file, '/'));
    assert_string_equal(where, want);
    config_where(where, &c, "--weights");
    assert_string_equal(where, "--weights");
    config_where(where, &c, "--listen");
    assert_string_equal(where, "BATON_LISTEN");
    config_where(where, &c, "--engine");
    assert_string_equal(where, "--engine");
    config_where(where, &c, "/names/3");
    assert_string_equal(where, "/names/3");
    config_where(where, &c, "");
    assert_string_equal(where, "");
    config_fini(&c);
}

static bool flag_is_here(const char *flag)
{
    for (const char *const *f = config_flags(); *f != NULL; f++)
        if (strcmp(*f, flag) == 0)
            return true;
    return false;
}

/* A build without the engine refuses its options by name, wherever they are given. */
static void test_config_load_engine_options(void **state)
{
    const char *file = file_with("{\"max_lora_rank\": 8}");
    const struct {
        const char *flag, *variable, *field;
    } rows[] = {
        {"--kv-cache=1GiB", NULL, "--kv-cache"},
        {NULL, "BATON_SERVED_MODEL_NAME=m", "BATON_SERVED_MODEL_NAME"},
        {file, NULL, NULL},
    };
    struct config c;
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int rc = load(&c, rows[i].flag != NULL ? LIST_OF(rows[i].flag) : NULL,
                      LIST_OF("X=", rows[i].variable), &e);

        assert_int_equal(rc, build_has_engine ? 0 : -1);
        if (rc == 0) {
            config_fini(&c);
            continue;
        }
        assert_string_equal(e.msg, BUILD_LACKS_ENGINE);
        if (rows[i].field != NULL)
            assert_string_equal(e.field, rows[i].field);
        else
            assert_non_null(strstr(e.field, ":1: max_lora_rank"));
    }
}

static void test_config_help_names_every_option(void **state)
{
    static const char *const titles[] = {"\nModel and weights\n", "\nThreads, admission",
                                         "\nEmbedded engine\n",   "\nMemory\n",
                                         "\nTime limits",         "\nLog\n",
                                         "\nListeners, auth",     "\nGPUs\n  --device LIST"};
    static const struct {
        const char *flag, *def;
    } rows[] = {
#define X(kind, field, flag, arg, def, min, max, help) {flag, def},
        CONFIG_OPTIONS(X)
#undef X
    };
    char *text = NULL, want[128], *line, *rest;
    size_t len = 0;
    FILE *to = open_memstream(&text, &len);

    (void)state;
    assert_non_null(to);
    config_help(to);
    assert_int_equal(fclose(to), 0);
    for (size_t i = 0; i < sizeof titles / sizeof titles[0]; i++)
        assert_non_null(strstr(text, titles[i]));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *at, *end;

        (void)snprintf(want, sizeof want, "\n  --%s ", rows[i].flag);
        at = strstr(text, want);
        if (!flag_is_here(rows[i].flag)) {
            assert_null(at);
            continue;
        }
        if (at == NULL)
            fail_msg("--%s is not in the help", rows[i].flag);
        end = strstr(at + 1, "\n  --");
        if (rows[i].def[0] != '\0') { /* its own paragraph names its default */
            (void)snprintf(want, sizeof want, "default %s", rows[i].def);
            at = strstr(at, want);
            if (at == NULL || (end != NULL && at > end))
                fail_msg("the default of --%s is not in its help", rows[i].flag);
        }
    }
    assert_true((strstr(text, "BATON_MAX_NUM_BATCHED_TOKENS\n") != NULL) == build_has_engine);
    assert_non_null(strstr(text, "--max-lora-rank: ")); /* of the engine, in either build */
    assert_non_null(strstr(text, "BATON_CONFIG\n"));
    assert_non_null(strstr(text, "\n  --check\n"));
    assert_non_null(strstr(text, "at least 64KiB"));
    for (line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        if (strlen(line) > 100)
            fail_msg("longer than 100 columns: %s", line);
    }
    free(text);
}

static void test_config_listen_parse_accepts(void **state)
{
    static const struct {
        const char *text, *address;
        uint16_t port;
        bool loopback;
    } rows[] = {
        {"127.0.0.1:8700", "127.0.0.1", 8700, true},
        {"127.9.8.7:0", "127.9.8.7", 0, true},
        {"localhost:1", "127.0.0.1", 1, true},
        {"[::1]:65535", "::1", 65535, true},
        {"0.0.0.0:80", "0.0.0.0", 80, false},
        {"[::]:80", "::", 80, false},
        {"10.0.0.1:80", "10.0.0.1", 80, false},
        {"[2001:db8::1]:80", "2001:db8::1", 80, false},
        {"[::ffff:127.0.0.1]:80", "::ffff:127.0.0.1", 80, true},
        {"[::ffff:10.0.0.1]:80", "::ffff:10.0.0.1", 80, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct config_listen l = {0};
        struct err e = {0};

        assert_int_equal(config_listen_parse(&l, rows[i].text, "--listen", &e), 0);
        assert_string_equal(l.address, rows[i].address);
        assert_int_equal(l.port, rows[i].port);
        assert_int_equal(l.loopback, rows[i].loopback);
    }
}

static void test_config_listen_parse_unix(void **state)
{
    struct config_listen l = {0};
    struct err e = {0};
    char text[5 + CONFIG_UNIX_PATH_MAX + 2] = "unix:";

    (void)state;
    memset(text + 5, 'x', CONFIG_UNIX_PATH_MAX);
    assert_int_equal(config_listen_parse(&l, text, "--listen", &e), 0);
    assert_string_equal(l.path, text + 5);
    assert_string_equal(l.address, "");
    assert_true(l.loopback);
    memset(&l, 0, sizeof l);
    text[5 + CONFIG_UNIX_PATH_MAX] = 'x';
    assert_int_equal(config_listen_parse(&l, text, "--listen", &e), -1);
    assert_string_equal(e.field, "--listen");
    assert_non_null(strstr(e.msg, "107 bytes"));
    assert_string_equal(l.path, "");
}

static void test_config_listen_parse_refuses(void **state)
{
    static const char *const rows[] = {
        "",
        "8700",
        ":8700",
        "127.0.0.1",
        "127.0.0.1:",
        "::1:8700",
        "[::1]",
        "[::1]8700",
        "[]:8700",
        "[:8700",
        "host:8700",
        "1.2.3:8700",
        "127.0.0.1:x",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:99999999999999999999",
        "[127.0.0.1]:1",
        "127.0.0.1 :1",
        "unix:",
        "unix",
        "[0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000]:1",
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct config_listen l = {.port = 7};
        struct err e = {0};

        if (config_listen_parse(&l, rows[i], "--control-listen", &e) == 0)
            fail_msg("'%s' was accepted", rows[i]);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, "--control-listen");
        assert_non_null(strstr(e.msg, "ADDRESS:PORT"));
        assert_int_equal(l.port, 7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_load_defaults),
        cmocka_unit_test(test_config_load_layers),
        cmocka_unit_test(test_config_load_words),
        cmocka_unit_test(test_config_load_refuses_what_it_would_not_heed),
        cmocka_unit_test(test_config_load_file_by_variable),
        cmocka_unit_test(test_config_load_forms),
        cmocka_unit_test(test_config_load_refuses),
        cmocka_unit_test(test_config_load_bounds_what_comes),
        cmocka_unit_test(test_config_load_warns_of_unknown_variables),
        cmocka_unit_test(test_config_load_ignores_the_variables_of_services),
        cmocka_unit_test(test_config_where_names_the_layer),
        cmocka_unit_test(test_config_load_engine_options),
        cmocka_unit_test(test_config_help_names_every_option),
        cmocka_unit_test(test_config_listen_parse_accepts),
        cmocka_unit_test(test_config_listen_parse_unix),
        cmocka_unit_test(test_config_listen_parse_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, remove_file);
}
