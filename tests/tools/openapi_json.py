#!/usr/bin/env python3
"""openapi/baton.json, which /openapi.json serves and /docs shows, from openapi/baton.yaml and docs/errors.md.
It is tracked, so that a build needs no YAML.
Usage: tests/tools/openapi_json.py [--check] [ROOT]   writes it; --check compares
"""

import json
import pathlib
import re
import sys

import yaml

LINES_OF = ("paths", "schemas")  # one line for each of their members, so that two changes merge


def error_codes(text):
    """{code: {status, retryable, text}}: the sections of docs/errors.md."""
    codes = {}
    for code, status, no, body in re.findall(r"(?ms)^## (\w+)\n\n(\d+), (not )?retryable\. (.*?)(?=^## |\Z)", text):
        codes[code] = {"status": int(status), "retryable": not no, "text": body.strip()}
    return codes


def dump(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def lines(name, value):
    if isinstance(value, dict) and (name in LINES_OF or any(key in LINES_OF for key in value)):
        return "{\n" + ",\n".join(f"{dump(key)}:{lines(key, member)}" for key, member in value.items()) + "\n}"
    return dump(value)


def made(root):
    document = yaml.safe_load((root / "openapi/baton.yaml").read_text(encoding="utf-8"))
    document["x-error-codes"] = error_codes((root / "docs/errors.md").read_text(encoding="utf-8"))
    assert set(document["x-error-codes"]) == set(document["components"]["schemas"]["ErrorCode"]["enum"])
    return lines("", document) + "\n"


def main():
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).resolve().parents[2])
    path, text = root / "openapi/baton.json", made(root)
    if "--check" not in sys.argv[1:]:
        path.write_text(text, encoding="utf-8")
        return 0
    if path.read_text(encoding="utf-8") == text:
        return 0
    print("openapi/baton.json is not that of openapi/baton.yaml and docs/errors.md; run tests/tools/openapi_json.py")
    return 1


sys.exit(main())
