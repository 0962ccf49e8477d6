/* The embedded engine of a server: the model, the tokenizer and the chat template that it reads,
 * the engine, its adapters. */
#include "base/log.h"
#include "control/lora_loads.h"
#include "engine/lora/adapters.h"
#include "engine/scheduler/embedded.h"
#include "server/model_dir.h"
#include "server/serve.h"
#include "server/serve_priv.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Without a usable chat template the server starts; only chat requests fail. */
static void load_chat_template(struct server *s)
{
    struct log_rec r;

    if (chat_template_load(&s->chat, s->config.model, &s->chat_why) == 0)
        return;
    if (s->chat_why.code == ERR_NOT_FOUND)
        return;
    log_begin(&r, LOG_WARN, "chat_template.refused");
    log_str(&r, "why", s->chat_why.msg);
    log_end(&r);
}

/* As in vLLM: a model beyond its positions answers, and answers nonsense. */
static int check_max_model_len(const struct server *s, struct err *e)
{
    uint64_t most = s->model.max_position_embeddings;

    if (s->config.max_model_len <= most)
        return 0;
    return err_set(
        e, ERR_BAD_REQUEST, "--max-model-len",
        "%llu is more than the %llu positions of the model (max_position_embeddings of "
        "config.json, times the factor of a linear rope_scaling); lower it or leave it out",
        (unsigned long long)s->config.max_model_len, (unsigned long long)most);
}

int server_read_engine(struct server *s, struct err *e)
{
    const struct config *c = &s->config;

    if (c->model == NULL)
        return err_set(
            e, ERR_BAD_REQUEST, "--model",
            "it is missing; a Hugging Face model directory is expected, as in 'baton serve "
            "--model DIR'");
    if (model_dir_check(c->model, e) != 0 || model_config_load(&s->model, c->model, e) != 0 ||
        tokenizer_load(&s->tokenizer, c->model, e) != 0)
        return serve_option_error(e, "--model", c->model);
    if (check_max_model_len(s, e) != 0)
        return -1;
    if (s->model.eos_differs)
        log_line(
            LOG_WARN, "model.eos",
            "config.json has an eos_token_id that generation_config.json lacks: it ends no reply "
            "here, as in transformers; it does in SGLang");
    load_chat_template(s);
    return model_spec_of_config(&s->model_spec, &s->model, s->first_weights.tensor_list, e);
}

static int build_adapters(struct server *s, struct err *e)
{
    const struct config *c = &s->config;
    struct adapters_config cfg = {.n_max = (uint32_t)c->max_loras,
                                  .rank_max = (uint32_t)c->max_lora_rank,
                                  .nbytes_max = c->max_lora_bytes,
                                  .base_names = s->generate.base_names};

    (void)non_finite_policy_parse(&cfg.non_finite, c->non_finite);
    s->generate.model = &s->model;
    if (adapters_new(&s->generate.adapters, &cfg, e) != 0)
        return -1;
    s->generate.lora = &lora_view;
    return lora_loads_new(&s->generate.loads, e);
}

/* An absolute path as given; a relative one resolved, since clients have other working directories.
 */
static void absolute_path(const char *path, char *out, size_t cap)
{
    char whole[SERVER_PATH_MAX];

    if (path[0] == '/' || realpath(path, whole) == NULL)
        (void)snprintf(out, cap, "%s", path);
    else
        (void)snprintf(out, cap, "%s", whole);
}

/* The last component of the directory, without trailing slashes. */
static void base_name(const char *path, char *out, size_t cap)
{
    char whole[SERVER_PATH_MAX];
    char *slash;
    size_t len;

    if (realpath(path, whole) == NULL) /* also turns ".." into a name */
        (void)snprintf(whole, sizeof whole, "%s", path);
    len = strlen(whole);
    while (len > 1 && whole[len - 1] == '/')
        whole[--len] = '\0';
    slash = strrchr(whole, '/');
    (void)snprintf(out, cap, "%s", slash != NULL && slash[1] != '\0' ? slash + 1 : whole);
}

/* What handlers know of the model. */
static void describe_model(struct server *s)
{
    const struct config *c = &s->config;
    struct app_generate *g = &s->generate;

    g->engine->ops->info(g->engine, &g->info);
    g->tokenizer = s->tokenizer;
    g->chat = s->chat;
    g->chat_why = &s->chat_why;
    g->defaults = strcmp(c->generation_config, "auto") == 0 ? &s->model.defaults : NULL;
    g->vocab_size = g->info.vocab_size;
    g->max_model_len = g->info.max_model_len;
    base_name(c->model, s->model_name, sizeof s->model_name);
    g->model_name = c->served_model_name != NULL ? c->served_model_name : s->model_name;
    absolute_path(c->model, s->model_path, sizeof s->model_path);
    g->model_path = s->model_path;
    s->base_names[0] = g->model_name;
    s->base_names[1] = c->model;
    s->base_names[2] = g->model_path;
    g->base_names = s->base_names;
}

/* Every reply would be refused. */
static int check_routed_experts(const struct server *s, struct err *e)
{
    const struct config *c = &s->config;

    if (s->app.settings.routed_experts == ROUTED_EXPERTS_ON_REQUEST ||
        s->generate.info.n_route_layers > 0)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "--return-routed-experts",
                   "'%s' needs a model with experts, and %s; leave it out",
                   c->return_routed_experts,
                   s->generate.engine != NULL ? "this one has none" : "there is no engine");
}

int server_build_engine(struct server *s, struct err *e)
{
    const struct config *c = &s->config;
    struct embedded_cfg cfg = {
        .model_path = c->model,
        .model = &s->model,
        .store = s->weights.store,
        .tokenizer = s->tokenizer,
        .n_threads = (uint32_t)c->engine_threads,
        .pin_threads = c->engine_pin,
        .n_running_max = (uint32_t)c->max_num_seqs,
        .n_step_tokens_max = (uint32_t)c->max_num_batched_tokens,
        .max_model_len = (uint32_t)c->max_model_len,
        .kv_nbytes_max = c->kv_cache,
        .no_prefix_cache = c->no_prefix_cache,
        .adapter_rank_max = (uint32_t)c->max_lora_rank,
    };

    if (!server_has_engine(s))
        return check_routed_experts(s, e);
    if (embedded_new(&s->generate.engine, &cfg, e) != 0)
        return -1;
    describe_model(s);
    return check_routed_experts(s, e) != 0 ? -1 : build_adapters(s, e);
}

void server_free_engine(struct server *s)
{
    adapters_free(s->generate.adapters);
    tokenizer_free(s->tokenizer);
    chat_template_free(s->chat);
}
