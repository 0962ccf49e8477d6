/* The handlers of generation and tokenization, and the members that each accepts. */
#ifndef BATON_HANDLERS_DATA_PLANE_H
#define BATON_HANDLERS_DATA_PLANE_H

#include "handlers/app.h"
#include "handlers/rows/member.h"

/* Every one is an operation's handler (server/operations.h). generate, completions and chat run on
 * app->generate_executor and take a permit of app->generate->admission themselves; chat_render,
 * tokenize and detokenize run on app->text_executor, admitted already. */
int handle_generate(struct app *app, struct http_request *x, struct err *e);
int handle_rollouts(struct app *app, struct http_request *x, struct err *e);
int handle_completions(struct app *app, struct http_request *x, struct err *e);
int handle_sglang_generate(struct app *app, struct http_request *x, struct err *e);
int handle_chat(struct app *app, struct http_request *x, struct err *e);
int handle_chat_render(struct app *app, struct http_request *x, struct err *e);
int handle_tokenize(struct app *app, struct http_request *x, struct err *e);
int handle_detokenize(struct app *app, struct http_request *x, struct err *e);

/* rollouts_accepted - does the client accept tensors (Accept: application/vnd.safetensors)? Then
 * handle_rollouts answers /v1/generate too. */
bool rollouts_accepted(const struct http_request *x);

/* rollouts_hint - where a member belongs that /v1/rollouts does not take; NULL: nowhere known. */
const char *rollouts_hint(const char *member);

/* generate_hint - where a member belongs that /v1/generate does not take; NULL: nowhere known. */
const char *generate_hint(const char *member);

extern const struct member generate_members[], completions_members[], chat_members[];
extern const struct member sglang_generate_members[], rollouts_members[];
extern const struct member tokenize_members[], detokenize_members[];

#endif
