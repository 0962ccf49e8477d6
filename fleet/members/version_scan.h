/* The versions that a JSON answer names, each value of a member "weight_version", found as its
 * bytes come. Within a string of JSON the member cannot stand: quotes are escaped there. */
#ifndef BATON_FLEET_MEMBERS_VERSION_SCAN_H
#define BATON_FLEET_MEMBERS_VERSION_SCAN_H

#include "fleet/members/fleet.h"

#include <stdbool.h>
#include <stddef.h>

/* Zeroed at first. One answer's. */
struct version_scan {
    size_t matched; /* bytes of the member's name */
    enum { SCAN_MEMBER, SCAN_VALUE, SCAN_STRING, SCAN_ESCAPE } at;
    bool odd; /* with an escape that is not read here */
    size_t len;
    char name[FLEET_LABEL_MAX + 1]; /* of a longer one its first bytes, as the fleet keeps it */
};

/* version_scan_next - read on. True: *data and *len are what is behind a version that is named, in
 * s->name. False: all is read. Null, and a name with an escape other than of a quote or a slash,
 * are no names. */
bool version_scan_next(struct version_scan *s, const char **data, size_t *len);

#endif
