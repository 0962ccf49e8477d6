/* What the commands share. */
#ifndef BATON_CLI_CLI_PRIV_H
#define BATON_CLI_CLI_PRIV_H

#include "cli/cli.h"
#include "cli/connection.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Each option: constant, flag, what its value is called in help ("" = it has none), what it does.
 * Two words of a flag's text are its default where it has one. */
#define CLI_OPTIONS(X)                                                                             \
    X(OPT_URL, "--url", "URL",                                                                     \
      "the server: http://HOST:PORT, https://HOST:PORT or unix:PATH; else BATON_URL, else "        \
      "http://127.0.0.1:8700")                                                                     \
    X(OPT_KEY_FILE, "--key-file", "FILE",                                                          \
      "file with the key to send, or a line of the server's file; else BATON_API_KEY")             \
    X(OPT_CA_FILE, "--ca-file", "FILE", "PEM certificates to trust instead of the system's")       \
    X(OPT_TIMEOUT, "--timeout", "SECONDS", "of each request, and of the whole wait (default 600)") \
    X(OPT_JSON, "--json", "", "print the server's JSON as it came")                                \
    X(OPT_HELP, "--help", "", "this text")                                                         \
    X(OPT_VERSION, "--weight-version", "LABEL", "label that replies will carry")                   \
    X(OPT_DELTA_FROM, "--delta-from", "LABEL|DIGEST",                                              \
      "the version that a delta builds on; of an adapter the digest that its load printed")        \
    X(OPT_DELTA_BASE, "--delta-base", "FILE|DIR",                                                  \
      "the checkpoint of that version, or the directory of that adapter: only what differs from "  \
      "it is sent, and all if that is not less, or if the server has another one, which is an "    \
      "error with --partial")                                                                      \
    X(OPT_OUTPUT, "--output", "FILE", "the file to write; also -o FILE")                           \
    X(OPT_PARTIAL, "--partial", "", "tensors that are not sent stay as they are")                  \
    X(OPT_CONVERT, "--convert", "",                                                                \
      "let the server convert float dtypes to the model's; implies --no-checksums")                \
    X(OPT_PATH, "--path", "", "let the server read the files itself: its --allow-path")            \
    X(OPT_NO_CHECKSUMS, "--no-checksums", "", "send none; lengths are all that is proven")         \
    X(OPT_WATCH, "--watch", "", "show it again each second until interrupted")                     \
    X(OPT_MAX_TOKENS, "--max-tokens", "N", "longest reply (default 128)")                          \
    X(OPT_TEMPERATURE, "--temperature", "T", "0 takes the likeliest token (default 1)")            \
    X(OPT_SEED, "--seed", "N", "makes sampling repeatable")                                        \
    X(OPT_MODEL, "--model", "NAME", "model or adapter; default: the server's model")               \
    X(OPT_CHAT, "--chat", "", "send the prompt as a user's message, by the chat template")         \
    X(OPT_MODE, "--mode", "MODE", "keep, wait or abort what runs (default keep)")                  \
    X(OPT_LEASE, "--lease", "SECONDS", "the pause ends by itself so long after it began")          \
    X(OPT_REJECT, "--reject", "", "refuse new requests meanwhile; default: they queue")            \
    X(OPT_LEVEL, "--level", "N", "1 keeps the weights in host memory, 2 drops them (default 1)")   \
    X(OPT_TAGS, "--tags", "LIST", "weights, kv_cache, or both with a comma (default both)")        \
    X(OPT_ALL, "--all", "", "every request")                                                       \
    X(OPT_UPDATE, "--update", "",                                                                  \
      "the open update instead of requests; the old version is served")                            \
    X(OPT_FOR, "--for", "PURPOSE",                                                                 \
      "generate: a generation sent now would be served (default); control: updates are accepted, " \
      "which is so before the first weights and during a pause")                                   \
    X(OPT_CANARY, "--canary", "",                                                                  \
      "only log-probabilities; default: checksums too, which take longer")

enum cli_option {
#define X(constant, flag, value, text) constant,
    CLI_OPTIONS(X)
#undef X
        CLI_OPTION_COUNT
};

struct command;

