"""How far an update is: a bar, and the server's count of received bytes."""

import sys
import threading

from .connection import ask
from .errors import BatonError

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
