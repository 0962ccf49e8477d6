"""Which requests an engine gets while it stands still for an update, and in which order: a request more is time in
which nothing is generated.

Usage: as handoff.py says.
"""

import json
import time

from handoff_world import MODEL, Stage, content, run_cases

RARELY_MS = 600000  # no probe is among the requests
BARE = ("--prove", "none")  # and no canary
COLUMNS = {"names": ["a", "b"], "dtypes": ["bfloat16", "bfloat16"], "shapes": [[1], [2, 3]]}
JOIN = {"transport": "nccl", "master_address": "10.0.0.1", "master_port": 29500, "world_size": 2}

# A set is sent at the same time. Before the pause, while the engine stands still, and after its resume.
VLLM = (["/weight_info", "/pause"],
        ["/update_weight_version", "/start_weight_update", "/update_weights", "/weight_info",
         {"/finish_weight_update", "/reset_prefix_cache", "/reset_encoder_cache"}],
        ["/resume", "/weight_info"])
SGLANG = (["/model_info", "/pause_generation"],
          ["/update_weight_version", "/begin_weight_update", "update", "/model_info", {"/end_weight_update", "/flush_cache"},
           "/model_info", {"/update_weight_version", "/hicache/storage-backend/clear"}],
          ["/continue_generation", "/model_info"])


def wanted(kind, update, before=()):
    steps = VLLM if kind == "vllm" else SGLANG
    return [{step} if isinstance(step, str) else step
            for step in (*before, *(update if s == "update" else s for part in steps for s in part))]


def grouped(calls, steps):
    """The calls, in sets as large as those that are wanted."""
    found, at = [], 0
    for step in steps:
        found.append(set(calls[at:at + len(step)]))
        at += len(step)
    return found + [{c} for c in calls[at:]]


def check(tap, since, steps):
    calls = [c[2] for c in tap.calls[since:]]
    assert grouped(calls, steps) == steps, f"{calls}\nwanted: {steps}"


def handed_over(kind):
    """By a hand-off: nothing is asked that was known before the pause, or can be asked after the resume."""
    with Stage(kind, probe_ms=RARELY_MS, options=BARE) as s:
        s.push("00100", "a")
        since = len(s.taps[0].calls)
        s.push("01500", "b")
        s.has("01500", "b")
        check(s.taps[0], since, wanted(kind, "/update_weights_from_tensor", ["/server_info"] * (kind == "sglang")))


def passed_through(kind):
    """The same where the engine receives from the trainer."""
    with Stage(kind, stage=None, probe_ms=RARELY_MS, options=BARE) as s:
        s.server.post("/v1/weight_transfer/init", JOIN)
        for label in "a", "b":
            since = len(s.taps[0].calls)
            update = {"update_id": s.server.post("/v1/update_weights/start", {"weight_version": label})["update_id"]}
            s.server.post("/v1/update_weights", dict(COLUMNS, transport="nccl", **update))
            s.server.post("/v1/update_weights/finish", update)
        check(s.taps[0], since, wanted(kind, "/update_weights_from_distributed"))


def with_lora(kind):
    """A vLLM before 0.28 with --enable-lora gets its own names by a hand-off too, if its model's directory is here."""
    if kind != "vllm":
        return
    for model in MODEL, "hub/name":
        config = json.dumps({"model_config": {"model": model}})
        with Stage(kind, options=BARE, ages=("--vllm-version", "0.24.0", "--enable-lora", "--vllm-config", config)) as s:
            said = s.push("00100", "a", 200 if model is MODEL else 502)
            updates = s.doubles[0].journal("update")
            if model is MODEL:
                sent = json.loads(updates[-1]["body"])["update_info"]["names"]
                known = [n.replace(".base_layer.", ".") for n in sent]
                assert sorted(known) == sorted(content("00100")) and len([n for n in sent if "_proj.base_layer" in n]) == 28, sent
                assert {"model.embed_tokens.base_layer.weight", "model.norm.weight"} < set(sent), sent
            else:  # the version is committed here, and the engine has its own
                assert "--model DIR" in json.dumps(said) and updates == [], (said, updates)


CASES = {f.__name__: f for f in (handed_over, passed_through, with_lora)}


if __name__ == "__main__":
    run_cases(CASES)
