#!/usr/bin/env python3
"""Runs the shell blocks of the documents, as they stand, and compares the output of transcripts.

The blocks of a document run one after the other, each by a bash of its own (-euo pipefail), in a copy
of the tree whose build/release/baton is the program under test. A `cd` holds for the rest of the
document, as in a terminal. A block must end with status 0. A comment before a block changes that:

    <!-- block: starts a server -->     the block does not end: it runs until the end of the document,
                                        and the next block waits until the server serves
    <!-- block: not run: REASON -->     printed in the table at the end

A block of type `console` is a transcript: lines after `$ ` are commands, and the lines between are
their output, which must be printed; their status is not looked at. In the output `…` is any text, and
a number before a unit of time or rate is any number, and seconds may be milliseconds. Blocks of Python are only compiled.

So that tests can run side by side, three things are replaced in the text of every block: each
port from 8700 to 8799 by a free one, /tmp by a new directory, the name baton-bucket of shared memory
by one of this process. The defaults of the program follow by BATON_LISTEN and BATON_URL.

Usage: docs_blocks.py BATON ROOT [DOCUMENT...]
"""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

DOCUMENTS = ("README.md", "docs/*.md", "examples/**/README.md", "client/README.md")
SHELL = ("sh", "bash", "shell", "console", "shell-session")
BLOCK_S_MAX = 120
START_S_MAX = 60
MARK = re.compile(r"<!-- block: (.*?) -->")
QUANTITY = re.compile(r"\d+(?:\.\d+)? (?=(?:[kKMGT]i?B/s|[KMGT]B/s|ms|s|min|h)\b)")
MILLISECONDS = re.compile(r"(?<=\d )ms\b")


class Failed(Exception):
    pass


def blocks_of(text):
    """(line, language, mark or "", content) of each fenced block."""
    lines, found = text.splitlines(), []
    at, mark = 0, ""
    while at < len(lines):
        fence = re.fullmatch(r"( *)```(\S*)", lines[at])
        if fence:
            end = next(n for n in range(at + 1, len(lines)) if lines[n].strip() == "```")
            content = [line.removeprefix(fence.group(1)) for line in lines[at + 1:end]]
            found.append((at + 1, fence.group(2), mark, "\n".join(content) + "\n"))
            at, mark = end, ""
        elif lines[at].strip():
            comment = MARK.fullmatch(lines[at].strip())
            mark = comment.group(1) if comment else ""
        at += 1
    return found


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def plain(text):
    """Text with single blanks, in which quantities are N."""
    lines = [" ".join(line.split()) for line in text.strip().splitlines()]
    return QUANTITY.sub("N ", MILLISECONDS.sub("s", "\n".join(lines)))


def pattern_of(text):
    """What the output must match, by what the document has."""
    return ".*".join(re.escape(part) for part in plain(text).split("…"))


class Page:
    """One document: its directory, its servers."""

    def __init__(self, name, tree, environment):
        self.name, self.cwd, self.environment = name, tree, environment
        self.servers, self.ports = [], {}
        self.tmp = tempfile.mkdtemp(dir=tree.parent)
        environment["BATON_LISTEN"] = "127.0.0.1:" + self.port("8700")
        environment["BATON_URL"] = "http://" + environment["BATON_LISTEN"]

    def port(self, written):
        return self.ports.setdefault(written, str(free_port()))

    def isolated(self, text):
        text = re.sub(r"\b87\d\d\b", lambda match: self.port(match.group(0)), text)
        text = text.replace("baton-bucket", f"baton-bucket-{os.getpid()}")
        return re.sub(r"(?<![\w.])/tmp\b", self.tmp, text)

    def bash(self, script, any_status=False):
        """Runs a script to its end; returns what it printed."""
        at = pathlib.Path(self.tmp) / ".cwd"
        block = subprocess.Popen(["bash", "-euo", "pipefail", "-c", f"trap \"pwd > '{at}'\" EXIT\n{self.isolated(script)}"],
                                 cwd=self.cwd, env=self.environment, text=True, start_new_session=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            printed = block.communicate(timeout=BLOCK_S_MAX)[0]
        except subprocess.TimeoutExpired:
            os.killpg(block.pid, signal.SIGKILL)
            raise Failed(f"has not ended after {BLOCK_S_MAX} s:\n{block.communicate()[0][-2000:]}") from None
        if block.returncode != 0 and not any_status:
            raise Failed(f"ended with {block.returncode}:\n{printed[-2000:]}")
        self.cwd = pathlib.Path(at.read_text().strip())
        return printed

    def console(self, text):
        """Runs a transcript: each command, and its output."""
        for step in re.split(r"(?m)^\$ ", text)[1:]:
            command = re.match(r"(?:.*\\\n)*.*\n", step).group(0)
            expected, found = step[len(command):], self.bash(command, any_status=True)
            if not re.fullmatch(pattern_of(self.isolated(expected)), plain(found)):
                raise Failed(f"$ {command}printed\n{found}the document has\n{expected}")

    def serve(self, script):
        log = tempfile.NamedTemporaryFile("r", dir=self.tmp)
        with open(log.name, "w") as out:
            server = subprocess.Popen(["bash", "-euo", "pipefail", "-c", f"trap : TERM\n{self.isolated(script)}"],
                                      cwd=self.cwd, env=self.environment, start_new_session=True,
                                      stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        self.servers.append(server)
        deadline = time.monotonic() + START_S_MAX
        while '"event":"serving"' not in (words := pathlib.Path(log.name).read_text()):
            if server.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"the server does not serve:\n{words[-2000:]}")
            time.sleep(0.02)
        self.cwd = pathlib.Path(os.readlink(f"/proc/{server.pid}/cwd"))

    def end(self):
        """Ends the servers, the last one first; returns how many did not end well."""
        n_wrong = 0
        for server in reversed(self.servers):
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGTERM)
            try:
                n_wrong += server.wait(BLOCK_S_MAX) != 0
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                n_wrong += 1
        return n_wrong


