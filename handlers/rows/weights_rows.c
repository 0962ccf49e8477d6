/* What requests may contain: weights. See handlers/rows/member.h. */
#include "handlers/control_plane.h"
#include "handlers/data_plane.h"
#include "handlers/rows/rows.h"

const struct member weights_list_query[] = {
    {"checksums", M_BOOL, .flags = M_QUERY, .def = "true",
     .doc = "false: they are null, and the answer is faster"},
    {0},
};

const struct member weights_diff_query[] = {
    {"change", M_STRING, .flags = M_QUERY, .def = "all",
     M_WORDS("all", "changed", "unchanged", "equal_to_another", "not_sent", "not_compared"),
     .doc = "Only these tensors"},
    {"limit", M_INT, .flags = M_QUERY, .min = 1, .max = 10000, .def = "1000",
     .doc = "Tensors in one answer"},
    {"offset", M_INT, .flags = M_QUERY, .min = 0, .max = 1000000, .def = "0",
     .doc = "How many of them to skip; next_offset of the answer before"},
    {0},
};

const struct member weights_label_members[] = {
    {"weight_version", M_STRING, .min = 1, .max = 256, .flags = M_REQUIRED,
     .doc = "The trainer's own name for these weights. It must not begin with baton:unfinished:, "
            "which marks updates that have not ended"},
    {"if_serial", M_INT, .min = 1, .doc = "409 unless the served version has this serial"},
    {"abort_requests", M_BOOL, .def = "false",
     .doc = "End every generation, with its tokens so far"},
    {0},
};

const struct member weights_check_members[] = {
    {"action", M_STRING, .flags = M_REQUIRED, M_WORDS("checksum", "compare", "snapshot")},
    {"baseline", M_MAP, .items = M_STRING,
     .doc = "With compare; default: the snapshot that action snapshot took in this process"},
    {"skip", M_ARRAY, .items = M_STRING, .max = 1024,
     .doc = "Tensors with one of these in their name are left out; 400 if that is all"},
    {"must_match", M_BOOL, .def = "false",
     .doc = "With compare: a difference is a 422 manifest_mismatch"},
    {0},
};

const struct member handles_query[] = {
    {"lease_s", M_INT, .flags = M_QUERY, .min = 1, .max = 3600, .def = "60"},
    {0},
};

const struct member handles_renew_members[] = {
    {"lease_id", M_STRING, .flags = M_REQUIRED},
    {"lease_s", M_INT, .min = 1, .max = 3600, .doc = "From now; default: as many as before"},
    {0},
};

const struct member weight_values_members[] = {
    {"name", M_STRING, .flags = M_REQUIRED},
    {"truncate_size", M_INT, .min = 1, .def = "100"},
    {0},
};
