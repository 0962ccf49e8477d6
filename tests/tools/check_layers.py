#!/usr/bin/env python3
"""The layers of the tree, checked: which room may include which, and which files may use which library.

A room may include only itself and the rooms above it in the table "Rooms" of ARCHITECTURE.md. A folder
of handlers/ may include handlers/, those of SHARED and itself, and no other folder of
handlers/. The same holds for the functions that they call: BUILD is the folder of the object files. A folder
of any other room includes and calls only those before it in the row of its room, and the files of the room that are
in no folder; those come first, or last in a room of FILES_LAST. A private header, *_priv.h, may be included in its
own room only. Files that call each other in a circle are counted for each room.

A build without the engine leaves out what ARCHITECTURE.md says: other files may include nothing of it, and call only what
the files in its place define too. BUILD may be such a build: then its program is checked, for symbols of what is left out.

Usage: tests/tools/check_layers.py [ROOT [BUILD]]"""
import os
import pathlib
import re
import subprocess
import sys

SHARED = ("rows", "source", "batch")  # folders of handlers/ that the others may include
FILES_MAX = 40  # sources and headers in one folder

# Files in each circle of calls that has more than CIRCLE_MAX, by room. Other circles are small ones.
CIRCLE_MAX = 2
CIRCLES = {
    "weights": [10, 5, 3], "text": [8, 5, 3], "http": [9], "control": [3], "fleet": [5, 3, 3],
    "handlers": [5, 3], "server": [7],
}

# Rooms whose files in no folder come after those of its folders: they use them.
FILES_LAST = ("text", "fleet", "server")

# Functions of a folder that are called from one before it in the row of their room.
CALLED_BEFORE = {
    ("engine/generation.c", "engine/lora/adapter_use.c"),
    ("engine/kernels/attention.c", "engine/model/kv.c"),
    ("weights/value_check.c", "weights/update/host_copy.c"),
}

# Headers that are included from a folder before theirs. In fleet/ the control plane is one struct.
INCLUDED_BEFORE = {
    ("engine/generation.c", "engine/lora/adapter_use.h"),
    ("engine/kernels/attention.h", "engine/model/model.h"),
    ("weights/tally.c", "weights/update/update_priv.h"),
    ("weights/value_check.c", "weights/update/host_copy.h"),
    ("fleet/calls/fleet_control.h", "fleet/proof/fleet_proof.h"),
    ("fleet/calls/fleet_priv.h", "fleet/handoff/window_readers.h"),
    ("fleet/calls/fleet_priv.h", "fleet/proof/fleet_proof.h"),
    ("fleet/calls/fleet_priv.h", "fleet/update/fleet_coverage.h"),
    ("fleet/calls/fleet_priv.h", "fleet/update/fleet_session.h"),
    ("fleet/calls/fleet_priv.h", "fleet/update/fleet_update.h"),
    ("fleet/calls/fleet_priv.h", "fleet/want/fleet_pause.h"),
    ("fleet/calls/fleet_priv.h", "fleet/want/fleet_reconcile.h"),
    ("fleet/want/fleet_cache.c", "fleet/update/fleet_update_priv.h"),
    ("fleet/want/fleet_cache.h", "fleet/update/fleet_session.h"),
}

# Header -> the only places that may include it.
LIBRARIES = {
    "microhttpd.h": ("http/server/",),
    "gnutls/gnutls.h": ("http/server/",),
    "curl/curl.h": ("http/client/", "client/"),
    "cuda.h": ("driver/",),
    "nccl.h": ("driver/",),
    "zstd.h": ("weights/delta/",),
    "zstd_errors.h": ("weights/delta/",),
    "dlfcn.h": ("driver/", "http/server/http_server_library.c", "http/server/http_server_chunks.c"),
    "jansson.h": ("base/json_parse", "text/", "weights/", "http/client/", "transport/", "engine/",
                  "fleet/api/", "handlers/", "cli/", "server/config/", "server/main.c"),
    "fleet/api/api_json.h": ("fleet/api/", "handlers/"),
}


def rooms_of(architecture):
    """The rooms, in the order of the table: | `base/` | ..."""
    return re.findall(r"(?m)^\| `([a-z]+)/` \|", architecture.read_text())


