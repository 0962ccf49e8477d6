#!/usr/bin/env bash
# Updates from all sources while clients generate: every token has exactly one version, greedy text
# of one version is exactly that version's, no request fails, and floods are shed with 503.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
serve_model --allow-path "$CHECKPOINTS" --generate-concurrency 8 --generate-queue 4

"$PYTHON" - "$URL" "$MODEL" "$CLIENT" <<'P'
import json, os, sys, threading, time
sys.path.insert(0, os.path.dirname(sys.argv[3]))
import baton

url, model = sys.argv[1], sys.argv[2]
golden = json.load(open(model + "/golden.json"))["checkpoints"]
steps = {"step-0": "step-00000", "step-100": "step-00100", "step-1500": "step-01500"}
want = {label: golden[s]["cases"][0]["greedy_token_ids"] for label, s in steps.items()}
prompt = golden["step-00000"]["cases"][0]["prompt_token_ids"]
stop, errors, whole, mixed = threading.Event(), [], 0, 0
lock = threading.Lock()

def client():
    global whole, mixed
    while not stop.is_set():
        try:
            answer = baton.request(url, "POST", "/v1/generate", {"token_ids": prompt,
                "sampling_params": {"temperature": 0, "max_tokens": 24, "ignore_eos": True}})
        except baton.BatonError as e:
            if e.status == 503 and e.code == "overloaded":
                continue
            errors.append(e)
            return
        choice = answer["choices"][0]
        spans, ids = choice["weight_versions"], choice["token_ids"]
        ends = [0] + [s["end"] for s in spans]
        if ends[-1] != len(ids) or any(s["start"] != e for s, e in zip(spans, ends)):
            errors.append(f"spans {spans} for {len(ids)} tokens")
        if any(a["serial"] >= b["serial"] for a, b in zip(spans, spans[1:])):
            errors.append(f"serials go back: {spans}")
        if len(spans) == 1 and ids != want[spans[0]["version"]][:len(ids)]:
            errors.append(f"{spans[0]['version']} did not make {ids}")
        with lock:
            whole += len(spans) == 1
            mixed += len(spans) > 1

clients = [threading.Thread(target=client, daemon=True) for _ in range(6)]
for c in clients:
    c.start()
tensors = {label: baton.load_file(f"{model}/checkpoints/{s}.safetensors") for label, s in steps.items()}
for i in range(24):
    label = list(steps)[(i + 1) % 3]
    via = ("shm", "body", "path")[i // 3 % 3]
    source = f"{model}/checkpoints/{steps[label]}.safetensors" if via == "path" else tensors[label]
    answer = baton.push(source, url, via=via, weight_version=label)
    assert answer["phase"] == "committed" and answer["serial"] == i + 2, answer
deadline = time.monotonic() + 60
while whole == 0 and not errors and time.monotonic() < deadline:
    time.sleep(0.05)  # a sanitizer's server is slower than the updates came
stop.set()
for c in clients:
    c.join(60)
    assert not c.is_alive()
assert not errors, errors[:3]
assert whole > 0, "no generation ended"

# A flood over the bounds: everyone gets an answer, 200 or 503 with Retry-After.
answers = []
def flood():
    try:
        baton.request(url, "POST", "/v1/generate", {"token_ids": prompt, "sampling_params": {"max_tokens": 200, "ignore_eos": True}})
        answers.append(200)
    except baton.BatonError as e:
        answers.append(e.status)
threads = [threading.Thread(target=flood, daemon=True) for _ in range(64)]
for t in threads:
    t.start()
for t in threads:
    t.join(120)
assert len(answers) == 64 and set(answers) <= {200, 503} and answers.count(200) >= 12, answers
print(f"{whole} generations by one version, {mixed} across two or more, flood: "
      f"{answers.count(200)} served, {answers.count(503)} shed")
P
N_CHECKS=$((N_CHECKS + 1))
expect 200 GET /v1/status
same .weights.serial 25
same '.admission.generate | .running + .waiting' 0
same '.weights.versions_alive' 1
done_testing
