/* The server: start, serve, stop. */
#ifndef BATON_SERVER_SERVE_H
#define BATON_SERVER_SERVE_H

#include "base/err.h"
#include "driver/cuda_info.h"
#include "driver/nccl_info.h"
#include "memory/device_list.h"
#include "transport/nixl/nixl.h"
#include "weights/state/state_dir.h"
#include "weights/store/store.h"
#include "weights/value_check.h"

#include <stdbool.h>
#include <stdint.h>

struct config;

/* What a start would serve after the process before it, as far as the heads of files tell. */
enum state_choice {
    STATE_CHOICE_FIRST,    /* the first weights, or none; nothing was served before */
    STATE_CHOICE_SNAPSHOT, /* the version served last, from `snapshot` */
    STATE_CHOICE_EQUAL,    /* the first weights, if they are the version served last */
    STATE_CHOICE_OLDER,    /* --serve-base: an older one, from `snapshot` */
    STATE_CHOICE_BASE,     /* --serve-base: the first weights */
    STATE_CHOICE_UNSYNCED  /* nothing, until a whole update */
};

struct state_report {
    bool exists;       /* the directory */
    struct err in_use; /* by another server; else clean */
    struct state_found found;
    enum state_choice choice;
    struct snapshot_head snapshot;
    struct err skipped; /* why the snapshot of the version served last cannot be used; else clean */
};

/* What a start would read and find. */
struct serve_report {
    uint64_t n_tensors, nbytes; /* of one version of the weights */
    uint64_t vocab_size;        /* 0 with --engine none */
    bool has_weights;           /* false: it would start without weights */
    struct value_report values; /* of the first weights */
    char label[VERSION_LABEL_MAX + 1];
    struct cuda_info cuda;
    struct nccl_info nccl;
    struct nixl_info nixl;      /* zeroed without --nixl-library */
    struct device_list devices; /* chosen by --device; none: host memory */
    uint64_t window_nbytes;     /* --stage host: of each window, the version is in host memory;
                                   else 0 */
    bool mirror;                /* a copy in host memory too, for the embedded engine */
    bool sharded;               /* --placement sharded */
    uint64_t share_nbytes[CUDA_DEVICES_MAX]; /* of each rank: what sharded gives it */
    struct err room;           /* why the host has too little memory for a start; else clean */
    struct state_report state; /* zeroed without --state-dir */
};

/* serve_option_error - make an error about the value of an option name both: its field becomes the
 * option, its message begins with the value unless it names it already. Returns -1. */
int serve_option_error(struct err *e, const char *option, const char *value);

/* serve_inspect - read what serve reads before anything runs: model, tokenizer, model spec, the
 * first weights (their values too, unless --non-finite allow), CUDA and --device. Starts no thread,
 * opens no listener, creates no context on a GPU. Threads: main's. Errors: those of serve; *out is
 * untouched. */
int serve_inspect(const struct config *config, struct serve_report *out, struct err *e);

/* serve - run until SIGTERM or SIGINT, drain, and return.
 * @drained  set on success: false if --drain-timeout or a second signal cut the drain
 * Threads: main's, with SIGTERM and SIGINT blocked before any other thread starts.
 * Errors:  what kept it from starting; after a failure nothing is left running. */
int serve(const struct config *config, bool *drained, struct err *e);

#endif
