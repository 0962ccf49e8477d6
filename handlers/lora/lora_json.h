/* Loaded adapters in replies. */
#ifndef BATON_HANDLERS_LORA_LORA_JSON_H
#define BATON_HANDLERS_LORA_LORA_JSON_H

#include <jansson.h>

struct app_generate;

/* lora_list_json - every adapter that is loaded now, with all its properties (new). */
json_t *lora_list_json(const struct app_generate *generate);

/* lora_gauges_json - counts and bytes, next to their limits (new); JSON null without an engine. */
json_t *lora_gauges_json(const struct app_generate *generate);

/* lora_valid_json - [{name, revision, valid}] of what is loaded now, after a commit (new). */
json_t *lora_valid_json(const struct app_generate *generate);

/* lora_loaded_json - {name: path} of what is loaded now (new); the path is null if the tensors
 * were not read from a directory. */
json_t *lora_loaded_json(const struct app_generate *generate);

#endif
