"""Where the trainers of a test come from: processes that are forked from one which has imported what
the test has. An interpreter of its own for each costs a quarter of a second, and some tests have a
hundred of them."""

import multiprocessing
import multiprocessing.forkserver
import os
import sys

_TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PEERS = os.path.join(_TESTS, "real")
_CONTEXT = multiprocessing.get_context("forkserver")
_started = []  # anything, once it runs


def _modules():
    """Those of the tests that are loaded, but what imports a real peer, which takes long; a forked
    process finds them there."""
    files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
    return [name for name, file in files.items() if not name.startswith("__m") and
            file.startswith(_TESTS) and not file.startswith(_PEERS)]


def context():
    """Like multiprocessing.get_context(). A process inherits no thread and no descriptor of the
    test's; its environment is that of the first call."""
    if not _started:
        _started.append(True)
        _CONTEXT.set_forkserver_preload(_modules())
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # 3.11 hands it no path
        multiprocessing.forkserver.ensure_running()
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return _CONTEXT
