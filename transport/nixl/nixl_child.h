/* The process that reads by NIXL: this program, executed again with a command that is no user's.
 *
 * It has a socket to the server (NIXL_FD_SOCKET), the windows in which bytes land
 * (NIXL_FD_WINDOWS), output, and nothing else: a peer of NIXL over TCP can write to its memory, and
 * a read that was given up goes on writing. So it is ended by SIGKILL whenever there is doubt, and
 * no memory that is proven or served is ever its own. */
#ifndef BATON_TRANSPORT_NIXL_NIXL_CHILD_H
#define BATON_TRANSPORT_NIXL_NIXL_CHILD_H

#define NIXL_CHILD_COMMAND "nixl-child" /* argv[1] */

enum { NIXL_CHILD_ARGC = 5 }; /* baton nixl-child LIBRARY AGENT PARENT */

/* nixl_child_main - be that process. @argv  [NIXL_CHILD_ARGC]. Does not return: it ends by _exit,
 * since an exit with a backend of NIXL crashes. */
_Noreturn void nixl_child_main(char **argv);

#endif
