/* What an engine reports of itself. */
#ifndef BATON_FLEET_API_UPSTREAM_REPORT_H
#define BATON_FLEET_API_UPSTREAM_REPORT_H

#include <stdbool.h>
#include <stdint.h>

enum {
    FLEET_LABEL_MAX = 128,   /* bytes of a version's label, and of a process id */
    FLEET_RELEASE_MAX = 63,  /* bytes of the name of a software release */
    FLEET_UPDATE_ID_MAX = 64 /* bytes of the id of an engine's own update */
};

/* The dirty marker: the prefix of the label that an engine has from before the first byte of an
 * update until its end, if it overwrites the weights that it serves and takes labels. The update's
 * id follows. If this server crashes during the update, the next one fences engines that still have
 * such a label. */
#define FLEET_DIRTY_MARKER "baton:unfinished:"

/* The same of an engine that was fenced for another reason, and paused (--pause-fenced). */
#define FLEET_FENCED_MARKER FLEET_DIRTY_MARKER "fenced"

/* What an engine's reply to a probe says; "" for each member that the reply does not have. */
struct upstream_report {
    char process[FLEET_LABEL_MAX + 1];   /* id of the process; a new one at each start */
    char identity[FLEET_LABEL_MAX + 1];  /* of the process too, and no other process has the same */
    char label[FLEET_LABEL_MAX + 1];     /* of the weights that it serves */
    char not_ready[FLEET_LABEL_MAX + 1]; /* why it cannot serve now; "" if it can */
    char release[FLEET_RELEASE_MAX + 1]; /* of its software, if its API differs between releases */
    bool has_lora;                       /* it can load adapters, if its API differs by that */
    char update_id[FLEET_UPDATE_ID_MAX +
                   1]; /* its own update that made the weights that it serves */
    bool takes_seeds;  /* it reads versions of peers, if it is asked to, … */
    bool passes_seeds; /* … and gives others what it is reading */
    char seeding_from[FLEET_LABEL_MAX + 1]; /* the peer that it reads from now */
    uint64_t seed_failures;                 /* of peers, so far */
    uint64_t serial;                  /* of its weights, in this process; 0: none, or not known */
    char digest[FLEET_LABEL_MAX + 1]; /* of their bytes; "": not known */
    const char *held; /* static: "paused" or "asleep", but not by this server; NULL: neither, or it
                         does not say */
    enum report_sleep { SAYS_NOTHING, SAYS_AWAKE, SAYS_ASLEEP } sleep; /* by any client */
    bool dropped;         /* it has no weights any more, by a sleep of any client */
    bool held_by_fence;   /* it is paused, and by a server with --pause-fenced */
    uint64_t sent_epoch;  /* fleet_weights_epoch when the probe was sent; 0: the report is not older
                             than its fleet_probe_ok */
    uint64_t have_change; /* have.change (fleet/members/have.h) when the probe was sent */
    bool is_stale; /* the weights epoch has changed since the probe was sent: label and not_ready
                      may be outdated and are ignored. fleet_probe_ok sets it by sent_epoch */
};

#endif
