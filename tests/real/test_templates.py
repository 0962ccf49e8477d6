"""Every render of real chat templates, and every prompt that continues a message, against
transformers. The templates come out of source distributions on PyPI; none is committed.

Usage: test_templates.py --baton PROGRAM [--only WORD] [FOLDER...]
FOLDER: further templates, *.jinja. PROGRAM is that of a build: its tests/render_chat is run."""

import argparse
import collections
import contextlib
import datetime
import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tarfile

import jinja2
from transformers.utils import chat_template_utils as reference

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "real" / "chat-templates"
BUILDERS = ("scikit_build_core.build", "setuptools.build_meta")  # of the packages
PACKAGES = ("llama_cpp_python==0.3.36", "vllm==0.33.0")
NOW_S = 1784730896  # a Wednesday
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


# --- the templates


def _stub_builders(folder):
    """pip builds a source distribution's metadata before it keeps the archive, for which it would
    install torch and CMake: these modules stand in for what builds the packages."""
    text = ("import email, pathlib\n"
            "def prepare_metadata_for_build_wheel(out, settings=None):\n"
            "    text = pathlib.Path('PKG-INFO').read_text(encoding='utf-8')\n"
            "    said = email.message_from_string(text)\n"
            "    info = pathlib.Path(out, f'{said[\"Name\"]}-{said[\"Version\"]}.dist-info')\n"
            "    info.mkdir()\n"
            "    info.joinpath('METADATA').write_text(text, encoding='utf-8')\n"
            "    return info.name\n")
    for module in BUILDERS:
        path = folder / (module.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.joinpath("__init__.py").touch()
        path.write_text(text)
    return folder


def _download(package):
    """The *.jinja of the source distribution, kept under build/real/chat-templates/PACKAGE."""
    folder = KEPT / package
    if folder.exists():
        return folder
    part = KEPT / "download"
    part.mkdir(parents=True, exist_ok=True)
    name = package.partition("==")[0]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                    "--no-deps", "--no-build-isolation", "--no-binary", name, "--dest", part, package],
                   env={**os.environ, "PYTHONPATH": str(_stub_builders(part))}, check=True)
    (archive,) = part.glob(f"{name}-*.tar.gz")
    files = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and member.name.endswith(".jinja"):
                files[member.name.partition("/")[2]] = tar.extractfile(member).read()
    folder.mkdir()
    for path, text in files.items():
        (folder / path.replace("/", "~")).write_bytes(text)
    archive.unlink()
    return folder


def templates(folders, only):
    """{name: source}, each source once."""
    found = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.jinja")):
            source = path.read_bytes().decode()
            if source not in found.values() and only in path.name:
                found[f"{folder.name}/{path.name}"] = source
    return found


# --- the cases