def left_out_of(root):
    """(folders and files that a build without the engine leaves out, the files in their place)."""
    text = " ".join((root / "ARCHITECTURE.md").read_text().split())
    lists = re.search(r"Left out are (.*?)\. In their place is (.*?):", text).groups()
    return tuple(tuple(re.findall(r"`([\w/.]+)`", names)) for names in lists)


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


def folders_of(architecture, room):
    """The folders of a room in the order of its row."""
    row = re.search(rf"(?m)^\| `{room}/` \|.*$", architecture.read_text()).group()
    return re.findall(r"`([a-z]+)/`", row)[1:]


def calls_of(root, rooms, build):
    """{source: {source that defines a symbol that it needs: symbols}}, of the object files below `build`."""
    defined, needed, calls = {}, [], {}
    paths = [path for room in rooms for path in sorted((build / room).rglob("*.o"))]
    for line in subprocess.run(["nm", "-A", *paths], capture_output=True, text=True, check=True).stdout.splitlines():
        path, rest = line.split(":", 1)
        folder, _, inside = str(pathlib.Path(path).relative_to(build)).partition("CMakeFiles/")
        source = folder + inside.split("/", 1)[1].removesuffix(".o")
        if not (root / source).exists():
            continue  # an old build's
        *_, kind, symbol = rest.split()
        if kind == "U":
            needed.append((source, symbol))
        elif kind.isupper():
            defined[symbol] = source
    assert defined, f"no objects in {build}"
    for source, symbol in needed:
        target = defined.get(symbol, source)
        if target != source:
            calls.setdefault(source, {}).setdefault(target, []).append(symbol)
    return calls


def is_before(folders, file, other):
    """Has `other` its place in their room after that of `file`? @folders  {room: its folders, in their order}"""
    room = file.split("/")[0]

    def place(path):
        folder = path.split("/")[1:-1]
        return folders[room].index(folder[0]) if folder else len(folders[room]) if room in FILES_LAST else -1
    return room in folders and other.split("/")[0] == room and place(file) < place(other)


def may_call(rooms, folders, source, target):
    return may_include(rooms, source, target) and (
        not is_before(folders, source, target) or (source, target) in CALLED_BEFORE)


def circles_of(calls):
    """Sets of files of which each calls each other, over others of the set too (Tarjan)."""
    numbers, lowest, stack, circles = {}, {}, [], []

    def visit(file):
        numbers[file] = lowest[file] = len(numbers)
        stack.append(file)
        for target in calls.get(file, ()):
            if target not in numbers:
                visit(target)
            if target in stack:
                lowest[file] = min(lowest[file], lowest[target])
        if lowest[file] == numbers[file]:
            circle = stack[stack.index(file):]
            del stack[stack.index(file):]
            if len(circle) > 1:
                circles.append(sorted(circle))

    for file in sorted(calls):
        if file not in numbers:
            visit(file)
    return circles


def order_of(root, rooms):
    """({room: its folders, in the order of its row}, [what is wrong with the rows])."""
    folders, wrong = {}, []
    for room in rooms:
        own = {path.name for path in (root / room).iterdir() if path.is_dir()}
        if room == "handlers":
            continue  # its folders are equal
        listed = folders_of(root / "ARCHITECTURE.md", room)
        missing = own ^ set(listed)
        if missing:
            wrong.append(f"{room}/: its row in ARCHITECTURE.md and its folders differ in {', '.join(sorted(missing))}")
        else:
            folders[room] = listed
    return folders, wrong


def check_left_out(root, calls):
    """Calls into what a build without the engine leaves out."""
    left_out, in_place = left_out_of(root)
    words = set(re.findall(r"\w+", "".join((root / file).read_text() for file in in_place)))
    return [f"{source}: {symbol}() of {target} is left out without the engine, and not in {' or '.join(in_place)}"
            for source, targets in sorted(calls.items()) if not source.startswith(left_out)
            for target, symbols in sorted(targets.items()) if target.startswith(left_out)
            for symbol in symbols if symbol not in words]


def source_of(root, path):
    """The path of a source below `root`, by its end: a compiler's cache may have the object of another tree."""
    parts = pathlib.PurePath(os.path.normpath(path)).parts
    ends = ("/".join(parts[i:]) for i in range(1, len(parts)))
    return next((end for end in ends if (root / end).is_file()), None)


