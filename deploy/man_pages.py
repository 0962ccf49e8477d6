#!/usr/bin/env python3
"""The manual pages, made from what the program prints: baton(1) from `baton help`, baton-serve(1)
from `baton serve --help`, and a page for each other command from its `--help`. Only the standard
library is needed.
Usage: man_pages.py BATON DIR    writes DIR/NAME.1.gz
"""
import datetime
import gzip
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "tools"))
import configuration_doc as doc  # noqa: E402  the parser of --help

DESCRIPTION = """\
baton stands between trainers and inference engines in reinforcement-learning post-training. Trainers push
weights to it while it generates; every token is labelled with the version of the weights that made it.
Generation runs on an embedded engine, or on a fleet of vLLM, SGLang or baton servers.
"""
ENVIRONMENT = {
    "BATON_URL": "the server that commands are sent to; --url overrides it",
    "BATON_API_KEY": "the key that commands send; --key-file overrides it",
}


def escape(text):
    """Plain text as roff. A line that would begin a request is protected."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    return re.sub(r"(?m)^([.'])", r"\\&\1", text)


def styled(text):
    """As escape(), with `code`, options and variables in bold."""
    parts = re.split(r"(`[^`]+`|--[a-z][a-z-]+|\bBATON_[A-Z_]+)", text)
    return "".join(f"\\fB{escape(part.strip('`'))}\\fR" if i % 2 else escape(part)
                   for i, part in enumerate(parts))


def head_of(name, summary):
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", datetime.datetime.now().timestamp()))
    day = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).date()
    return [f'.TH {name.upper()} 1 {day} "baton {VERSION}" "baton manual"', ".SH NAME",
            escape(name) + r" \- " + escape(summary)]


def tagged(tag, text):
    return [".TP", tag, styled(text)]


def synopsis(usage):
    """The words of the command in bold, its arguments as they are."""
    command, rest = re.match(r"(baton(?: [a-z]+)*)(.*)", usage).groups()
    return [".SH SYNOPSIS", f"\\fB{escape(command)}\\fR{escape(rest)}"]


def markdown(text):
    """Paragraphs and lists, as the introduction of docs/configuration.md has them."""
    for line in text.strip().splitlines():
        item = re.match(r"(- |\d+\. )(.*)", line)
        if item:
            yield ".IP " + item.group(1).strip().replace("-", r"\(bu") + " 4"
            yield styled(item.group(2))
        elif line:
            yield styled(line.strip())


def see_also(own):
    names = [name for name in ("baton", "baton-serve") if name != own]
    return [".SH SEE ALSO", " ,\n".join(f".BR {escape(name)} (1)" for name in names)]


def page_of_command(baton, name):
    usage, summary, options, statuses = doc.help_of(baton, name)
    page = "baton-" + name.replace(" ", "-")
    yield from head_of(page, summary)
    yield from synopsis(usage)
    yield ".SH DESCRIPTION"
    yield styled(summary[0].upper() + summary[1:] + ("" if summary.endswith("?") else "."))
    if "--url" in " ".join(options):
        yield "The command is sent to a running server."
    yield ".SH OPTIONS"
    for flag, text in options.items():
        yield from tagged(styled(flag), doc.sentence(text).replace("`", ""))
    yield ".SH EXIT STATUS"
    yield styled(statuses.removeprefix("exit status: ") + ".")
    yield from see_also(page)


def introduction():
    """(how options are given, exit status), as docs/configuration.md has them."""
    *text, status = doc.INTRO.partition("## How options are given\n")[2].strip().split("\n\n")
    return "\n\n".join(text), status


def page_of_serve(baton):
    lines = doc.output_of(baton, "serve", "--help").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("  --"))
    given, status = introduction()
    yield from head_of("baton-serve", "run the server")
    yield from synopsis("baton serve [DIR] [options]")
    yield ".SH DESCRIPTION"
    yield from markdown(given)
    yield ".SH OPTIONS"
    for head, text in doc.paragraphs(lines[first:]):
        if text is None:
            yield f".SS {escape(head)}"
        else:
            flag, arg, variable = doc.OPTION.match(head).groups()
            tag = styled(f"--{flag}") + (f" {escape(arg)}" if arg else "")
            yield from tagged(tag + (f" ({styled(variable)})" if variable else ""), text[0].upper() + text[1:])
    yield ".SH EXIT STATUS"
    yield from markdown(status)
    yield from see_also("baton-serve")


def page_of_program(commands):
    """@commands: {name: summary}"""
    yield from head_of("baton", "inference control for reinforcement-learning post-training")
    yield from synopsis("baton COMMAND [options]")
    yield ".SH DESCRIPTION"
    yield styled(DESCRIPTION.rstrip())
    yield ".SH COMMANDS"
    for name, summary in commands.items():
        yield from tagged(f".BR baton\\-{escape(name.replace(' ', '-'))} (1)", summary)
    yield ".SH ENVIRONMENT"
    for name, text in ENVIRONMENT.items():
        yield from tagged(styled(name), text)
    yield from see_also("baton")


def write(directory, name, lines):
    path = pathlib.Path(directory) / f"{name}.1.gz"
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), 9, mtime=0))


def main():
    global VERSION
    baton, directory = sys.argv[1:]
    VERSION = doc.output_of(baton, "--version").split()[1]
    pathlib.Path(directory).mkdir(parents=True, exist_ok=True)
    commands = {"serve": "run the server"}
    for name in doc.commands_of(baton):
        commands[name] = doc.help_of(baton, name)[1]
        write(directory, "baton-" + name.replace(" ", "-"), page_of_command(baton, name))
    write(directory, "baton-serve", page_of_serve(baton))
    write(directory, "baton", page_of_program(commands))
    return 0


if __name__ == "__main__":
    sys.exit(main())
