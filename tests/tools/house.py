#!/usr/bin/env python3
"""How large the house is, in figures that a change may move: they are reported, nothing is checked.

- Lines of C, headers and CUDA, by room. Tables are counted apart: rows of `#define NAME(X)`, and the lines of an array
  of constants but its first.
- `json_t` in rooms that should not know JSON.
- Public functions, by the files that need them: of the object files of BUILD (a folder; without it they are left out).
- Lists of JSON members that are kept by hand: arrays of names (also those whose strings
  are members in openapi/baton.yaml), and calls of readers of one member (`body_*`, `query_*`).
- Lines of openapi/baton.yaml, less those between "# generated" and "# end of generated".
- Static functions with a name that another file has too.
- Casts that remove const: by way of uintptr_t, as -Wcast-qual allows no other.

Usage: tests/tools/house.py [ROOT [BUILD]]"""
import collections
import pathlib
import re
import subprocess
import sys

SUFFIXES = (".c", ".h", ".cu")
MAY_KNOW_JSON = ("http/", "handlers/", "fleet/api/")
LIST_NAME = re.compile(r"(?:^|_)(?:members|query|translated)$")
ARRAY = re.compile(r"\bconst char \*(?:const )?(\w+)\[\w*\] = \{([^}]*)\}")
READER = re.compile(r"\b(?:body|query)_(?:str|text|bool|u64|u32|i64|f64|array|object|required|given)\(")
LIST_CHECK = re.compile(r"\bbody_only(?:_of)?\(|\bbody_query_only\(|\bdialect_note_unknown\(")
STATIC = re.compile(r"(?m)^static (?:__attribute__\(\(\w+\)\) )?[^=;{}()]*?\b(?!__attribute__)(\w+)\([^;{}]*\)\s*\{")
PUBLIC = re.compile(r"(?m)^(?!static|typedef|extern|#)[a-z][^=;{}()]*?\b(\w+)\([^;{}]*\)\s*\{")
CONST_CAST = re.compile(r"\((?!const )([\w ]+) \*+\)\(uintptr_t\)")


def rooms_of(root):
    """The rooms, in the order of the table: | `base/` | ..."""
    return re.findall(r"(?m)^\| `([a-z]+)/` \|", (root / "ARCHITECTURE.md").read_text())


def table_lines(text):
    """How many lines are rows of a table."""
    n, is_row = 0, None  # None: in no table
    for line in text.splitlines():
        if is_row is None:
            if re.match(r"#define \w+\(X\).*\\$", line):
                is_row = lambda row: row.endswith("\\")
            elif "};" not in line and re.match(r"(?!#).*\bconst\b.*\[\w*\] = \{", line):
                is_row = lambda row: "};" not in row
            continue
        n += 1
        if not is_row(line):
            is_row = None
    return n


def functions_of(build, rooms):
    """{public function: files of other objects that need it}, {public function: its own file}."""
    paths = [path for folder in (*rooms, "CMakeFiles/baton.dir") for path in sorted((build / folder).rglob("*.o"))]
    lines = subprocess.run(["nm", "-A", *paths], capture_output=True, text=True, check=True).stdout.splitlines()
    own, needed = {}, collections.defaultdict(set)
    for line in lines:
        path, rest = line.split(":", 1)
        folder, _, inside = str(pathlib.Path(path).relative_to(build)).partition("CMakeFiles/")
        *_, kind, symbol = rest.split()
        file = folder + inside.split("/", 1)[1].removesuffix(".o")
        if kind == "T" and symbol != "main":
            own[symbol] = file
        elif kind == "U":
            needed[symbol].add(file)
    assert own, f"no objects in {build}"
    return {symbol: needed[symbol] - {file} for symbol, file in own.items()}, own


def show(title, rows):
    """Rows of a name and numbers, aligned."""
    print(f"\n{title}")
    for name, *numbers in rows:
        print(f"  {name:<58}" + "".join(f"{number:>9,}" for number in numbers))


def show_lines(sources, rooms):
    rows = []
    for room in rooms:
        texts = [text for file, text in sources.items() if file.startswith(room + "/")]
        n_lines, n_rows = sum(len(text.splitlines()) for text in texts), sum(map(table_lines, texts))
        rows.append((room + "/", len(texts), n_lines - n_rows, n_rows, n_lines))
    rows.append(("all", *(sum(row[i] for row in rows) for i in range(1, 5))))
    show("Product: files, lines without tables, lines of tables, lines", rows)


