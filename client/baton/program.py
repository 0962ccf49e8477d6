"""The command `baton` of a wheel that has the server's program in it."""

from __future__ import annotations

import os
import sys


def main() -> int:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "baton")
    try:
        os.execv(program, ["baton", *sys.argv[1:]])
    except OSError as e:
        print(f"baton: {program}: {e.strerror}; install the wheel of the server's repository again",
              file=sys.stderr)
        return 1
