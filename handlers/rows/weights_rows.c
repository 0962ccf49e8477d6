/* What requests may contain: weights. See handlers/rows/member.h. */
#include "handlers/control_plane.h"
#include "handlers/data_plane.h"
#include "handlers/rows/rows.h"
#include "handlers/rows/weights_request.h"
#include "handlers/update_members.h"
#include "transport/peer/seeder.h"
#include "weights/store/leases.h"
#include "weights/store/store.h"
#include "weights/tensor_list.h"

const struct member weights_list_query[] = {
    {"checksums", M_BOOL, M_IN(struct weights_list_request, checksums), .flags = M_QUERY,
     .def = "true", .doc = "false: they are null, and the answer is faster"},
    {0},
};

const struct member weights_diff_query[] = {
    {"change", M_STRING, M_IN(struct weights_diff_request, change), .flags = M_QUERY, .def = "all",
     M_WORDS("all", "changed", "unchanged", "equal_to_another", "not_sent", "not_compared"),
     .doc = "Only these tensors"},
    {"limit", M_INT, M_IN(struct weights_diff_request, limit), .flags = M_QUERY, .min = 1,
     .max = 10000, .def = "1000", .doc = "Tensors in one answer"},
    {"offset", M_INT, M_IN(struct weights_diff_request, offset), .flags = M_QUERY, .min = 0,
     .max = TENSOR_LIST_TENSORS_MAX, .def = "0",
     .doc = "How many of them to skip; next_offset of the answer before"},
    {0},
};

const struct member weights_label_members[] = {
    {"weight_version", M_STRING, M_IN(struct label_req, label), .check = label_check, .min = 1,
     .max = VERSION_LABEL_MAX, .flags = M_REQUIRED, .doc = DOC_LABEL},
    {"if_serial", M_INT, M_IN(struct label_req, if_serial), .min = 1,
     .doc = "409 unless the served version has this serial"},
    {"abort_requests", M_BOOL, M_IN(struct label_req, abort_requests), .def = "false",
     .doc = "End every generation, with its tokens so far"},
    {0},
};

const struct member weights_check_members[] = {
    {"action", M_STRING, M_IN(struct weights_check_request, action), .flags = M_REQUIRED,
     M_WORDS("checksum", "compare", "snapshot")},
    {"baseline", M_MAP, .items = M_STRING, M_IN(struct weights_check_request, baseline),
     .doc = "With compare; default: the snapshot that action snapshot took in this process"},
    {"skip", M_ARRAY, .items = M_STRING, .max = CHECK_SKIP_MAX,
     .doc = "Tensors with one of these in their name are left out; 400 if that is all"},
    {"must_match", M_BOOL, M_IN(struct weights_check_request, must_match), .def = "false",
     .doc = "With compare: a difference is a 422 manifest_mismatch"},
    {0},
};

const struct member handles_query[] = {
    {"lease_s", M_INT, M_IN(struct handles_request, lease_s), .flags = M_QUERY, .min = 1,
     .max = LEASE_S_MAX, .def = "60"},
    {0},
};

const struct member handles_renew_members[] = {
    {"lease_id", M_STRING, M_IN(struct handles_renew_request, lease_id), .flags = M_REQUIRED},
    {"lease_s", M_INT, M_IN(struct handles_renew_request, lease_s), .min = 1, .max = LEASE_S_MAX,
     .doc = "From now; default: as many as before"},
    {0},
};

const struct member leases_members[] = {
    {"lease_s", M_INT, M_IN(struct handles_request, lease_s), .min = 1, .max = LEASE_S_MAX,
     .def = "60"},
    {0},
};

const struct member weights_file_query[] = {
    {"lease_id", M_STRING, M_IN(struct weights_file_request, lease_id),
     .flags = M_REQUIRED | M_QUERY, .doc = "Of POST /v1/weights/leases"},
    {0},
};

const struct member weights_seed_members[] = {
    {"peers", M_ARRAY, .items = M_STRING, M_IN(struct weights_seed_request, peers), .min = 1,
     .max = SEED_PEERS_MAX,
     .doc = "Servers to ask, in this order, as http://HOST:PORT; default: those of --seed"},
    {"if_serial", M_INT, M_IN(struct weights_seed_request, if_serial),
     M_GIVEN(struct weights_seed_request, if_serial_given), .min = 0,
     .doc = "409 unless this serial is served (0: none), so that a request that comes late takes "
            "nothing back; an update that is committed later ends the seed"},
    {0},
};

const struct member weight_values_members[] = {
    {"name", M_STRING, M_IN(struct weight_values_request, name), .flags = M_REQUIRED},
    {"truncate_size", M_INT, M_IN(struct weight_values_request, n_rows), .min = 1, .def = "100"},
    {0},
};
