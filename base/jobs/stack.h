/* Stacks between which one thread changes: the code on one is left in the middle, and goes on when
 * the thread comes back to it. */
#ifndef BATON_BASE_STACK_H
#define BATON_BASE_STACK_H

#include <stddef.h>

struct stack;

/* stack_of_thread - the one on which the calling thread runs; to come back to. NULL: no memory. */
struct stack *stack_of_thread(void);

/* stack_new - a stack on which `run` begins when a thread first changes to it.
 * @nbytes  reserved; memory is taken as it is used, and the end is guarded
 * @run     returns the stack to which the thread changes for good when it has ended
 * NULL: no memory. */
struct stack *stack_new(size_t nbytes, struct stack *(*run)(void *arg), void *arg);

/* stack_free - what `run` has ended on, or never began; or that of a thread, by that thread.
 * Accepts NULL. */
void stack_free(struct stack *s);

/* stack_change - leave `from`, on which the calling thread runs, for `to`. Returns when a stack is
 * left for `from`. Threads: always the same for one stack; no lock held. */
void stack_change(struct stack *from, struct stack *to);

#endif
