#!/usr/bin/env python3
"""What the documents below name in backticks exists: paths, functions (`name()`), constants, options
of the server. ARCHITECTURE.md lists every lock rank, in the order of base/mtx.h, and every file that
starts a thread. The glossary of docs/concepts.md is sorted and defines each term once. Every link of
every .md file to a file, and to a heading of it, leads somewhere. README.md has at most 250 lines. Code
blocks between fences are not read.
Usage: tests/tools/check_docs.py [ROOT]
"""
import functools
import pathlib
import re
import sys

DOCUMENTS = ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "README.md", "docs/benchmarks.md", "docs/concepts.md",
             "docs/debugging.md", "docs/errors.md", "docs/fleet.md", "docs/guarantees.md", "docs/production.md", "docs/protocol.md",
             "docs/quickstart.md", "docs/troubleshooting.md")
README_LINES_MAX = 250
SKIPPED = ("build", ".git")
SOURCES = (".c", ".h", ".cu", ".py", ".sh")
STARTS_THREAD = re.compile(r"(?<!\w)(?:pthread_create|workers_new|loop_new)\((?!struct)")
THREAD = re.compile(r"[a-z_-]+/N")  # as the table of threads writes the names of a pool
PATH = re.compile(r"[\w.-]+/(?:[\w.*-]+/)*[\w.*-]*")
FILE_NAME = re.compile(r"[\w-]+\.(?:c|h|cu|py|sh|md|txt|yaml)")
LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)\s]+)\)")
CONSTANT = re.compile(r"(?:ERR|MTX|OPERATION|EXECUTOR|ROLE|SESSION|CALL|WIRE|FORM|DIALECT|BODY)_[A-Z0-9_]+")


