"""Replays requests and replies of real peers, recorded by tests/real/record.py, without these peers.

PEER-to-baton.jsonl: requests of an unmodified client; baton must answer with the recorded status, and
with every recorded member. baton-to-PEER-*.jsonl: what baton sent to a real engine; the double
of such an engine must answer with the status of the real one, with no member that the real one
lacks, and with every member that it has, but for those that LEFT_OUT and READ name: a double has
no model. That of a baton has only the members which baton reads.

Usage: recorded.py BATON FAKE_ENGINE MODEL RECORDINGS LOG"""

import http.client
import json
import pathlib
import re
import shutil
import sys
import tempfile
import threading

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "real"))
import record  # noqa: E402
from fake_engine_world import Double  # noqa: E402
from fleet_world import Server  # noqa: E402

WAIT_S = 60
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"  # as tests/real/real_world.py
STEP = "step-00100"
UPDATE_ID = "upd-" + "0" * 32  # as recordings name the update that is open
DATA = ("/v1/completions", "/v1/chat/completions", "/inference/v1/generate", "/tokenize",
        "/detokenize", "/generate")
RELEASE = {
    "baton": (),
    "vllm": ("--vllm-version", "0.32.0"),
    "sglang": ("--sglang-version", "0.5.16", "--interval-us", "20000"),  # for what is aborted
}
BUSY = ("/flush_cache",)  # refused, or not, by what runs beside it
LEFT_OUT = {  # of generations, as regular expressions of route and member: baton reads none of it
    "vllm": (
        r"[^.]*\.(service_tier|system_fingerprint|kv_transfer_params|ec_transfer_params|metrics)",
        r"[^.]*\.(prompt_(logprobs|token_ids|token_id_logprobs)|mm_placeholders|output_mode)",
        r"[^.]*\.usage\.(prompt|completion)_tokens_details",
        r"[^.]*(\.events\[\])?\.choices\[\]\.(routed_experts|sampling_mask)",
        r"[^.]*(\.events\[\])?\.choices\[\]\.(logprobs\..*|prompt_(logprobs|token_ids))",
        r"/v1/completions(\.events\[\])?\.choices\[\]\.token_ids",
    ),
    "sglang": (
        r"/generate\.meta_info\.(cached_tokens_details|dp_rank|e2e_latency|num_retractions)",
        r"/generate\.meta_info\.(reasoning_tokens|response_sent_to_client_ts)",
        r"/generate\.meta_info\.(input_token_logprobs|output_token_logprobs(_length)?)",
    ),
}
CONFIG = ".vllm_config"
READ = {  # all that baton reads there; the rest is the model's or the machine's own
    "/v1/models": (".object", ".data", ".data[].id", ".data[].parent"),
    "/model_info": (".model_path", ".weight_version"),
    "/server_info": (
        *(f"{CONFIG}.model_config.{name}" for name in
          ("model", "max_model_len", "dtype", "logprobs_mode", "max_logprobs")),
        f"{CONFIG}.parallel_config.data_parallel_size",
        f"{CONFIG}.lora_config",
        f"{CONFIG}.weight_transfer_config",
        *(".vllm_env", ".system_env"),
    ),
}
ENDED_BY = ".finish_reason."  # of SGLang: an abort beside the generation, which is not beside it now
TALLY = {"answers": 0, "skipped": 0}


