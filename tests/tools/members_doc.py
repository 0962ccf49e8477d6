#!/usr/bin/env python3
"""The tables of members in docs/protocol.md, from openapi/requests.json. Each stands between
  <!-- members of POST /v1/pause -->                      of the body of a route
  <!-- members of POST /v1/generate replay_layout -->     or of an object in it
and
  <!-- end of members -->
Usage: tests/tools/members_doc.py [--check] [ROOT]
  writes the tables; --check compares instead
"""

import json
import pathlib
import re
import sys

DOCUMENT = "docs/protocol.md"
BLOCK = re.compile(r"(?ms)^(<!-- members of ([A-Z]+) (\S+)(?: (\w+))? -->\n).*?^(<!-- end of members -->)$")
LIMITS = (("minimum", "maximum", ""), ("minLength", "maxLength", " characters"), ("minItems", "maxItems", " elements"),
          ("minProperties", "maxProperties", " members"))


def code(value):
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def type_of(schema):
    """In words; the values instead, where only those are allowed."""
    if "enum" in schema:
        return ", ".join(code(value) for value in schema["enum"] if value is not None)
    kinds = schema.get("type", "any")
    text = " or ".join(kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null")
    items = schema.get("items") or schema.get("additionalProperties")
    return f"{text} of: {type_of(items)}" if isinstance(items, dict) else text


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


def table(schema):
    yield "| member | type | limits | meaning |"
    yield "| --- | --- | --- | --- |"
    for name, member in schema["properties"].items():
        cells = (f"`{name}`", type_of(member), limits_of(member, name in schema.get("required", ())),
                 sentence(member.get("description", "")))
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |")


def made(text, requests):
    def block(found):
        begin, method, path, member, end = found.groups()
        schema = requests[path][method.lower()]["body"]
        return begin + "\n".join(table(schema["properties"][member] if member else schema)) + "\n" + end

    return BLOCK.subn(block, text)


def main():
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).resolve().parents[2])
    path = root / DOCUMENT
    found = path.read_text(encoding="utf-8")
    text, n = made(found, json.loads((root / "openapi/requests.json").read_text(encoding="utf-8")))
    if n == 0 or n != found.count("<!-- members of"):
        print(f"{DOCUMENT}: {n} of {found.count('<!-- members of')} tables of members have their end")
        return 1
    if "--check" not in sys.argv:
        path.write_text(text, encoding="utf-8")
    elif found != text:
        print(f"{DOCUMENT} is not what openapi/requests.json gives; run tests/tools/members_doc.py")
        return 1
    return 0


sys.exit(main())