def lines_of(text):
    """(number, line), without code blocks."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def spans_of(text):
    """(line, what stands between backticks), without code blocks."""
    for number, line in lines_of(text):
        for span in re.findall(r"`([^`]+)`", line):
            yield number, span


@functools.cache
def anchors_of(document):
    """The anchors of the headings, as GitHub makes them."""
    anchors = []
    for _, line in lines_of(document.read_text()):
        heading = re.match(r"#+ +(.*?) *#*$", line)
        if heading:
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.group(1)).lower()
            anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            n = sum(re.fullmatch(re.escape(anchor) + r"(-\d+)?", known) is not None for known in anchors)
            anchors.append(f"{anchor}-{n}" if n else anchor)
    return anchors


def links_wrong(root, documents):
    """(links, [what is wrong with them])."""
    n_links, wrong = 0, []
    for document in documents:
        for number, line in lines_of(document.read_text()):
            for link in LINK.findall(re.sub(r"`[^`]*`", "", line)):
                if re.match(r"[a-z]+:", link):
                    continue
                n_links += 1
                path, _, anchor = link.partition("#")
                target = (document.parent / path).resolve() if path else document
                place = f"{document.relative_to(root)}:{number}"
                if not target.exists():
                    wrong.append(f"{place}: there is no file '{path}'")
                elif anchor and (target.suffix != ".md" or anchor not in anchors_of(target)):
                    wrong.append(f"{place}: '{path or document.name}' has no heading with the anchor '{anchor}'")
    return n_links, wrong


class Tree:
    def __init__(self, root):
        self.root = root
        self.folders = {path.name for path in root.iterdir() if path.is_dir() and path.name not in SKIPPED}
        files = [path for folder in self.folders
                 for path in (root / folder).rglob("*")
                 if path.suffix in SOURCES and "__pycache__" not in path.parts]
        self.names = {path.name for path in files}
        self.sources = {path.relative_to(root): path.read_text(errors="replace") for path in files}
        text = "\n".join(self.sources.values())
        self.words = set(re.findall(r"\w+", text))
        self.called = set(re.findall(r"(\w+)\(", text))
        self.options = set(re.findall(r'X\(\w+, \w+, "([a-z-]+)"', self.text_of("server/config/config.h"))
                           + re.findall(r'"--([a-z-]+)"', self.text_of("server/main.c"))
                           + re.findall(r"(?m)^\| `--([a-z-]+)", (root / "docs/configuration.md").read_text()))

    def text_of(self, path):
        return self.sources[pathlib.Path(path)]

    def has_path(self, path):
        return any(self.root.glob(path.rstrip("/"))) if "*" in path else (self.root / path).exists()

    def wrong_with(self, span):
        """Why a span names nothing, or None. What is neither path, function, constant nor option of
        ours passes: a route, a member, a command."""
        if re.fullmatch(r"\w+\(\)", span):
            return None if span[:-2] in self.called else "there is no such function"
        if re.fullmatch(r"--[a-z][a-z-]+(?: [A-Z:.,a-z/-]+)?", span):
            option = span.split()[0][2:]
            return None if option in self.options else "the server has no such option"
        if CONSTANT.fullmatch(span):
            return None if span in self.words else "there is no such constant"
        if PATH.fullmatch(span) and span.split("/")[0] in self.folders and not THREAD.fullmatch(span):
            return None if self.has_path(span) else "there is no such path"
        if FILE_NAME.fullmatch(span):
            known = span in self.names or (self.root / span).exists()
            return None if known else "no file has this name"
        return None


def threads_wrong(tree, architecture):
    rooms = set(re.findall(r"(?m)^\| `([a-z]+)/` \|", architecture))
    for path, text in sorted(tree.sources.items()):
        starts = path.suffix == ".c" and path.parts[0] in rooms and STARTS_THREAD.search(text)
        defines = path.as_posix() in ("base/loop.c", "base/jobs/workers.c")
        if starts and not defines and f"`{path.as_posix()}`" not in architecture:
            yield f"ARCHITECTURE.md: `{path.as_posix()}` starts a thread and is not in the table of threads"


def ranks_wrong(tree, architecture):
    enum = re.search(r"enum mtx_rank \{(.*?)\};", tree.text_of("base/mtx.h"), re.S)
    ranks = re.findall(r"(MTX_\w+) =", enum.group(1)) if enum else []
    listed = re.findall(r"(?m)^\| `(MTX_\w+)` \|", architecture)
    if not ranks or listed != ranks:
        yield f"ARCHITECTURE.md: the table of lock ranks has {listed}, base/mtx.h has {ranks}"


def glossary_wrong(concepts):
    terms = re.findall(r"(?m)^\| ([^|]+) \|", concepts.partition("\n## Glossary\n")[2])[2:]
    folded = [term.lower() for term in terms]
    if len(terms) < 2:
        yield "docs/concepts.md: no glossary was found"
    for before, term in zip(folded, folded[1:]):
        if before >= term:
            yield f"docs/concepts.md: the glossary has '{term}' after '{before}'"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    root = root if root.is_dir() else root.parents[2]
    tree, wrong, n_spans = Tree(root), [], 0
    for document in DOCUMENTS:
        for number, span in spans_of((root / document).read_text()):
            n_spans += 1
            why = tree.wrong_with(span)
            if why is not None:
                wrong.append(f"{document}:{number}: `{span}`: {why}")
    architecture = (root / "ARCHITECTURE.md").read_text()
    wrong += threads_wrong(tree, architecture)
    wrong += ranks_wrong(tree, architecture)
    wrong += glossary_wrong((root / "docs/concepts.md").read_text())
    texts = [*root.glob("*.md"), *(path for folder in tree.folders for path in (root / folder).rglob("*.md"))]
    n_links, links = links_wrong(root, texts)
    wrong += links
    n_lines = len((root / "README.md").read_text().splitlines())
    if n_lines > README_LINES_MAX:
        wrong.append(f"README.md has {n_lines} lines, {README_LINES_MAX} are allowed: move what is detail to docs/")
    if n_spans == 0 or n_links == 0:
        wrong.append("no names or no links were found in the documents")
    print("\n".join(wrong + [f"{n_spans} names in {len(DOCUMENTS)} documents, {n_links} links checked"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