def said(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, call_id="call00001"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


def user(content="Hello"):
    return said("user", content)


def talk(answer, *after):
    return [user("q"), answer, *after]


ARGUMENTS = {"city": "Zürich <b> & \"c\" 'd'", "days": 2, "deep": {"a": [1, 2.5, None, True, []], "b": {}},
             "multi": "a\nb\t\\", "float": -1000.0, "tiny": 1e-7, "big": 1e22}
TOOL_CALL = said("assistant", "", tool_calls=[call("get_weather", ARGUMENTS)])
RESULT = said("tool", '{"t": 21.5}', name="get_weather", tool_call_id="call00001")
TRICKY = "<b>&amp; \"x\" 'y' {{ x }} {% if %} \\n\r\n\u2028\u00a0\u200b\U0001F468\u200d\U0001F469\u200d\U0001F467 é\x7f\x00"
TALKS = (
    [user()],
    [user("  spaced \n")],
    [user("")],
    [user("\n")],
    [user(TRICKY)],
    [user(parts("one"))],
    [user(parts("one", "two "))],
    [user([])],
    [user([{"type": "image"}, *parts("what is it?")])],
    [user([{"type": "image_url", "image_url": {"url": "http://x/y.png"}}, *parts("and?")])],
    [user([{"type": "audio", "audio_url": "a"}, {"type": "video", "video": "v"}, *parts("z")])],
    [said("system", "Be brief."), user()],
    [said("system", ""), user()],
    [said("system", parts("Be", "brief")), user()],
    [said("system", "only")],
    [said("developer", "Be brief."), user()],
    [said("system", "one"), said("system", "two"), user()],
    [user(), said("system", "late"), user("b")],
    talk(said("assistant", "a")),
    talk(said("assistant", " a \n"), user("b")),
    [said("system", "S"), *talk(said("assistant", "a"), user("b"), said("assistant", "c"), user("d"))],
    talk(said("assistant", parts("a", "b")), user("c")),
    talk(said("assistant", None), user("b")),
    talk({"role": "assistant"}, user("b")),
    [said("assistant", "I begin")],
    [said("assistant", "I begin"), user()],
    [user("a"), user("b")],
    talk(said("assistant", "a"), said("assistant", "b"), user("c")),
    talk(said("assistant", "<think>\nlong\n</think>\n\na"), user("b"), said("assistant", "<think>x</think>y")),
    talk(said("assistant", "a", reasoning_content="\nlong thought\n"), user("b")),
    talk(said("assistant", "a", reasoning_content="thought")),
    talk(said("assistant", "a", reasoning="thought")),
    talk(said("assistant", "a", thinking="thought"), user("b"), said("assistant", "c", thinking="t2")),
    talk(said("assistant", "a", reasoning="r", thinking="t"), user("b")),
    talk(TOOL_CALL),
    talk(TOOL_CALL, RESULT),
    talk(TOOL_CALL, RESULT, said("assistant", "21.5 degrees"), user("thanks")),
    talk(said("assistant", None, tool_calls=[call("f", {}), call("g", {"x": [1, None]}, "call00002")]),
         said("tool", "1", tool_call_id="call00001"), said("tool", "2", tool_call_id="call00002"), user("and?")),
    talk(said("assistant", "I look", reasoning_content="hm", tool_calls=[call("f", {"a": "b"})]), RESULT),
    talk(said("assistant", "", tool_calls=[call("f", '{"a": 1}')]), RESULT),
    talk({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
         said("tool", parts("part one", "part two"))),
    talk(said("assistant", "a", tool_calls=[]), user("b")),
    talk(TOOL_CALL, said("tool", {"t": 1}), user("b")),
    talk(TOOL_CALL, said("ipython", "out"), user("b")),
    talk(TOOL_CALL, said("function", "out", name="get_weather"), user("b")),
    [said("narrator", "who?"), user()],
    [said("user", "named", name="Ann"), said("assistant", "hi", name="Bob"), user()],
)
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The \"weather\" <now> & 'then'\nà Zürich",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "Où\nchercher\r\n"},
        "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
        "days": {"type": ["integer", "null"], "minimum": -1, "maximum": 1000.0}}}}}]
TOOLS_DEEP = [*TOOLS, {"type": "function", "function": {
    "name": "f", "description": "", "strict": True, "parameters": {
        "type": "object", "additionalProperties": False, "$defs": {"D": {"type": "string"}}, "properties": {
            "ключ": {"$ref": "#/$defs/D"}, "any": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "list": {"type": "array", "items": {"type": "object", "properties": {
                "x": {"type": "boolean", "description": "deep"}, "y": {"type": "array", "items": {"type": "string"}}},
                "required": ["x"]}},
            "map": {"type": "object", "additionalProperties": {"type": "string"}}, "free": {}}},
    "return": {"type": "string", "description": "what"}}}, {"type": "function", "function": {"name": "bare"}}]
DOCUMENTS = [{"title": "T", "text": "body"}, {"title": "U", "text": "more", "id": 7}]
KWARGS = (
    {"enable_thinking": False}, {"enable_thinking": True}, {"thinking": True}, {"thinking": False},
    {"reasoning_effort": "low"}, {"reasoning_effort": "high"}, {"date_string": "1 Jan 2026"},
    {"tools_in_user_message": False}, {"custom_tools": TOOLS}, {"builtin_tools": ["wolfram_alpha"]},
    {"model_identity": "You are X."}, {"preserve_thinking": True}, {"clear_thinking": False},
    {"add_vision_id": True}, {"system_message": "S"}, {"controls": {"length": "low"}},
    {"xml_tools": ["def f(): pass"]}, {"bos_token": "<bos>"}, {"truncate_history_thinking": False, "citations": True},
)
KWARGS_TALKS = (0, 11, 20, 22, 28, 29, 30, 34, 36, 37, 38, 40)


def cases():
    for messages, prompt, tools in itertools.product(TALKS, (False, True), (None, TOOLS, TOOLS_DEEP)):
        yield {"messages": messages, "add_generation_prompt": prompt, "tools": tools}
    for messages, prompt in itertools.product(TALKS[:13], (False, True)):
        yield {"messages": messages, "add_generation_prompt": prompt, "documents": DOCUMENTS}
    for kwargs, i in itertools.product(KWARGS, KWARGS_TALKS):
        yield {"messages": TALKS[i], "add_generation_prompt": True, "tools": TOOLS, "kwargs": kwargs}


