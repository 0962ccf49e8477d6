/* Rules of the fleet that are broken on purpose: each must be noticed. */
#ifndef BATON_TESTS_UNIT_FLEET_SIM_BROKEN_H
#define BATON_TESTS_UNIT_FLEET_SIM_BROKEN_H

enum broken {
    BROKEN_NOT,
    BROKEN_DOUBT,    /* what a request changes stays as it was until its answer */
    BROKEN_RESET,    /* another process has the facts of the one before */
    BROKEN_FENCE,    /* an engine whose update failed is not fenced */
    BROKEN_CACHES,   /* an update empties no caches */
    BROKEN_MARKER,   /* ... and sets no dirty marker */
    BROKEN_GATES,    /* new requests do not wait while engines end an update */
    BROKEN_SWITCH,   /* engines are resumed before the version is the fleet's */
    BROKEN_KEPT,     /* a resume does not leave out what the update holds */
    BROKEN_DEADLINE, /* a step of an update has no deadline that matters */
    BROKEN_WHY,      /* nothing says why an engine is out of rotation */
    BROKEN_WAKE,     /* an SGLang is woken though it may be awake */
    BROKENS
};

extern enum broken broken;

#endif
