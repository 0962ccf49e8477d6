/* UTF-8 well-formedness, for text that comes from outside and goes into JSON or metrics. */
#ifndef BATON_BASE_UTF8_H
#define BATON_BASE_UTF8_H

/* utf8_clean - replace in place, by '?', every byte that is not part of a well-formed character
 * (also what a cut through a character has left). Returns how many. Threads: any. */
unsigned utf8_clean(char *text);

#endif
