"""Waiting until servers are ready."""

from __future__ import annotations

import time
from typing import List, Union

from .connection import ask, url_list
from .errors import BatonError, InputError

ASK_S = 5.0  # for one answer
PAUSE_S = 0.2  # between two questions
PURPOSES = ("generate", "control")


def _not_ready(url: str, path: str, deadline: float) -> BatonError | None:
    """Why it is not; None if it is. Raises what no waiting mends."""
    try:
        ask(url, "GET", path, timeout=max(min(ASK_S, deadline - time.monotonic()), 0.1))
        return None
    except BatonError as e:
        if e.status not in (0, 503) or isinstance(e, InputError) or \
                e.code in ("tls", "bad_answer"):
            raise
        return e


def _wait_one(url: str, path: str, deadline: float, what: str) -> None:
    while True:
        try:
            reason = _not_ready(url, path, deadline)
        except BatonError as e:
            if e.status != 400 or "?" not in path:
                raise
            path = path.partition("?")[0]  # a server which has no such question
            continue
        if reason is None:
            return
        if time.monotonic() + PAUSE_S > deadline:
            raise BatonError(f"{url} is not ready {what}: {reason}", reason.status,
                             "timeout", retryable=True, request_id=reason.request_id)
        time.sleep(PAUSE_S)


def wait_ready(url: Union[str, List[str]], timeout_s: float = 60.0,
               for_: str = "generate") -> None:
    """Return when the server, or each of a list of them, is ready; BatonError with the last reason
    if that takes longer than timeout_s.

    for_  "generate": a generation sent now would be served; "control": the server accepts updates,
          which is so before its first weights and while it is paused or asleep
    """
    if for_ not in PURPOSES:
        raise InputError(f"for_ {for_!r} is not one of {', '.join(PURPOSES)}")
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or timeout_s < 0:
        raise InputError(f"timeout_s is a number of seconds, not {timeout_s!r}")
    path = "/readyz" if for_ == "generate" else f"/readyz?for={for_}"
    deadline = time.monotonic() + timeout_s
    for one in url_list(url):
        _wait_one(one, path, deadline, f"for {for_} after {timeout_s:g} s")
