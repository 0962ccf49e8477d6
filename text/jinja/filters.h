/* Inside the filters. */
#ifndef BATON_TEXT_JINJA_FILTERS_H
#define BATON_TEXT_JINJA_FILTERS_H

#include "text/jinja/run.h"

/* filters_list.c: filters of sequences. */
int run_list_filter(struct run *r, unsigned id, const struct value *v, const struct args *a,
                    struct value *out);

#endif
