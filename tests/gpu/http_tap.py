"""A proxy in front of an engine that notes each call and how long it took."""

import collections
import sys
import threading
import time

import gpu_world as world

sys.path.insert(0, str(world.ROOT / "tests" / "real"))
import record  # noqa: E402

Call = collections.namedtuple("Call", "method path status began took_s")


class Tap:
    """A context manager. `before` is called with the path of each POST before it is passed on."""

    def __init__(self, url):
        self.calls, self.before = [], lambda path: None
        self.local = threading.local()
        self.proxy = record.Proxy(url, self)
        self.url = self.proxy.url

    def begin(self, method, path):
        self.local.began = time.monotonic()
        if method == "POST":
            self.before(path.partition("?")[0])

    def write(self, method, path, _body, status, _kind, _raw):
        began = self.local.began
        path = path.partition("?")[0]
        self.calls.append(Call(method, path, status, began, time.monotonic() - began))

    def __enter__(self):
        self.proxy.__enter__()
        return self

    def __exit__(self, *error):
        self.proxy.__exit__(*error)
