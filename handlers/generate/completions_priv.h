/* What completions.c and completions_parse.c share. */
#ifndef BATON_HANDLERS_GENERATE_COMPLETIONS_PRIV_H
#define BATON_HANDLERS_GENERATE_COMPLETIONS_PRIV_H

#include "handlers/generate/completions.h"

/* completions_parse - parse the body of /v1/completions into `op`.
 * Errors: at the offending member; ERR_TOO_LARGE, ERR_NO_MEMORY. */
int completions_parse(struct completions_op *op, const json_t *body, struct err *e);

/* completions_prompt_field - the JSON pointer of prompt i in the request. */
void completions_prompt_field(char field[ERR_FIELD_MAX], const struct completions_op *op,
                              uint32_t i);

#endif
