#!/usr/bin/env python3
"""openapi/baton.json, which /openapi.json serves and /docs shows, from
  openapi/baton.yaml     what is written by hand: the text about routes, and short replies
  openapi/requests.json  the members of requests, from the rows in the program (handlers/rows/member.h)
  openapi/replies.json   those of the parts of replies that have a name, in the same way
  docs/errors.md         the error codes
All are tracked, so that a build needs no YAML.
Usage: tests/tools/openapi_json.py [--check] [--program PRINT_CONTRACT] [ROOT]
  writes baton.json, and with --program the other two first; --check compares instead
"""

import copy
import json
import pathlib
import re
import subprocess
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


def replies_of(contract):
    """openapi/replies.json: name -> schema."""
    replies = {**contract["replies"], "ErrorCode": {"enum": [row["code"] for row in contract["codes"]]}}
    return "{\n" + ",\n".join(f"{dump(name)}:{dump(schema)}" for name, schema in replies.items()) + "\n}\n"


def requests_of(contract):
    """openapi/requests.json: path -> method -> {body, query}: schemas. Rows of the program with one path and
    method, which the body tells apart, are one operation: it takes the members of all."""
    paths = {}
    for route in contract["routes"]:
        for method in route["methods"]:
            if method == "HEAD":
                continue
            operation = paths.setdefault(route["path"], {}).setdefault(method.lower(), {})
            for kind in "body", "query":
                schema = route.get(f"{kind}_schema")
                if schema is None:
                    continue
                first = operation.setdefault(kind, copy.deepcopy(schema))
                if first == schema:
                    continue
                first["properties"] = {**schema["properties"], **first["properties"]}
                needed = [name for name in first.get("required", []) if name in schema.get("required", [])]
                first.pop("required", None)
                if needed:
                    first["required"] = needed
    paths = {path: {method: o for method, o in of.items() if o} for path, of in paths.items()}
    return "{\n" + ",\n".join(f"{dump(path)}:{dump(of)}" for path, of in paths.items() if of) + "\n}\n"


def add_requests(document, requests):
    """Puts the schemas of bodies and the query members into the operations."""
    for path, methods in requests.items():
        for method, request in methods.items():
            operation = document["paths"][path][method]
            if "body" in request:
                content = operation.setdefault("requestBody", {}).setdefault("content", {})
                kind = content.setdefault("application/json", {})
                assert "schema" not in kind, f"{method} {path}: its members come from the program"
                content["application/json"] = {"schema": request["body"], **kind}
            for name, schema in request.get("query", {}).get("properties", {}).items():
                schema = dict(schema)
                row = {"name": name, "in": "query"}
                if name in request["query"].get("required", []):
                    row["required"] = True
                if "description" in schema:
                    row["description"] = schema.pop("description")
                operation.setdefault("parameters", []).append({**row, "schema": schema})


def made(root):
    document = yaml.safe_load((root / "openapi/baton.yaml").read_text(encoding="utf-8"))
    document = json.loads(json.dumps(document))  # YAML's aliases become copies
    add_requests(document, json.loads((root / "openapi/requests.json").read_text(encoding="utf-8")))
    schemas = document["components"].setdefault("schemas", {})
    replies = json.loads((root / "openapi/replies.json").read_text(encoding="utf-8"))
    assert not set(schemas) & set(replies), f"from the program: {set(schemas) & set(replies)}"
    schemas.update(replies)
    document["x-error-codes"] = error_codes((root / "docs/errors.md").read_text(encoding="utf-8"))
    assert set(document["x-error-codes"]) == set(schemas["ErrorCode"]["enum"])
    return lines("", document) + "\n"


def main():
    arguments, program = sys.argv[1:], None
    check = "--check" in arguments
    arguments = [a for a in arguments if a != "--check"]
    if "--program" in arguments:
        at = arguments.index("--program")
        program = arguments[at + 1]
        del arguments[at : at + 2]
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).resolve().parents[2])
    made_of, wrong = {}, 0
    if program is not None:
        contract = json.loads(subprocess.run([program], check=True, capture_output=True).stdout)
        made_of = {"requests": lambda: requests_of(contract), "replies": lambda: replies_of(contract)}
    for name, make in {**made_of, "baton": lambda: made(root)}.items():
        path, text = root / f"openapi/{name}.json", make()
        if not check:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            print(f"openapi/{name}.json is not what it is made from; run tests/tools/openapi_json.py --program PRINT_CONTRACT")
            wrong = 1
    return wrong


sys.exit(main())
