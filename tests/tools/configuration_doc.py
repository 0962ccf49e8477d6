#!/usr/bin/env python3
"""docs/configuration.md, made from what the program prints: `baton serve --help`, and `--help` of
every command of `baton help`.
Usage: configuration_doc.py BATON            prints the document
       configuration_doc.py BATON DOCUMENT   compares; exit 1 and a diff if they differ
"""
import difflib
import pathlib
import re
import subprocess
import sys

OPTION = re.compile(r"  --([a-z-]+)(?: (\S+))?(?: +(BATON_[A-Z_]+))?")
KINDS = {"N": "integer", "MS": "integer (milliseconds)", "BYTES": "bytes"}
NO_MEMBER = ("config", "check")  # options that a configuration file cannot contain

INTRO = """\
# Configuration

This file is made from the program's own help by `tests/tools/configuration_doc.py`, and a test
compares them (`ctest -R contract_configuration`). After a change of an option, write it again:
`tests/tools/configuration_doc.py build/release/baton > docs/configuration.md`.

## How options are given

`baton serve` reads every option from four places. The first place in this list that has a value wins:

1. a flag: `--flag VALUE` or `--flag=VALUE`;
2. an environment variable, `BATON_` and the flag's name in capitals; an empty variable counts as not set;
3. a member of the JSON file that `--config` or `BATON_CONFIG` names: the flag's name with `_` for `-`;
4. the default.

- A path without dashes directly after `baton serve` is the value of `--model`.
- A flag without a value is `true`; a value must be attached: `--insecure=false`. In the file it is `true` or `false`.
- Bytes may end in `KiB`, `MiB`, `GiB` or `TiB`; in the file they are an integer, or a string with such an ending.
- A repeatable option is an array of strings in the file. In its variable, values are separated by `:`, or by blanks
  where the option says so. Values of different places are not added together: the place that wins gives the whole list.
- The file is strict: an unknown member, a duplicate member or a value of another type stops the start, and the message
  names the file, the line and the member. An unknown flag stops the start too. An unknown `BATON_*` variable is only
  logged as a warning.
- An option that has no effect together with the others is refused, so that a mistake does not pass unnoticed.
- `baton serve --check` with the same options reads everything and starts nothing.

`baton serve` ends with status 0 after a stop, 2 if an option is wrong, and 1 after any other failure.
"""


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def split_default(text):
    """(text, default, allowed) of an option's paragraph; None for what is not given."""
    end = re.search(r" ?\((?:no default|default ([^;()]+)(?:; ([^()]+))?)\)$", text)
    if end is not None:
        return text[:end.start()], end.group(1), end.group(2)
    return text, None, None


def paragraphs(lines):
    """(head, text) for each option; a line of the first column is (title, None)."""
    head, words = None, []
    for line in [*lines, ""]:
        if head is not None and not line.startswith("      "):
            yield head, " ".join(words)
            head, words = None, []
        if line.startswith("  --"):
            head = line
        elif line.startswith("      "):
            words.append(line.strip())
        elif line:
            yield line, None


def put_server_option(head, text):
    flag, arg, variable = OPTION.match(head).groups()
    text, default, allowed = split_default(text)
    yield f"### `--{flag}{' ' + arg if arg else ''}`"
    yield ""
    facts = []
    if variable:
        facts.append(f"`{variable}`")
    facts.append("not in the file" if flag in NO_MEMBER else f"`{flag.replace('-', '_')}`")
    if arg is None and flag not in NO_MEMBER:
        facts.append("`true` or `false`")
    if arg in KINDS:
        facts.append(KINDS[arg])
    if default:
        facts.append(f"default `{default}`")
    elif "default:" not in text and flag not in NO_MEMBER:
        facts.append("no default")
    if allowed:
        facts.append(allowed)
    yield " · ".join(facts)
    yield ""
    yield sentence(text)
    yield ""


def sentence(text):
    """As prose of a Markdown file: options as code, a full stop, a capital unless a value comes first."""
    text = re.sub(r"(\*\.?[A-Z]*|--[a-z][a-z-]+(?: none)?)", r"`\1`", text)
    return (text if re.match(r"[a-z]+,", text) else text[0].upper() + text[1:]) + "."


def first_of(lines, start):
    return next(i for i, line in enumerate(lines) if line.startswith(start))


def put_server(baton):
    lines = output_of(baton, "serve", "--help").splitlines()
    first = first_of(lines, "  --")
    yield "## Options of `baton serve`"
    yield ""
    yield "Below each option: its variable, its member of the file, its default, and the values that are allowed."
    yield ""
    yield sentence(" ".join(lines[first_of(lines, "Only the embedded"):first]).strip()).removesuffix(".")
    yield ""
    for head, text in paragraphs(lines[first:]):
        if text is None:
            yield f"## {head}"
            yield ""
        else:
            yield from put_server_option(head, text)


def commands_of(baton):
    """The name of each, of one or two words; arguments are not in small letters only."""
    lines = output_of(baton, "help").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("of a running server"))
    for line in lines[start + 1:]:
        if not line.startswith("       baton "):
            break
        name = re.match(r"       baton ([a-z]+(?: [a-z]+(?= ))?)", line).group(1)
        yield name


def help_of(baton, name):
    """(usage, summary, {flag with value: text}, exit statuses) of a command."""
    lines = output_of(baton, *name.split(), "--help").splitlines()
    end = next(i for i, line in enumerate(lines) if line.startswith("exit status:"))
    options = {head.strip(): text for head, text in paragraphs(lines[4:end])}
    return lines[0].removeprefix("usage: "), lines[2], options, " ".join(lines[end:])


def put_options(options):
    yield "| option | meaning |"
    yield "| --- | --- |"
    for flag, text in options.items():
        yield f"| `{flag}` | {text} |"
    yield ""


def put_commands(baton):
    helps = {name: help_of(baton, name) for name in commands_of(baton)}
    remote = [options for _, _, options, _ in helps.values() if "--url URL" in options]
    common = {flag: text for flag, text in remote[0].items() if all(flag in other for other in remote)}
    yield "## Commands for a running server"
    yield ""
    yield "Options and arguments may come in any order; what follows `--` is an argument. Every command that sends"
    yield "requests takes these options:"
    yield ""
    yield from put_options(common)
    statuses = {status for _, _, _, status in helps.values()}
    for status in sorted(statuses):
        yield status[0].upper() + status[1:] + "."
        yield ""
    for usage, summary, options, _ in helps.values():
        own = {flag: text for flag, text in options.items() if flag not in common}
        yield f"### `{usage.removesuffix(' [options]')}`"
        yield ""
        yield summary[0].upper() + summary[1:] + ("" if summary.endswith("?") else ".")
        yield ""
        if own:
            yield from put_options(own)


def document(baton):
    lines = [INTRO, *put_server(baton), *put_commands(baton)]
    return "\n".join(lines).rstrip("\n") + "\n"


def main():
    text = document(sys.argv[1])
    if len(sys.argv) == 2:
        sys.stdout.write(text)
        return 0
    found = pathlib.Path(sys.argv[2]).read_text()
    difference = list(difflib.unified_diff(found.splitlines(), text.splitlines(), sys.argv[2], "the program", lineterm=""))
    print("\n".join(difference) if difference else f"{text.count(chr(10) + '### ')} options and commands compared")
    return 1 if difference or text.count("\n### ") < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
