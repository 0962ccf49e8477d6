"""How far an update is: a bar, and the server's count of received bytes."""

import sys
import threading

from .connection import ask
from .errors import BatonError, shown

POLL_S = 0.2  # between two looks at the progress of an update


class Bar:
    """progress=True: one line on standard error, redrawn."""

    def __call__(self, done, total):
        share = done / total if total else 1.0
        filled = int(share * 30)
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\r[{'#' * filled}{'.' * (30 - filled)}] {done / 1e6:.1f} of "
                         f"{total / 1e6:.1f} MB{end}")
        sys.stderr.flush()


WARNINGS = {
    "nothing_changed": "every tensor that was sent has the bytes that it had in {label}",
    "few_unchanged": "large tensors that did not change: {n_newly_unchanged} "
                     "({n_changed} tensors changed)",
    "equal_to_another": "tensors that have the bytes of another one: {n_equal_to_another}",
}


def show_warnings(answers):
    """The warnings of the update objects' `changes`, on standard error: one line for each. Servers
    with the same warning share its line."""
    lines = {}
    for answer in answers:
        changes = answer.get("changes") or {}
        for name in changes.get("warnings", ()):
            try:
                text = WARNINGS.get(name, "").format(label=changes["before"]["weight_version"],
                                                     **changes)
            except (LookupError, TypeError):
                text = ""  # the update is committed all the same
            lines[shown(f"baton: warning: {name}{': ' if text else ''}{text}; "
                        "GET /v1/weights/diff has the names") + "\n"] = None
    sys.stderr.write("".join(lines))
    sys.stderr.flush()


class Watch:
    """Shows the server's own count of received bytes while a request runs."""

    def __init__(self, url, progress):
        self.url, self.progress, self.stop = url, progress, threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self.stop.wait(POLL_S):
            try:
                update = ask(self.url, "GET", "/v1/status", timeout=5.0).get("update")
            except BatonError:
                continue
            if update and update["nbytes_total"] and not self.stop.is_set():
                self.progress(min(update["nbytes_done"], update["nbytes_total"] - 1),
                              update["nbytes_total"])

    def __enter__(self):
        if self.progress:
            self.thread.start()

    def __exit__(self, *_):
        self.stop.set()
        if self.progress:
            self.thread.join()
