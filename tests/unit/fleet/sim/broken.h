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
    BROKEN_SENT,     /* what was sent since a process was last seen is forgotten by a restart */
    BROKEN_FIRST,    /* an engine that was just added counts as one with empty caches */
    BROKEN_RESTARTED_ADAPTERS, /* another process has the adapters of the one before */
    BROKEN_START,              /* tensors come without a start */
    BROKEN_TWICE,   /* tensors whose answer was lost count as not taken, and are sent again */
    BROKEN_PROCESS, /* nobody asks which process gets the tensors and the end of an update */
    BROKEN_LABEL,   /* the new name is not set where the end of an update takes none */
    BROKEN_SERIAL,  /* an abort sets the fleet's version back */
    BROKEN_DUE,     /* what failed is never tried again */
    BROKEN_BASE,    /* an engine that has lost the version gets a part of the next one */
    BROKEN_RESYNC,  /* a resync believes that an engine has the version, whichever it reports */
    BROKEN_OPEN,    /* a resume does not end an update that was begun by its tensors */
    /* What rotation does not ask for: */
    BROKEN_OUT_DOWN,
    BROKEN_OUT_SLEEP,
    BROKEN_OUT_PAUSE,
    BROKEN_OUT_WEIGHTS,
    BROKEN_OUT_NEEDS,
    BROKEN_OUT_DROPPED,
    /* What is not driven: */
    BROKEN_ROW_PAUSE,
    BROKEN_ROW_SLEEP,
    BROKEN_ROW_OWN_UPDATE,
    BROKEN_ROW_CACHES,
    BROKEN_ROW_ADAPTERS,
    BROKEN_ROW_NAME,
    /* Of the hand-off: */
    BROKENS_STAGE,
    BROKEN_PIN = BROKENS_STAGE, /* a version is not kept while it is read */
    BROKEN_COPY,                /* a window is sent before it is copied */
    BROKEN_READERS,             /* ... and written while an SGLang reads it */
    BROKEN_MAPPED,              /* an SGLang counts as one that did not map its window */
    BROKEN_ENDED,               /* ... and so does one that keeps it */
    BROKEN_WINDOW,              /* the last window is not sent */
    BROKEN_REPAIR,              /* an engine without the version is not repaired */
    BROKEN_AGAIN,               /* what was not handed over is not tried again */
    BROKENS
};

extern enum broken broken;

#endif
