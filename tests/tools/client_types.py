#!/usr/bin/env python3
"""client/baton/types.py, the types of the Python client, from openapi/baton.json: its components, but for
those of SGLang's form, and the members of requests that a function of the client takes as a dict.
Usage: tests/tools/client_types.py [--check] [ROOT]
  writes types.py; --check compares instead
"""

import json
import keyword
import pathlib
import sys
import textwrap

NOT_OURS = "Sglang"
TAKEN = {  # name: the route, and the member of its body
    "SamplingParams": ("/v1/generate", "sampling_params"),
    "ReplayLayout": ("/v1/generate", "replay_layout"),
    "RolloutStep": ("/v1/rollouts", "steps"),
}
SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
WIDTH = 100

HEAD = '''\
"""What servers answer, and what some arguments contain, as types. Made from openapi/baton.json by
tests/tools/client_types.py; openapi/baton.yaml says what each member means.

    status: baton.types.Status = baton.request(url, "GET", "/v1/status")

A reply may have more members than these: those of a newer server. Members that not every such reply
has are optional here."""

from __future__ import annotations

from typing import Any, Dict, List, Literal, Optional, TypedDict, Union
'''


def title(member):
    return "".join(word.capitalize() for word in member.split("_"))


def kinds_of(schema):
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else kinds


def union(types):
    """One of these, each once; null last."""
    types = list(dict.fromkeys(types))
    if "Any" in types:
        return "Any"
    some = [t for t in types if t != "None"]
    one = some[0] if len(some) == 1 else f"Union[{', '.join(some)}]" if some else "None"
    return f"Optional[{one}]" if some and "None" in types else one


class Types:
    """The definitions, in an order in which each can be evaluated."""

    def __init__(self, components):
        self._components = components
        self.classes, self.aliases, self.names = [], [], set()

    def component(self, name):
        schema = self._components[name]
        if "properties" in schema:
            self.add(name, schema)
        else:
            self.aliases.append((name, self.type_of(schema, name)))

    def add(self, name, schema):
        """A class, after those of its members."""
        assert name not in self.names, f"two types are called {name}"
        self.names.add(name)
        types = {m: self.type_of(s, name + title(m)) for m, s in schema["properties"].items()}
        required = [m for m in types if m in schema.get("required", [])]
        self.classes.append((name, types, required))

    def type_of(self, schema, name):
        if "$ref" in schema:
            other = schema["$ref"].rpartition("/")[2]
            found = self._components[other]
            null = "properties" in found and "null" in kinds_of(found)
            return f"Optional[{other}]" if null else other
        if "const" in schema or "enum" in schema:
            values = schema.get("enum", [schema.get("const")])
            some = ", ".join(json.dumps(v) if isinstance(v, str) else repr(v) for v in values if v is not None)
            return union([f"Literal[{some}]"] + ["None"] * (None in values))
        if "oneOf" in schema:
            return union(self.type_of(s, name + "Object") for s in schema["oneOf"])
        return union(self.of_kind(kind, schema, name) for kind in kinds_of(schema)) if kinds_of(schema) else "Any"

    def of_kind(self, kind, schema, name):
        if kind == "array":
            return f"List[{self.type_of(schema.get('items', {}), name + 'Item')}]"
        if kind != "object":
            return SIMPLE[kind]
        if "properties" in schema:
            self.add(name, schema)
            return name
        more = schema.get("additionalProperties")
        return f"Dict[str, {self.type_of(more, name) if isinstance(more, dict) else 'Any'}]"


def wrapped(text):
    """Of one statement; its breaks are within brackets."""
    return textwrap.fill(text, WIDTH, subsequent_indent=" " * (len(text) - len(text.lstrip()) + 4),
                         break_long_words=False, break_on_hyphens=False)


def put_class(name, types, required):
    if any(keyword.iskeyword(member) for member in types):  # a class cannot have it
        assert not required
        pairs = ", ".join(f'"{m}": {t}' for m, t in types.items())
        yield "\n\n" + wrapped(f'{name} = TypedDict("{name}", {{{pairs}}}, total=False)')
        return
    base = "TypedDict"
    if required and len(required) < len(types):
        yield f"\n\nclass _{name}(TypedDict):"
        yield from (wrapped(f"    {m}: {types[m]}") for m in required)
        base = f"_{name}"
    total = len(required) == len(types)
    yield f"\n\nclass {name}({base}{'' if total else ', total=False'}):"
    rest = types if total else [m for m in types if m not in required]
    yield from (wrapped(f"    {m}: {types[m]}") for m in rest)


def made(document):
    components = document["components"]["schemas"]
    types = Types(components)
    for name in components:
        if not name.startswith(NOT_OURS):
            types.component(name)
    for name, (path, member) in TAKEN.items():
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        schema = content["schema"]["properties"][member]
        schema = schema.get("items", schema)
        # A member without a type is one that is refused.
        schema = dict(schema, properties={m: s for m, s in schema["properties"].items() if "type" in s})
        types.add(name, schema)
    lines = [HEAD.rstrip("\n")]
    for row in types.classes:
        lines.extend(put_class(*row))
    lines.append("\n")
    lines.extend(wrapped(f"{name} = {text}") for name, text in types.aliases)
    return "\n".join(lines) + "\n"


def main():
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).resolve().parents[2])
    text = made(json.loads((root / "openapi/baton.json").read_text(encoding="utf-8")))
    path = root / "client/baton/types.py"
    if "--check" not in sys.argv:
        path.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        print("client/baton/types.py is not what openapi/baton.json gives; run tests/tools/client_types.py")
        return 1
    return 0


sys.exit(main())
