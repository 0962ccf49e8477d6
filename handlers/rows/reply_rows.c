/* What replies contain that several folders have. See handlers/rows/member.h. */
#include "handlers/rows/rows.h"

const struct member result_reply[] = {
    {"upstream", M_STRING, M_IN(struct engine_result, upstream), .flags = M_REQUIRED,
     .doc = "its URL"},
    {"ok", M_BOOL, M_IN(struct engine_result, ok), .flags = M_REQUIRED},
    {"status", M_INT | M_NULL, M_IN(struct engine_result, status), .flags = M_REQUIRED,
     .doc = "of its last answer; null: it got no request, did not answer, or the answer is about "
            "--stage"},
    {"error", M_STRING | M_NULL, M_IN(struct engine_result, error), .flags = M_REQUIRED},
    {0},
};
