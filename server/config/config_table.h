/* The table of CONFIG_OPTIONS as data, shared by the files that read, check and print it. */
#ifndef BATON_SERVER_CONFIG_CONFIG_TABLE_H
#define BATON_SERVER_CONFIG_CONFIG_TABLE_H

#include "base/err.h"
#include "server/config/config.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

enum config_kind {
    KIND_STR,
    KIND_INT,
    KIND_LIMIT, /* an integer; -1 for none, which is CONFIG_NO_LIMIT */
    KIND_MS,
    KIND_NBYTES,
    KIND_BOOL,
    KIND_LIST,
    KIND_WORDS
};

struct config_option {
    enum config_kind kind;
    const char *flag, *arg, *def, *help;
    uint64_t min, max;
    size_t offset; /* in struct config */
};

enum {
    CONFIG_NAME_MAX = 48,        /* of a flag, variable or member, with its NUL */
    CONFIG_VALUE_LEN_MAX = 4096, /* bytes of one value */
    CONFIG_FILE_NBYTES_MAX = 1 << 20,
    CONFIG_PLACE_MAX = ERR_FIELD_MAX - CONFIG_NAME_MAX - 16 /* so that a line and a name fit */
};

#define CONFIG_N_OPTIONS (sizeof(struct config_count))
struct config_count { /* one byte for each option: its size is their number */
#define X(kind, field, flag, arg, def, min, max, help) char field;
    CONFIG_OPTIONS(X)
#undef X
};

extern const struct config_option config_options[CONFIG_N_OPTIONS];

/* A stronger layer replaces the value of a weaker one; within one layer a list grows. */
enum config_layer { LAYER_DEFAULT, LAYER_FILE, LAYER_ENV, LAYER_FLAG };

/* Where each value was given. */
struct config_origins {
    enum config_layer layers[CONFIG_N_OPTIONS];
    uint32_t lines[CONFIG_N_OPTIONS]; /* of the file; 0: not found */
    char file[CONFIG_PLACE_MAX];      /* its path, a long one without its beginning */
};

struct config_loader {
    struct config config;
    const char *file;        /* borrowed; NULL without one */
    const char *file_option; /* "--config" or "BATON_CONFIG" */
};

/* config_env_name, config_member_name - "BATON_MAX_NUM_SEQS", "max_num_seqs". */
void config_env_name(char out[CONFIG_NAME_MAX], const struct config_option *o);
void config_member_name(char out[CONFIG_NAME_MAX], const struct config_option *o);

/* config_is_list - may it be given more than once? */
bool config_is_list(const struct config_option *o);

/* config_find - by flag, or NULL. */
const struct config_option *config_find(const char *flag, size_t len);

/* config_is_of_engine - is it an option that only a server with an embedded engine has?
 * config_is_here - does this build have it? One without the engine has none of those, and refuses
 * them by name. */
bool config_is_of_engine(const struct config_option *o);
bool config_is_here(const struct config_option *o);

/* config_set - check a value given as text and store it.
 * @field  the flag, variable or member, for the error */
int config_set(struct config_loader *l, const struct config_option *o, enum config_layer layer,
               const char *field, const char *text, struct err *e);

/* config_near - the flag, variable or member (as `name` makes them) closest to `word`.
 * @out  "" when none is close, else ", did you mean <prefix><name>?" */
enum { CONFIG_NEAR_MAX = 96 };
void config_near(char out[CONFIG_NEAR_MAX], const char *word, const char *prefix,
                 void (*name)(char out[CONFIG_NAME_MAX], const struct config_option *o));

/* config_place - "FILE:LINE: MEMBER"; without a line if it is 0, without a member if it is NULL. */
void config_place(char out[ERR_FIELD_MAX], const struct config_origins *from, uint32_t line,
                  const char *member);

/* config_fit - check that the given options go together.
 * Errors: ERR_BAD_REQUEST at an option that would have no effect. */
int config_fit(const struct config_loader *l, struct err *e);

/* config_file_load - the layer of the JSON file at l->file. */
int config_file_load(struct config_loader *l, struct err *e);

#endif