def check_program(root, program):
    """Has the program of a build without the engine a symbol, static ones too, of what it leaves out?"""
    left_out, _ = left_out_of(root)
    out = subprocess.run(["nm", "-l", "--defined-only", program], capture_output=True, text=True, check=True).stdout
    symbols = re.findall(r"(?m)^\w+ \w (\S+)\t(\S+):\d+$", out)
    places = [(symbol, path) for symbol, path in ((symbol, source_of(root, path)) for symbol, path in symbols) if path]
    wrong = [f"{program.name}: {symbol} of {path}, which is left out" for symbol, path in places if path.startswith(left_out)]
    wrong += [f"{program.name}: it has no symbol of {room}/" for room in ("base", "weights", "fleet", "server")
              if not any(path.startswith(f"{room}/") for _, path in places)]
    print(f"{len(places)} symbols of {program.name} checked, which has no engine")
    return wrong


def check_calls(root, rooms, folders, build):
    calls = calls_of(root, rooms, build)
    wrong = [f"{source}: may not call {', '.join(symbols)}() of {target}"
             for source, targets in sorted(calls.items()) for target, symbols in sorted(targets.items())
             if not may_call(rooms, folders, source, target)]
    wrong += check_left_out(root, calls)
    sizes = {}
    for circle in circles_of(calls):
        if len(circle) > CIRCLE_MAX:
            sizes.setdefault(circle[0].split("/")[0], []).append(circle)
    for room in sorted(set(sizes) | set(CIRCLES)):
        found = sorted(sizes.get(room, []), key=len, reverse=True)
        if [len(circle) for circle in found] != CIRCLES.get(room, []):
            wrong.append(f"{room}/: circles of {[len(circle) for circle in found]} files call each other, CIRCLES has "
                         f"{CIRCLES.get(room, [])}: " + "; ".join(", ".join(circle) for circle in found))
    return wrong


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    root = root if root.is_dir() else root.parents[2]
    rooms = rooms_of(root / "ARCHITECTURE.md")
    folders, wrong = order_of(root, rooms)
    before, per_folder, n_files = set(), {}, 0
    left_out, in_place = left_out_of(root)
    wrong += [f"ARCHITECTURE.md: {name} is not there" for name in left_out + in_place if not (root / name).exists()]
    for room in rooms:
        for path in sorted((root / room).rglob("*")):
            if path.suffix not in (".c", ".h", ".cu"):
                continue
            n_files += 1
            per_folder[path.parent] = per_folder.get(path.parent, 0) + 1
            file = str(path.relative_to(root))
            if file.startswith("fleet/") and not file.startswith("fleet/api/") and "json_t" in path.read_text():
                wrong.append(f"{file}: only fleet/api/ may use json_t, the rest of fleet/ its structs")
            for included in re.findall(r'(?m)^#include [<"]([^>"]+)[>"]', path.read_text()):
                if not may_include(rooms, file, included):
                    wrong.append(f"{file}: its room may not include {included}")
                if included.startswith(left_out) and not file.startswith(left_out):
                    wrong.append(f"{file}: {included} is left out without the engine")
                if is_before(folders, file, included):
                    before.add((file, included))
                places = LIBRARIES.get(included)
                if places is not None and not file.startswith(places):
                    wrong.append(f"{file}: only {', '.join(places)} may include {included}")
    wrong += [f"{file}: it may not include {included}, which is in a later folder"
              for file, included in sorted(before - INCLUDED_BEFORE)]
    wrong += [f"INCLUDED_BEFORE: {file} does not include {included} any more"
              for file, included in sorted(INCLUDED_BEFORE - before)]
    wrong += [f"{folder.relative_to(root)}/: {n} files, {FILES_MAX} are allowed"
              for folder, n in sorted(per_folder.items()) if n > FILES_MAX]
    if len(sys.argv) > 2:
        build = pathlib.Path(sys.argv[2])
        is_whole = (build / "engine").exists()
        wrong += check_calls(root, rooms, folders, build) if is_whole else check_program(root, build / "baton")
    if len(rooms) < 2 or n_files == 0:
        wrong.append("no rooms or no files were found")
    print("\n".join(wrong + [f"{len(rooms)} rooms, {n_files} files checked"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
