/* What replies say of the adapters that are loaded. */
#ifndef BATON_HANDLERS_LORA_JSON_H
#define BATON_HANDLERS_LORA_JSON_H

#include <jansson.h>

struct app_generate;

/* lora_list_json - all that is known of each that is loaded now (new). */
json_t *lora_list_json(const struct app_generate *generate);

/* lora_gauges_json - how many, how much of what is allowed (new); JSON null without an engine. */
json_t *lora_gauges_json(const struct app_generate *generate);

/* lora_valid_json - [{name, revision, valid}] of what is loaded now, after a commit (new). */
json_t *lora_valid_json(const struct app_generate *generate);

/* lora_loaded_json - {name: path} of what is loaded now (new); a path is null where tensors came
 * otherwise. */
json_t *lora_loaded_json(const struct app_generate *generate);

#endif
