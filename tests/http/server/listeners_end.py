"""SIGTERM while a client of the control listener requests the status: the status reads the main listener until
the last reply, so that listener must still exist.

A client that does not read its reply keeps the main listener, a unix socket, for a moment longer; meanwhile
connections of the control listener, opened before the end, send requests one after the other.

Usage: listeners_end.py MAIN_PATH CONTROL_HOST CONTROL_PORT PID LOG
"""

import json
import os
import select
import signal
import socket
import sys
import time

from front_crowd import Crowd, post, wait

N_ASKERS = 256
APART_S = 0.01
STATUS = b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n"
LONG = post("/tokenize", {"prompt": "In the beginning " * 40000})


def deaf(path):
    """Has an answer of a megabyte, more than such a socket takes, and reads nothing of it."""
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    s.sendall(LONG)
    wait("its answer begins", lambda: select.select([s], [], [], 0.1)[0])
    return s


def logged(path, event):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f'"event":"{event}"' in f.read()


def asked_to_the_end(crowd):
    """Those that were answered after the drain."""
    n = 0
    for c in crowd:
        before = c.n_answers
        c.send(STATUS)
        crowd.gather("an answer, or the end", lambda: c.n_answers > before or c.closed)
        if c.n_answers == before:
            break
        assert c.answers[-1][0] == 200, c.answers[-1]
        assert json.loads(c.answers[-1][1])["http"]["connections"] >= 1, c.answers[-1]
        n += 1
        end = time.monotonic() + APART_S
        while time.monotonic() < end:
            crowd.turn(APART_S)
    return n


def main(path, host, port, pid, log):
    holder = deaf(path)
    crowd = Crowd((host, port), N_ASKERS)
    crowd.send(STATUS)
    crowd.gather("all are there", lambda: all(c.n_answers == 1 for c in crowd))
    os.kill(pid, signal.SIGTERM)
    wait("the drain is over", lambda: logged(log, "drain.end"))
    n = asked_to_the_end(crowd)
    assert n > 0, "nobody was answered after the drain"
    print(f"{n} of {N_ASKERS} were answered after the drain")
    holder.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
