#!/usr/bin/env python3
"""The tables of members in docs/, from openapi/requests.json and openapi/replies.json. Each stands between
  <!-- members of POST /v1/pause -->                      of the body of a route
  <!-- members of POST /v1/generate replay_layout -->     or of an object in it
  <!-- members of Pause -->                               of a part of replies
and
  <!-- end of members -->
Usage: tests/tools/members_doc.py [--check] [ROOT]
  writes the tables; --check compares instead
"""

import json
import pathlib
import re
import sys

BLOCK = re.compile(r"(?ms)^(<!-- members of (?:([A-Z]+) )?(\S+)(?: (\w+))? -->\n).*?^(<!-- end of members -->)$")
LIMITS = (("minimum", "maximum", ""), ("minLength", "maxLength", " characters"), ("minItems", "maxItems", " elements"),
          ("minProperties", "maxProperties", " members"))


def code(value):
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def type_of(schema, tells_null):
    """In words; the values instead, where only those are allowed. @tells_null  in a request null is as good as
    absent; in a reply it tells something"""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "oneOf" in schema:
        return " or ".join(type_of(s, tells_null) for s in reversed(schema["oneOf"]))
    if "const" in schema:
        return code(schema["const"])
    kinds = schema.get("type", "any")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    null = ["null"] * (tells_null and "null" in kinds)
    if "enum" in schema:
        return ", ".join([code(value) for value in schema["enum"] if value is not None] + null)
    text = " or ".join([kind for kind in kinds if kind != "null"] + null)
    items = schema.get("items") or schema.get("additionalProperties")
    return f"{text} of: {type_of(items, True)}" if isinstance(items, dict) else text


def limits_of(schema, required):
    facts = ["required"] if required else []
    if "exclusiveMinimum" in schema:
        facts.append(f"above {schema['exclusiveMinimum']}")
    for low, high, unit in LIMITS:
        if low in schema and high in schema:
            facts.append(f"{schema[low]} to {schema[high]}{unit}")
        elif low in schema:
            facts.append(f"{schema[low]}{unit} or more")
        elif high in schema:
            facts.append(f"at most {schema[high]}{unit}")
    if "default" in schema:
        facts.append(f"default {code(schema['default'])}")
    return "; ".join(facts)


def sentence(text):
    return (text[0].upper() + text[1:]).rstrip(".").replace("|", "\\|") + "." if text else ""


def table(schema, is_reply):
    yield "| member | type | meaning |" if is_reply else "| member | type | limits | meaning |"
    yield "| --- | --- | --- |" if is_reply else "| --- | --- | --- | --- |"
    for name, member in schema["properties"].items():
        cells = [f"`{name}`", type_of(member, is_reply), sentence(member.get("description", ""))]
        if not is_reply:
            cells.insert(2, limits_of(member, name in schema.get("required", ())))
        yield re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(cells)} |")


def made(text, requests, replies):
    def block(found):
        begin, method, path, member, end = found.groups()
        schema = requests[path][method.lower()]["body"] if method else replies[path]
        lines = table(schema["properties"][member] if member else schema, method is None)
        return begin + "\n".join(lines) + "\n" + end

    return BLOCK.subn(block, text)


def main():
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).resolve().parents[2])
    requests, replies = (json.loads((root / f"openapi/{name}.json").read_text(encoding="utf-8"))
                         for name in ("requests", "replies"))
    n_all = wrong = 0
    for path in sorted((root / "docs").glob("*.md")):
        found = path.read_text(encoding="utf-8")
        text, n = made(found, requests, replies)
        n_all += n
        if n != found.count("<!-- members of"):
            print(f"{path.name}: {n} of {found.count('<!-- members of')} tables of members have their end")
            return 1
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif found != text:
            print(f"docs/{path.name} is not what openapi/requests.json and replies.json give; run tests/tools/members_doc.py")
            wrong = 1
    return 0 if n_all > 0 and not wrong else 1


sys.exit(main())