/* A command line that was read. */
struct cli {
    const struct command *command;
    const char *name;                     /* "lora load", of messages */
    const char *values[CLI_OPTION_COUNT]; /* borrowed; NULL: not given; "" for a flag */
    const char *const *args;              /* [n_args]; borrowed */
    int n_args;
    struct connection *connection;
    const char *const *serve_flags; /* as cli_run() has them */
};

static inline bool cli_has(const struct cli *c, enum cli_option o)
{
    return c->values[o] != NULL;
}

/* cli_usage_error - one line to stderr, and where the command's help is. Returns CLI_USAGE. */
__attribute__((format(printf, 2, 3))) enum cli_exit cli_usage_error(const struct cli *c,
                                                                    const char *fmt, ...);

/* cli_number - an option's value as a number. Returns 0, or CLI_USAGE after a message.
 * @fallback  if it is not given */
enum cli_exit cli_number(const struct cli *c, enum cli_option o, double fallback, double least,
                         double most, double *out);

/* cli_ask - one JSON request (@body stolen; NULL: none); a failure is reported to stderr. */
enum cli_exit cli_ask(const struct cli *c, const char *method, const char *path, json_t *body,
                      struct answer *out);

/* json_print - JSON on stdout, as it came; characters that may control a terminal are escaped,
 * which leaves the value the same. cli_print_json: that of an answer. */
void json_print(const char *text, size_t len);
void cli_print_json(const struct answer *a);

/* Members of an answer, "" and 0 where there is none. @path  "weights.serial" */
const json_t *cli_at(const json_t *root, const char *path);
const char *cli_text(const json_t *root, const char *path);
double cli_real(const json_t *root, const char *path);

/* changes_warn - a line for each warning in the `changes` of an update or of /v1/weights/diff.
 * @before, @after  what each line begins and ends with. Returns how many there are.
 * changes_show - /v1/weights/diff as weights diff prints it; CLI_REFUSED if it has a warning. */
size_t changes_warn(FILE *to, const json_t *answer, const char *before, const char *after);
enum cli_exit changes_show(struct cli *c);

/* upstreams_warn - a line for each upstream in `list` that did not take a version, and why.
 * @list  of an update or of a stage; NULL: there is none. @before  what each line begins with */
void upstreams_warn(FILE *to, const json_t *list, const char *before);

/* stage_show - with --stage: which version was handed to the upstreams, and what failed; without it
 * nothing. Asks for /v1/status; a failure is reported to stderr. */
enum cli_exit stage_show(const struct cli *c);

/* cli_nbytes - "1.8 MB". cli_duration - "3 min 20 s". @out is also returned. */
enum { CLI_TEXT_MAX = 32 };
const char *cli_nbytes(double nbytes, char out[CLI_TEXT_MAX]);
const char *cli_duration(double seconds, char out[CLI_TEXT_MAX]);

/* cli_plural - "" or "s", behind a noun. */
static inline const char *cli_plural(double n)
{
    return n == 1 ? "" : "s";
}

/* The commands, one function each; each returns what the process ends with. */
enum cli_exit cmd_push(struct cli *c);
enum cli_exit cmd_status(struct cli *c);
enum cli_exit cmd_wait(struct cli *c);
enum cli_exit cmd_upstreams(struct cli *c);
enum cli_exit cmd_upstreams_add(struct cli *c);
enum cli_exit cmd_upstreams_remove(struct cli *c);
enum cli_exit cmd_upstreams_prove(struct cli *c);
enum cli_exit cmd_generate(struct cli *c);
enum cli_exit cmd_lora_load(struct cli *c);
enum cli_exit cmd_lora_unload(struct cli *c);
enum cli_exit cmd_lora_list(struct cli *c);
enum cli_exit cmd_pause(struct cli *c);
enum cli_exit cmd_resume(struct cli *c);
enum cli_exit cmd_sleep(struct cli *c);
enum cli_exit cmd_wake(struct cli *c);
enum cli_exit cmd_abort(struct cli *c);
enum cli_exit cmd_weights_list(struct cli *c);
enum cli_exit cmd_weights_verify(struct cli *c);
enum cli_exit cmd_weights_diff(struct cli *c);
enum cli_exit cmd_weights_delta(struct cli *c);
enum cli_exit cmd_weights_apply(struct cli *c);
enum cli_exit cmd_completion(struct cli *c);

#endif