FINALS = ("so it", "<", "|", "e", "im_end", "", " ", "\n\n x \n\n", "line one\nline two\n", "yes", "\u3000", "a\u00a0",
          "<think>\nhm", "<think>hm</think>\n\nso", "so it ", " so", "CONTINUE_FINAL_MESSAGE_TAG",
          parts("one", "two "), parts("one", ""), [{"type": "image"}])


def final_cases():
    for content, tools in itertools.product(FINALS, (None, TOOLS)):
        yield {"messages": [user("q"), said("assistant", content)], "tools": tools, "continue_final_message": True}


# --- both sides


def rendered(program, source, made):
    """What tests/tools/render_chat.c makes of each case, or why it does not load the template."""
    lines = [{"template": source, "specials": SPECIALS}, *({**case, "now_s": NOW_S} for case in made)]
    child = subprocess.run([program], input="\n".join(map(json.dumps, lines)).encode(), stdout=subprocess.PIPE, check=True)
    loaded, *found = map(json.loads, child.stdout.splitlines())
    return found if "text" in loaded else [loaded] * len(found)


def expected(source, case):
    """("text", text), ("raised", the words of raise_exception) or ("fails", what)."""
    with contextlib.redirect_stderr(io.StringIO()):
        compiled = reference._compile_jinja_template(source)
    compiled.environment.globals["strftime_now"] = datetime.datetime.fromtimestamp(NOW_S, datetime.UTC).strftime
    try:
        (text,), _ = reference.render_jinja_template(
            conversations=[case["messages"]], tools=case.get("tools"), documents=case.get("documents"),
            chat_template=source, continue_final_message=case.get("continue_final_message", False),
            add_generation_prompt=case.get("add_generation_prompt", False), **{**SPECIALS, **case.get("kwargs", {})})
        return "text", text
    except jinja2.exceptions.TemplateError as e:
        return ("raised", str(e)) if type(e) is jinja2.exceptions.TemplateError else ("fails", repr(e))
    except Exception as e:  # noqa: BLE001  whatever Python says of a template's mistake
        return "fails", repr(e)


def judge(wanted, found):
    """What became of one case; the words that begin with a capital letter are faults."""
    kind, text = wanted
    if "text" in found:
        if kind != "text":
            return "ONLY BATON RENDERS"
        return "equal" if found["text"] == text else "DIFFERENT"
    if kind == "text":
        return "ONLY TRANSFORMERS RENDERS"
    if kind == "raised" and text[:200] not in found["error"]:
        return "OTHER WORDS"
    return "both refuse"


def compare(name, source, program, total):
    """Counts into total: {(group, verdict): n}. Prints the first fault of each kind."""
    shown = set()
    for group, made in (("render", list(cases())), ("continue", list(final_cases()))):
        for case, found in zip(made, rendered(program, source, made)):
            wanted = expected(source, case)
            verdict = judge(wanted, found)
            total[group, verdict] += 1
            if verdict[0].isupper() and (group, verdict) not in shown:
                shown.add((group, verdict))
                print(f"{name}: {group}: {verdict}\n  case         {json.dumps(case)[:400]}\n"
                      f"  transformers {_around(wanted[1], found.get('text'))}\n"
                      f"  baton        {_around(found.get('text') or found.get('error'), wanted[1])}", flush=True)
    return bool(shown)


def _around(text, other):
    """Where two texts begin to differ."""
    text = text or ""
    at = next((i for i, (a, b) in enumerate(zip(text, other or "")) if a != b), min(len(text), len(other or "")))
    return repr(text[max(0, at - 60):at + 120]) if other else repr(text[:300])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--baton", required=True, type=pathlib.Path)
    parser.add_argument("--record", help="accepted as for every peer; nothing is recorded")
    parser.add_argument("--only", default="")
    parser.add_argument("folders", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    found = templates([*map(_download, PACKAGES), *args.folders], args.only)
    program = args.baton.parent / "tests" / "render_chat"
    total = collections.Counter()
    wrong = [name for name, source in found.items() if compare(name, source, program, total)]
    for group, verdict in sorted(total):
        print(f"{group}: {verdict}: {total[group, verdict]}")
    print(f"{len(found)} templates, {len(wrong)} with faults, {sum(total.values())} renders")
    sys.exit(bool(wrong) or not found)


if __name__ == "__main__":
    main()