def read(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def ask(port, line, values):
    """@values  placeholders of its body; the id of the open update is added"""
    body = None
    if line["body"] is not None:
        body = json.dumps(line["body"])
        for name, value in values.items():
            body = body.replace(name, value)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request(line["method"], line["path"], body, headers)
        answer = connection.getresponse()
        kind = (answer.getheader("Content-Type") or "").partition(";")[0]
        raw = answer.read()
        if opened := re.search(rb"upd-[0-9a-f]{32}", raw):
            values[UPDATE_ID] = opened[0].decode()
        return answer.status, record.answer_shape(kind, raw)
    finally:
        connection.close()


def members(shape, at=""):
    """Its members by path; those that not every element has are left out."""
    if isinstance(shape, dict):
        for key, inner in shape.items():
            if not key.endswith("?"):
                yield f"{at}.{key}"
                yield from members(inner, f"{at}.{key}")
    elif isinstance(shape, list):
        for inner in shape:
            yield from members(inner, f"{at}[]")


def any_members(shape, at=""):
    if isinstance(shape, dict):
        for key, inner in shape.items():
            yield f"{at}.{key.rstrip('?')}"
            yield from any_members(inner, f"{at}.{key.rstrip('?')}")
    elif isinstance(shape, list):
        for inner in shape:
            yield from any_members(inner, f"{at}[]")


def told(line):
    return f"{line['method']} {line['path']} {json.dumps(line['body'])[:200]}"


def to_baton(path, baton, model, adapters, log):
    """Sessions of a client."""
    models = model.parent
    values = {"${models}": str(models), "${adapters}": str(adapters)}
    allowed = ("--allow-path", models, "--allow-path", adapters)
    options = ("--model", model, "--weight-version", STEP, *allowed)
    with Server(baton, log, *options) as server:
        for line in read(path):
            status, shape = ask(server.port, line, values)
            TALLY["answers"] += 1
            if status != line["status"]:
                yield f"{told(line)}: {status}, then {line['status']}"
                continue
            lost = set(members(line["answer"])) - set(any_members(shape))
            lost = [name for name in sorted(lost) if ENDED_BY not in name]
            if lost:
                yield f"{told(line)}: the answer lacks {lost}"


def unsaid(shape, at=""):
    """Beginnings of paths below lists that were empty: what their elements have is not known."""
    if isinstance(shape, dict):
        for key, inner in shape.items():
            yield from unsaid(inner, f"{at}.{key.rstrip('?')}")
    elif isinstance(shape, list):
        if not shape:
            yield f"{at}[]"
        for inner in shape:
            yield from unsaid(inner, f"{at}[]")


def was_aborted(line):
    """By SGLang, which says so in members of its own."""
    answer = line["answer"] if isinstance(line["answer"], dict) else {}
    reason = answer.get("meta_info", {}).get("finish_reason")
    return isinstance(reason, dict) and "err_type" in reason


def ask_and_abort(double, line, values):
    """What had been aborted while it ran is so now."""
    found = []
    ends = threading.Thread(target=lambda: found.append(ask(double.port, line, values)))
    ends.start()
    double.wait("it runs", lambda: double.state()["running"] == 1)
    double.post("/abort_request", {"abort_all": True})
    ends.join()
    return found[0]


def left_out(name, dialect, route):
    """A member that the real one has, and its double need not have."""
    if route in READ:
        return name not in READ[route]
    names = (re.match(known + r"(?=[.[]|$)", route + name) for known in LEFT_OUT[dialect])
    return route in DATA and any(names)


def to_double(path, dialect, binary, model, adapters):
    """What baton sends an engine. What a request says that no double understands is left out."""
    values = {"${models}": str(model.parent), "${adapters}": str(adapters)}
    with Double(binary, dialect, *RELEASE[dialect], "--model", model.name) as double:
        for line in read(path):
            route = line["path"].partition("?")[0]
            if line["status"] >= 400 and (dialect == "baton" or route in (*DATA, *BUSY)):
                TALLY["skipped"] += 1
                continue
            if was_aborted(line):
                status, shape = ask_and_abort(double, line, values)
            else:
                status, shape = ask(double.port, line, values)
            TALLY["answers"] += 1
            if status != line["status"]:
                yield f"{told(line)}: {status}, the engine {line['status']}"
                continue
            real, made = set(any_members(line["answer"])), set(any_members(shape))
            unknown = tuple(unsaid(line["answer"]))
            invented = [name for name in sorted(made - real) if not name.startswith(unknown)]
            if invented:
                yield f"{told(line)}: the double invents {invented}"
            if dialect == "baton":
                continue
            lost = set(members(line["answer"])) - made
            lost = [name for name in sorted(lost) if not left_out(name, dialect, route)]
            if lost:
                yield f"{told(line)}: the double lacks {lost}"


def model_folder(fixture, into, step, name):
    """The fixture at a step of its training, with a template for chat, as the clients had it."""
    folder = pathlib.Path(into) / name
    folder.mkdir()
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        shutil.copy(f"{fixture}/{name}", folder)
    shutil.copy(f"{fixture}/checkpoints/{step}.safetensors", folder / "model.safetensors")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


def main():
    baton, binary, fixture, recordings, log = sys.argv[1:]
    paths = sorted(pathlib.Path(recordings).glob("*.jsonl"))
    assert paths, f"there are no recordings in {recordings}"
    wrong, adapters = [], pathlib.Path(fixture) / "adapters"
    with tempfile.TemporaryDirectory() as folder:
        model = model_folder(fixture, folder, STEP, pathlib.Path(fixture).name)
        for step in ("step-00100", "step-01500"):  # what trainers push
            model_folder(fixture, folder, step, step)
        for path in paths:
            if path.stem.startswith("baton-to-"):
                found = to_double(path, path.stem.split("-")[2], binary, model, adapters)
            else:
                found = to_baton(path, baton, model, adapters, log)
            wrong += [f"{path.name}: {what}" for what in found]
    for line in wrong:
        print(line)
    if wrong:
        print(f"{len(wrong)} of {TALLY['answers']} answers differ")
    else:
        print(f"ok: {TALLY['answers']} answers of {len(paths)} recordings, {TALLY['skipped']} "
              "refusals by a model, or of what was busy, left out")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
