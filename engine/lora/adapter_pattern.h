/* The patterns of an adapter's configuration: Python regular expressions over module paths.
 *
 * Matched by PCRE2. A construct that the two read differently, or that Python does not know, is
 * refused: a pattern that is almost right would leave a module out without any error. */
#ifndef BATON_ENGINE_LORA_ADAPTER_PATTERN_H
#define BATON_ENGINE_LORA_ADAPTER_PATTERN_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    ADAPTER_PATTERN_LEN_MAX = 4096,
    ADAPTER_MATCH_CPU_US_MAX = 2000000 /* for all matches of one configuration */
};

/* How PEFT applies it. */
enum adapter_pattern_kind {
    PATTERN_WHOLE, /* target_modules: re.fullmatch(p, path) */
    PATTERN_TAIL   /* rank_pattern: re.match("(.*\\.)?(p)$", path) */
};

struct adapter_pattern;

/* adapter_pattern_new - @text  borrowed; 1..ADAPTER_PATTERN_LEN_MAX bytes
 * Errors: ERR_BAD_REQUEST at `field`, ERR_NO_MEMORY. */
int adapter_pattern_new(struct adapter_pattern **out, const char *text,
                        enum adapter_pattern_kind kind, const char *field, struct err *e);
void adapter_pattern_free(struct adapter_pattern *p); /* accepts NULL */

/* adapter_pattern_is_plain - matched without the library: a path or the end of one. */
bool adapter_pattern_is_plain(const struct adapter_pattern *p);

/* adapter_pattern_match - does it match `path`?
 * @cpu_us  what was spent so far on this configuration's patterns; raised
 * Errors: ERR_BAD_REQUEST (gives up: too many steps, or cpu_us over its limit), ERR_NO_MEMORY. */
int adapter_pattern_match(const struct adapter_pattern *p, const char *path, uint64_t *cpu_us,
                          bool *out, struct err *e);

#endif
