/* Text and token ids of the double (engine_data.c says which is which). */
#ifndef BATON_TESTS_FAKES_ENGINE_IDS_H
#define BATON_TESTS_FAKES_ENGINE_IDS_H

#include "tests/fakes/engine.h"

enum { TAGS = 65521, STEPS = 256, BYTES = TAGS * STEPS, VOCAB = BYTES + 256 };

struct ids {
    uint32_t *at; /* owned */
    size_t n, cap;
};

uint32_t fnv1a(uint32_t hash, const void *data, size_t len);
uint32_t fnv1a_of(const void *data, size_t len);

void tokenize(struct ids *out, const char *text);
void put_text(struct buf *b, const uint32_t *ids, size_t n);
void put_ids(struct buf *b, const uint32_t *ids, size_t n);

/* False: it is no list of token ids; no one prompt; no messages. */
bool ids_of_list(struct ids *out, const json_t *list);
bool ids_of_prompt(struct ids *out, const json_t *prompt);
bool ids_of_messages(struct ids *out, const json_t *messages);

/* The handlers of /tokenize and /detokenize. */
void reply_tokenize(struct conn *c, const json_t *body);
void reply_detokenize(struct conn *c, const json_t *body);

#endif
