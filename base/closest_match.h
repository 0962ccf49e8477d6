/* The known word that is closest to an unknown one, for error messages. */
#ifndef BATON_BASE_CLOSEST_MATCH_H
#define BATON_BASE_CLOSEST_MATCH_H

enum { CLOSEST_MATCH_LEN_MAX = 64 }; /* longer words have no match; bounds the work */

/* closest_match - the candidate closest to `word`, or NULL when none is close.
 * @candidates  NULL-terminated; the first of equally close ones wins; may be NULL
 *
 * Close is an edit distance of at most 2 and less than half the word's length; two swapped
 * neighbours are one edit, and case, '-' and '_' do not count. Threads: any. */
const char *closest_match(const char *word, const char *const *candidates);

#endif
