"""python3 -m baton FILE|DIR: push a safetensors file, or the files of a directory."""

import argparse
import json
import os
import sys

from .errors import BatonError
from .progress import show_warnings
from .update import push


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python3 -m baton",
                                     description="Push weights into baton.")
    parser.add_argument("file", help="a safetensors file, or a directory of them")
    parser.add_argument("--url", default=os.environ.get("BATON_URL", "http://127.0.0.1:8700"))
    parser.add_argument("--via", default="auto", choices=["auto", "shm", "body", "path"])
    parser.add_argument("--weight-version", default=None)
    parser.add_argument("--partial", action="store_true")
    parser.add_argument("--convert", action="store_true")
    parser.add_argument("--no-checksums", action="store_true")
    args = parser.parse_args(argv)
    progress = sys.stderr.isatty() or None
    try:
        answer = push(args.file, args.url, args.via, args.weight_version, not args.no_checksums,
                      args.partial, args.convert, progress=progress)
    except BatonError as e:
        print(f"baton: {e}", file=sys.stderr)
        return 1
    if not progress:
        show_warnings([answer])
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
