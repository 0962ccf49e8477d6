"""openapi/baton.json and the program say the same: routes, members, query members, error codes.
docs/errors.md has every error code, with the program's status and retryability, in its table and in
a section of its own.
Usage: check_contract.py PRINT_CONTRACT BATON_JSON ERRORS_MD"""

import json
import re
import subprocess
import sys


def described(document):
    """(path, METHOD) -> (operationId, members, query, strict, body, role)"""
    rows = {}
    for path, item in document["paths"].items():
        for method, op in item.items():
            if method == "parameters":
                continue
            body = op.get("requestBody", {}).get("content", {}).get("application/json", {})
            schema = body.get("schema", {})
            query = [p["name"] for p in op.get("parameters", []) if p.get("in") == "query"]
            strict = schema.get("additionalProperties") is False
            security = op.get("security", document["security"])
            role = security[0]["key"][0] if security else "page" if "pages" in op["tags"] else "health"
            rows[path, method.upper()] = (op["operationId"], set(schema.get("properties", {})),
                                          set(query), strict, body, role)
    return rows


def merged(routes):
    """Rows of one path and method, which the body tells apart, are one operation in the document."""
    by_key = {}
    for route in routes:
        first = by_key.setdefault((route["path"], tuple(route["methods"])), route)
        for kind in "members", "query":
            first[kind] += [name for name in route[kind] if name not in first[kind]]
    return list(by_key.values())


def errors_wrong(text, program):
    """What docs/errors.md has otherwise than the program."""
    expected = {e["code"]: (str(e["status"]), e["retryable"]) for e in program}
    rows = re.findall(r"(?m)^\| \[`(\w+)`\]\(#(\w+)\) \| (\d+) \| (yes|no) \|", text)
    table = [(code, (status, retry == "yes")) for code, _, status, retry in rows]
    heads = re.findall(r"(?m)^## (\w+)\n\n(\d+), (not )?retryable\. ", text)
    sections = [(code, (status, not no)) for code, status, no in heads]
    for where, found in (("table", table), ("sections", sections)):
        names = [code for code, _ in found]
        yield from (f"docs/errors.md: {code} is not among the {where}" for code in expected if code not in names)
        yield from (f"docs/errors.md: {code} is among the {where} more than once"
                    for code in set(names) if names.count(code) > 1)
        for code, facts in found:
            if code not in expected:
                yield f"docs/errors.md: {code} is among the {where}, and the program has no such code"
            elif facts != expected[code]:
                yield f"docs/errors.md: {code} is {facts} among the {where}, {expected[code]} in the program"
    yield from (f"docs/errors.md: {code} links to #{link}" for code, link, _, _ in rows if code != link)


def main():
    program = json.loads(subprocess.run([sys.argv[1]], check=True, capture_output=True).stdout)
    with open(sys.argv[2], encoding="utf-8") as f:
        document = json.load(f)
    rows = described(document)
    wrong, seen, operations = [], set(), set()
    for route in merged(program["routes"]):
        methods = [m for m in route["methods"] if m != "HEAD"]
        for i, method in enumerate(methods):
            key = route["path"], method
            seen.add(key)
            if key not in rows:
                wrong.append(f"{key}: in the program, not in the document")
                continue
            operation, members, query, strict, body, role = rows[key]
            want = route["operation"] + ("" if i == 0 else method.capitalize())
            for what, found, wanted in (("operationId", operation, want),
                                        ("members", members, set(route["members"])),
                                        ("query", query, set(route["query"])),
                                        ("security", role, route["role"])):
                if found != wanted:
                    wrong.append(f"{key}: {what} {found} in the document, {wanted} in the program")
            if members and strict != route["strict"]:
                wrong.append(f"{key}: additionalProperties: false must say that it is strict")
            if members and "example" not in body:
                wrong.append(f"{key}: its body has no example")
            if members and set(body.get("example", {})) - members:
                wrong.append(f"{key}: the example has members that the route does not take")
            if operation in operations:
                wrong.append(f"{key}: operationId {operation} is used twice")
            operations.add(operation)
    wrong += [f"{key}: in the document, not in the program" for key in set(rows) - seen]
    codes = set(document["components"]["schemas"]["ErrorCode"]["enum"])
    of_program = {e["code"] for e in program["codes"]}
    if codes != of_program:
        wrong.append(f"error codes differ: {codes ^ of_program}")
    with open(sys.argv[3], encoding="utf-8") as f:
        wrong += errors_wrong(f.read(), program["codes"])
    for line in wrong:
        print(line)
    print(f"{len(seen)} operations, {len(codes)} error codes, {len(wrong)} differences")
    return 1 if wrong or not seen else 0


sys.exit(main())
