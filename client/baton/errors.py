"""What this package raises: BatonError, and nothing else on purpose."""

from __future__ import annotations

import re
from typing import Any, Optional


# Control characters, line separators and bidirectional marks: in a message of a server or of an
# engine behind it they could control a terminal, or make a line read otherwise.
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def shown(text: str) -> str:
    """The text in one line, with such characters as escapes."""
    return _HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


class BatonError(Exception):
    """A server refused, or could not be reached, or this process cannot do what was asked.

    message     the server's if status is not 0
    status      of HTTP; 0 if no server answered
    code        the server's (docs/errors.md), "" of routes in OpenAI's form, whose errors have a
                number there; or of this package: connection (no whole answer),
                timeout, tls, bad_answer (the answer is not one of baton), no_gpu, no_nccl,
                nccl_error, cuda_error, shared_memory, conflict
    param       JSON pointer of the member that the server refused
    retryable   the same call may succeed later
    details     what the server adds; of a push to several servers {"committed": [url, ...],
                "failed": {url: message}, "unknown": [url, ...], "not_handed_over": {url: message}}:
                "unknown" did not answer the commit; those of "not_handed_over" have committed, and
                hand the version to their engines by themselves (--stage): do not push to them again
    request_id  to find the request in the server's log
    """

    def __init__(self, message: str, status: int = 0, code: str = "", param: Optional[str] = None,
                 retryable: bool = False, details: Any = None, request_id: str = ""):
        self.message, self.status, self.code, self.param = message, status, code, param
        self.retryable, self.details, self.request_id = retryable, details, request_id
        where = f" (at {param})" if param else ""
        what = f"{status} {code}".rstrip() + ": " if status else ""
        listed = ""
        if code == "incomplete_update" and details and details.get("missing"):
            listed = f"; missing: {', '.join(details['missing'][:8])}"
        super().__init__(shown(f"{what}{message}{where}{listed}"))


def has_committed(e: Any) -> bool:
    """The server that answered this has the update, and only its engines do not have it yet."""
    return getattr(e, "code", "") == "not_handed_over"


class InputError(BatonError, ValueError):
    """An argument, a tensor or a file cannot be used. Nothing was sent."""
