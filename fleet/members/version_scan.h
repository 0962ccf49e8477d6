/* Finds the versions that a JSON reply names, that is, each string value of a member
 * "weight_version", while its bytes arrive. A string value cannot be mistaken for the member:
 * quotes within a string are escaped. */
#ifndef BATON_FLEET_MEMBERS_VERSION_SCAN_H
#define BATON_FLEET_MEMBERS_VERSION_SCAN_H

#include "fleet/members/fleet.h"

#include <stdbool.h>
#include <stddef.h>

/* State of the scan of one reply. Zero it first. */
struct version_scan {
    size_t matched; /* bytes of the member's name */
    enum { SCAN_MEMBER, SCAN_VALUE, SCAN_STRING, SCAN_ESCAPE } at;
    bool has_escape; /* one that is not decoded here */
    size_t len;
    char name[FLEET_LABEL_MAX + 1]; /* of a longer one the first bytes, like the fleet's label */
};

/* version_scan_next - read up to the end of the next version.
 * Returns: true if s->name is a version; *data and *len are then what follows it. False when all
 * bytes are read. null is skipped, and so is a name with an escape other than that of a quote, a
 * backslash or a slash. */
bool version_scan_next(struct version_scan *s, const char **data, size_t *len);

#endif
