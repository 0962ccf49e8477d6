/* What replies of other handlers say of the adapters. Only a server with an engine has adapters:
 * handlers/ reach them by app_generate.lora, which is NULL otherwise. */
#ifndef BATON_HANDLERS_LORA_VIEW_H
#define BATON_HANDLERS_LORA_VIEW_H

#include <jansson.h>

struct app_generate;
struct buf;

/* JSON is new, and NULL without memory. Threads: any. Blocks: on short locks. */
struct lora_view {
    json_t *(*totals)(const struct app_generate *generate); /* counts and bytes, and their limits */
    json_t *(*valid)(const struct app_generate *generate);  /* [{name, revision, valid}] of what is
                                                               loaded now, after a commit */
    void (*metrics)(const struct app_generate *generate, struct buf *out); /* Prometheus text */
};

/* lora_view - of handlers/lora/. */
extern const struct lora_view lora_view;

#endif
