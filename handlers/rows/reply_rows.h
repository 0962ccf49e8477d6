/* Tables of replies that stand apart from what makes them, because several folders have part of
 * them, or the values come from several places: then rows without a field only describe. */
#ifndef BATON_HANDLERS_ROWS_REPLY_ROWS_H
#define BATON_HANDLERS_ROWS_REPLY_ROWS_H

#include "handlers/rows/member.h"

/* What came of a request to one engine. */
struct engine_result {
    const char *upstream; /* its URL */
    bool ok;
    int status;        /* of its last answer, or 0 */
    const char *error; /* or NULL */
};
extern const struct member result_reply[];

/* upstream_rows.c */
extern const struct member upstream_reply[], upstreams_reply[], upstream_ready_reply[],
    upstream_name_rows[];
extern const struct member upstreams_proven_reply[];
extern const struct member reason_rows[];         /* of struct err */
extern const struct member upstream_error_rows[]; /* of struct upstream_error */
extern const struct member proof_rows[];          /* of struct fleet_prover */

/* status_rows.c */
extern const struct member status_reply[], recorded_version_reply[], group_reply[];
extern const struct member adapter_totals_reply[], ready_reply[];
extern const struct member admission_reply[]; /* of struct admission_stats */
extern const struct member seed_reply[];
extern const struct member seeded_from_rows[]; /* of struct seeder_info */
extern const struct member http_rows[];        /* of struct http_server_stats */
extern const struct member model_rows[];       /* of struct app_generate */
extern const struct member cuda_device_rows[]; /* of struct cuda_device */
extern const struct member nccl_rows[];        /* of struct nccl_info */
extern const struct member nixl_status_rows[]; /* of struct nixl_info */

/* served_rows.c */
extern const struct member handles_reply[], weights_reply[], weights_diff_reply[];
extern const struct member lease_reply[]; /* of struct lease_info */
extern const struct member file_lease_reply[], valid_adapter_reply[];
extern const struct member preflight_reply[], plan_reply[], weights_checked_reply[];

/* handlers/lora/; empty in a build without the engine. */
extern const struct member adapter_reply[];        /* of struct adapters_item */
extern const struct member loaded_adapter_reply[]; /* of struct lora_loaded */

/* generate_reply_rows.c */
extern const struct member generated_reply[], completion_reply[], chat_reply[];
extern const struct member adapter_used_reply[], span_reply[], relayed_span_reply[];
extern const struct member sglang_generated_reply[], sglang_load_reply[];
extern const struct member chat_rendered_reply[], unloaded_adapter_reply[], cache_reset_reply[];
#define DOC_LOADED_ADAPTERS                                                                        \
    "All adapters that are loaded now: name to path, or null if it was not loaded from a path"

#define COVERAGE_WORDS M_WORDS("whole", "as_before", "partial", "incomplete", "unknown")
#define DOC_COVERAGE                                                                               \
    "Which tensors of the model have arrived. `whole`: all of them. `partial`: some, as the "      \
    "update declared. `incomplete`: some are missing (`missing`). Only in front of vLLM and "      \
    "SGLang, which accept any set of tensors: `as_before`: all tensors of the last whole "         \
    "update, which was not compared with the model itself (no `--model`, no `--manifest`); "       \
    "`unknown`: there is nothing to compare with yet, or some names could not be seen "            \
    "(`n_unseen`)."

#endif
