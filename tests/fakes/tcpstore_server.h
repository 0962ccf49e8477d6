/* A TCPStore server for tests: torch's wire protocol up to the queues, by the rules of either of
 * its servers. Single keys and values are bounded; a test that needs more has a bug.
 *
 * STORE_LEGACY reads each request to its end before it looks at another client, and closes at what
 * it does not know, at a GET of an absent key, at queues. STORE_LIBUV takes pieces, but wants
 * VALIDATE in one, answers a GET of an absent key with nothing, knows queues, and bounds lengths.
 */
#ifndef BATON_TESTS_FAKES_TCPSTORE_SERVER_H
#define BATON_TESTS_FAKES_TCPSTORE_SERVER_H

#include <stddef.h>
#include <stdint.h>

enum store_kind { STORE_LEGACY, STORE_LIBUV };

struct store_server;

/* store_server_new - listen on 127.0.0.1, any port, and serve on a thread. Aborts on failure. */
struct store_server *store_server_new(enum store_kind kind);
void store_server_free(struct store_server *s); /* closes every connection */
uint16_t store_server_port(const struct store_server *s);

/* As the process does that owns the store: keys as on the wire, slash included. */
void store_server_set(struct store_server *s, const char *key, const void *value, size_t nbytes);
int64_t store_server_add(struct store_server *s, const char *key, int64_t delta);

/* store_server_await_waiters - block until n clients wait for keys. */
void store_server_await_waiters(struct store_server *s, unsigned n);

/* store_server_drop - close every connection, as a trainer that dies. */
void store_server_drop(struct store_server *s);

#endif
