#!/usr/bin/env python3
"""The layers of the tree, checked: which room may include which, and which files may use which library.

A room may include only itself and the rooms above it in the table "Rooms" of ARCHITECTURE.md. A folder
of handlers/ may include handlers/, handlers/source/, handlers/batch/ and itself, and no other folder of
handlers/. The same holds for the functions that they call: OBJECTS is the folder of their object files. A
private header, *_priv.h, may be included in its own room only. There are no exceptions.

Usage: tests/tools/check_layers.py [ROOT [OBJECTS]]"""
import pathlib
import re
import subprocess
import sys

SHARED = ("source", "batch")  # folders of handlers/ that the others may include
FILES_MAX = 40  # sources and headers in one folder

# Header -> the only places that may include it.
LIBRARIES = {
    "microhttpd.h": ("http/server/",),
    "gnutls/gnutls.h": ("http/server/",),
    "curl/curl.h": ("http/client/", "client/"),
    "cuda.h": ("driver/",),
    "nccl.h": ("driver/",),
    "dlfcn.h": ("driver/", "http/server/http_server_library.c"),
    "jansson.h": ("base/json_parse", "text/", "weights/", "http/client/", "transport/", "engine/",
                  "fleet/", "handlers/", "cli/", "server/config/", "server/main.c"),
}


def rooms_of(architecture):
    """The rooms, in the order of the table: | `base/` | ..."""
    return re.findall(r"(?m)^\| `([a-z]+)/` \|", architecture.read_text())


def may_include(rooms, file, included):
    room, target = file.split("/")[0], included.split("/")[0]
    if target not in rooms:
        return True  # a library, or a test's own
    if rooms.index(target) > rooms.index(room):
        return False
    if included.endswith("_priv.h") and room != target:
        return False
    here, there = file.split("/")[1:-1], included.split("/")[1:-1]
    return not (room == target == "handlers" and there and here[:1] != there[:1]
                and there[0] not in SHARED)


def links(root, objects):
    """(source, symbol) where an object of handlers/ needs a symbol of a folder that it may not include."""
    defined, needed = {}, []
    paths = [path for path in sorted(objects.rglob("*.o"))
             if (root / "handlers" / path.relative_to(objects).with_suffix("")).exists()]  # not an old build's
    for line in subprocess.run(["nm", "-A", *paths], capture_output=True, text=True, check=True).stdout.splitlines():
        path, rest = line.split(":", 1)
        source = pathlib.Path(path).relative_to(objects).with_suffix("")
        folder = source.parts[0] if len(source.parts) > 1 else ""
        *_, kind, symbol = rest.split()
        if kind == "U":
            needed.append((folder, "handlers" / source, symbol))
        elif kind.isupper():
            defined[symbol] = folder
    assert defined, f"no objects in {objects}"
    return [(source, symbol) for folder, source, symbol in needed
            if defined.get(symbol, "") not in ("", folder, *SHARED)]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    root = root if root.is_dir() else root.parents[2]
    rooms = rooms_of(root / "ARCHITECTURE.md")
    wrong, per_folder, n_files = [], {}, 0
    for room in rooms:
        for path in sorted((root / room).rglob("*")):
            if path.suffix not in (".c", ".h", ".cu"):
                continue
            n_files += 1
            per_folder[path.parent] = per_folder.get(path.parent, 0) + 1
            file = str(path.relative_to(root))
            for included in re.findall(r'(?m)^#include [<"]([^>"]+)[>"]', path.read_text()):
                if not may_include(rooms, file, included):
                    wrong.append(f"{file}: its room may not include {included}")
                places = LIBRARIES.get(included)
                if places is not None and not file.startswith(places):
                    wrong.append(f"{file}: only {', '.join(places)} may include {included}")
    wrong += [f"{folder.relative_to(root)}/: {n} files, {FILES_MAX} are allowed"
              for folder, n in sorted(per_folder.items()) if n > FILES_MAX]
    if len(sys.argv) > 2:
        wrong += [f"{source}: calls {symbol}() of another folder of handlers/"
                  for source, symbol in links(root, pathlib.Path(sys.argv[2]))]
    if len(rooms) < 2 or n_files == 0:
        wrong.append("no rooms or no files were found")
    print("\n".join(wrong + [f"{len(rooms)} rooms, {n_files} files checked"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
