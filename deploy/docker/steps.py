#!/usr/bin/env python3
"""The steps of the Dockerfile as lines for deploy/test-clean.sh: STEP, NAME and ARGUMENT, separated by tabs. The
stages are named docker-0, docker-1, …; FROM makes a root, COPY is a command that runs outside of it, RUN one that
runs inside, in the folder and with the variables of its stage. ENTRYPOINT and its like are not steps.
Usage: steps.py SOURCE
"""
import pathlib
import re
import shlex
import sys

BASE = "debian:12-slim"
IGNORED = ("USER", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT")


def lines_of(path):
    text = re.sub(r"\\\n", " ", path.read_text())
    return [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]


def main():
    source = pathlib.Path(sys.argv[1])
    stages, name, folder, variables = {}, None, "/", ""
    for word, rest in lines_of(source / "Dockerfile"):
        if word == "FROM":
            base, *alias = rest.split(" AS ")
            assert base == BASE, base
            name, folder, variables = f"docker-{len(stages)}", "/", ""
            stages[alias[0] if alias else ""] = name
            print("FROM", name, base, sep="\t")
        elif word == "WORKDIR":
            folder = rest
        elif word in ("ENV", "ARG"):
            variables += f"export {rest}; "
        elif word == "RUN":
            print("RUN", name, f"mkdir --parents {folder} && cd {folder} && {variables}{rest}", sep="\t")
        elif word == "COPY":
            *given, to = shlex.split(rest)
            to = "$W/" + name + str(pathlib.PurePosixPath(folder, to))
            if given[0].startswith("--from="):
                origin = f'"$W/{stages[given[0].removeprefix("--from=")]}"{given[1]}'
                command = f'mkdir --parents "{to}" && cp --recursive {origin}{"." if origin[-1] == "/" else ""} "{to}"'
            elif given == ["."]:  # what .dockerignore leaves
                command = (f'mkdir --parents "{to}" && tar --create --exclude="./.*" --exclude=./build '
                           f'--exclude=./tests --exclude=__pycache__ . | tar --extract --directory "{to}" && '
                           f'install -D tests/tools/configuration_doc.py "{to}/tests/tools/configuration_doc.py"')
            else:
                command = f'install -D {given[0]} "{to}"'
            print("COPY", name, command, sep="\t")
        else:
            assert word in IGNORED, word
    return 0


if __name__ == "__main__":
    sys.exit(main())