def run_document(root, tree, document, environment):
    """Runs one document; returns (blocks run, [(place, reason)] of those not run, failures)."""
    page, n_run, not_run, wrong = Page(document, tree, dict(environment)), 0, [], []
    for line, language, mark, content in blocks_of((root / document).read_text()):
        place = f"{document}:{line}"
        try:
            if language == "python":
                compile(content, place, "exec")
            elif language not in SHELL:
                if mark:
                    raise Failed(f"a mark before a block of type '{language}', which is never run")
            elif mark.startswith("not run: "):
                not_run.append((place, mark.removeprefix("not run: ")))
            elif mark == "starts a server":
                page.serve(content)
                n_run += 1
            elif mark:
                raise Failed(f"'block: {mark}' is unknown; known: starts a server, not run: REASON")
            else:
                page.console(content) if language in ("console", "shell-session") else page.bash(content)
                n_run += 1
        except (Failed, SyntaxError) as e:
            wrong.append(f"{place}: {e}")
    n_ended_badly = page.end()
    if n_ended_badly:
        wrong.append(f"{document}: {n_ended_badly} of its servers did not end with status 0")
    return n_run, not_run, wrong


def copy_of(root, baton, work):
    """A tree as after a build with the preset release."""
    tree = work / "baton"
    skipped = shutil.ignore_patterns("build", ".git", "__pycache__")
    for entry in root.iterdir():
        if entry.name not in ("build", ".git"):
            if entry.is_dir():
                shutil.copytree(entry, tree / entry.name, ignore=skipped)
            else:
                tree.mkdir(exist_ok=True)
                shutil.copy2(entry, tree / entry.name)
    (tree / "build/release").mkdir(parents=True)
    (tree / "build/release/baton").symlink_to(baton)
    return tree


def main():
    baton, root = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    documents = sys.argv[3:] or sorted({str(path.relative_to(root)) for form in DOCUMENTS for path in root.glob(form)})
    n_run, not_run, wrong = 0, [], []
    with tempfile.TemporaryDirectory() as work:
        tree = copy_of(root, baton, pathlib.Path(work).resolve())
        environment = {**{name: value for name, value in os.environ.items() if not name.startswith("BATON_")},
                       "PATH": f"{tree}/build/release:{os.environ['PATH']}", "HOME": work, "NO_COLOR": "1"}
        for document in documents:
            began = time.monotonic()
            n, left_out, failed = run_document(root, tree, document, environment)
            n_run, not_run, wrong = n_run + n, not_run + left_out, wrong + failed
            print(f"{document}: {n} blocks run, {len(left_out)} not, in {time.monotonic() - began:.1f} s")
    print("\nnot run:", *(f"  {place}: {reason}" for place, reason in not_run), sep="\n")
    print("\n".join(f"FAIL {words}" for words in wrong))
    print(f"{n_run} blocks run, {len(not_run)} not run, {len(wrong)} failed")
    return 1 if wrong or n_run == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
