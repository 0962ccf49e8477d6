"""Requests that run at the same time, and waiting for them."""

import socket
import threading
import time

from .connection import ask
from .errors import BatonError

LOOK_S_MAX = 0.001  # between two looks at what a GPU or NCCL is doing
ASK_S_MAX = 0.02  # between two looks at how far servers are


class Call(threading.Thread):
    """A request on a thread of its own, which can be given up."""

    def __init__(self, url, method, path, body=None, timeout=600.0):
        super().__init__(daemon=True, name="baton-call")
        self.url, self.answer, self.error = url, None, None
        self._request, self._timeout = (url, method, path, body), max(timeout, 0.1)
        self._socket, self._given_up = None, False
        self.start()

    def run(self):
        try:
            self.answer = ask(*self._request, timeout=self._timeout, connected=self._connected)
        except BatonError as e:
            self.error = _naming(self.url, e)
        except Exception as e:  # raised by the thread that waits for this one
            self.error = BatonError(f"{self.url}: {type(e).__name__}: {e}", code="connection")

    def _connected(self, connection):
        self._socket = connection
        if self._given_up:
            self.give_up()

    def give_up(self):
        """Closes the connection, so that the server knows that the client has left."""
        self._given_up = True
        try:
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended


def _naming(url, e):
    """The same error, with the server's address in it."""
    if url in e.message:
        return e
    return BatonError(f"{url}: {e.message}", e.status, e.code, e.param, e.retryable, e.details,
                      e.request_id)


def raise_failed(calls):
    for call in calls:
        if call.error is not None:
            raise call.error


def wait_until(ready, calls, deadline, what, step=LOOK_S_MAX):
    """Returns when ready() is true; raises the error of a call that failed, or a timeout."""
    pause = 0.0
    while not ready():
        raise_failed(calls)
        if time.monotonic() > deadline:
            raise BatonError(f"{what}: the time is over", code="timeout", retryable=True)
        time.sleep(pause)  # at first this only lets other threads run
        pause = min(pause + 20e-6, step)


def answers_of(calls, deadline):
    """In order; all have been waited for when one of them failed, unless the time is over."""
    for call in calls:
        call.join(max(deadline - time.monotonic(), 0.0))
    raise_failed(calls)
    late = [call.url for call in calls if call.is_alive()]
    if late:
        raise BatonError(f"no answer from {', '.join(late)} when the time was over", code="timeout",
                         retryable=True)
    return [call.answer for call in calls]


def answers_of_all(calls, deadline):
    """As answers_of, but at once when one has failed: the others may wait for that one."""
    for call in calls:
        while call.is_alive() and time.monotonic() < deadline:
            call.join(min(ASK_S_MAX, max(deadline - time.monotonic(), 0.0)))
            raise_failed(calls)
    return answers_of(calls, deadline)