def show_json(sources):
    found = {file: len(re.findall(r"\bjson_t\b", text)) for file, text in sources.items()
             if not file.startswith(MAY_KNOW_JSON)}
    rooms = collections.Counter()
    for file, n in found.items():
        rooms[file.split("/")[0] + "/"] += n
    show(f"json_t outside of {', '.join(MAY_KNOW_JSON)}",
         [*((room, n) for room, n in sorted(rooms.items()) if n), ("all", sum(found.values()))])


def show_functions(build, rooms):
    needed, own = functions_of(build, rooms)
    show("Public functions, by other files of the product that need them", [
        ("all", len(needed)),
        ("by none (tests only, or a table)", sum(not files for files in needed.values())),
        ("by one file only", sum(len(files) == 1 for files in needed.values())),
        ("by another room", sum(any(file.split("/")[0] != own[symbol].split("/")[0] for file in files)
                                for symbol, files in needed.items()))])


def member_arrays(text, members):
    """The strings of each array of names of JSON members: its own name says so, or its strings do."""
    for name, inside in ARRAY.findall(text):
        words = re.findall(r'"([^"]*)"', inside)
        if LIST_NAME.search(name) or (words and sum(word in members for word in words) >= 0.8 * len(words)):
            yield words


def show_members(sources, openapi):
    rows, members = [], set(re.findall(r"\b([a-z_]\w*):", openapi) + re.findall(r"\bname: (\w+)", openapi))
    for folder in ("handlers/", "fleet/api/"):
        texts = [text for file, text in sources.items() if file.startswith(folder)]
        arrays = [words for text in texts for words in member_arrays(text, members)]
        rows += [(f"{folder}: arrays of names of members", len(arrays)),
                 (f"{folder}: names in them", sum(map(len, arrays)))]
    texts = [text for file, text in sources.items() if file.startswith("handlers/") and file.endswith(".c")]
    indented = "\n".join(line for text in texts for line in text.splitlines() if line.startswith(" "))
    rows += [("handlers/: calls of readers of one member", len(READER.findall(indented))),
             ("handlers/: checks of lists of members", len(LIST_CHECK.findall(indented)))]
    show("Names of JSON members, kept by hand", rows)


def show_openapi(openapi):
    lines, n_hand, generated = openapi.splitlines(), 0, False
    for line in lines:
        generated = generated or line.strip().startswith("# generated")
        n_hand += not generated
        if line.strip().startswith("# end of generated"):
            generated = False
    show("openapi/baton.yaml", [("lines", len(lines)), ("written by hand", n_hand)])


def show_names(sources):
    statics = [(name, file) for file, text in sources.items() for name in STATIC.findall(text)]
    public = {name for text in sources.values() for name in PUBLIC.findall(text)}
    files = collections.defaultdict(set)
    for name, file in statics:
        files[name].add(file)
    n_of = collections.Counter(name for name, _ in statics)
    most = sorted(files, key=lambda name: (-len(files[name]), name))[:5]
    show("Static functions", [
        ("all", len(statics)),
        ("whose name is that of another file's static function",
         sum(n for name, n in n_of.items() if len(files[name]) > 1)),
        ("whose name is that of a public function", sum(n for name, n in n_of.items() if name in public)),
        *((f"most files: {name}", len(files[name])) for name in most)])


def show_casts(sources):
    kinds = collections.Counter(kind for text in sources.values() for kind in CONST_CAST.findall(text))
    show("Casts by way of uintptr_t to what is not const (addresses as numbers among them)",
         [("to json_t", kinds["json_t"]), ("all", sum(kinds.values()))])


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]).resolve()
    rooms = rooms_of(root)
    sources = {str(path.relative_to(root)): path.read_text()
               for room in rooms for path in sorted((root / room).rglob("*")) if path.suffix in SUFFIXES}
    openapi = (root / "openapi/baton.yaml").read_text()
    show_lines(sources, rooms)
    show_json(sources)
    if len(sys.argv) > 2:
        show_functions(pathlib.Path(sys.argv[2]).resolve(), rooms)
    show_members(sources, openapi)
    show_openapi(openapi)
    show_names(sources)
    show_casts(sources)
    return 0


if __name__ == "__main__":
    sys.exit(main())
