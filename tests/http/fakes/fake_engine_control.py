"""Updates, pauses, sleep, adapters and aborts of a double, in each dialect."""

import json

from fake_engine_world import (LONG, N, PROMPT, STEPS, completion, events_of, expected, finish_of, forget, ids_of,
                               pause, refused, resume, serves_afresh, tag, tokens_now)

NCCL = {"master_address": "10.0.0.1", "master_port": 29500, "rank_offset": 1, "world_size": 3}
COLUMNS = {"names": ["a", "b"], "shapes": [[1], [2, 3]]}
DTYPES = ["bfloat16", "bfloat16"]


def baton_update(d):
    unknown = refused(d, 404, "POST", "/v1/update_weights", dict(COLUMNS, dtypes=DTYPES, update_id="upd-1"))
    assert unknown["error"]["param"] == "/update_id", unknown  # as a baton's
    start = d.post("/v1/update_weights/start", {"weight_version": "step-1"})
    u = {"update_id": start["update_id"]}
    assert start["phase"] == "open"
    refused(d, 409, "POST", "/v1/update_weights/start", {})
    nccl = dict(COLUMNS, dtypes=DTYPES, transport="nccl", **u)
    refused(d, 409, "POST", "/v1/update_weights", nccl)
    refused(d, 400, "POST", "/v1/weight_transfer/init", dict(NCCL, transport="nccl", world_size=2))
    assert d.post("/v1/weight_transfer/init", dict(NCCL, transport="nccl"))["rank_offset"] == 1
    refused(d, 400, "POST", "/v1/update_weights", dict(nccl, dtypes=["bfloat16"]))
    assert d.post("/v1/update_weights", nccl)["phase"] == "receiving"
    serves_afresh(d, "step-0")
    assert d.post("/v1/update_weights/verify", u)["phase"] == "verified"
    assert d.post("/v1/update_weights/renew", u)["phase"] == "verified"
    assert d.get("/v1/status")["update"]["update_id"] == u["update_id"]
    refused(d, 409, "POST", "/v1/update_weights", nccl)
    serves_afresh(d, "step-0")
    done = d.post("/v1/update_weights/finish", u)
    assert (done["phase"], done["weight_version"], done["serial"]) == ("committed", "step-1", 2), done
    assert d.post("/v1/update_weights/finish", u) == done
    serves_afresh(d, "step-1")
    refused(d, 409, "POST", "/v1/update_weights/abort", u)
    u = {"update_id": d.post("/v1/update_weights/start", {})["update_id"]}
    assert d.post("/v1/update_weights/abort", u)["phase"] == "aborted"
    d.post("/v1/update_weights/abort", u)
    assert refused(d, 409, "POST", "/v1/update_weights/finish", u)["error"]["code"] == "update_closed"
    u = {"update_id": d.post("/v1/update_weights/start", {})["update_id"]}
    refused(d, 422, "POST", "/v1/update_weights/verify", u)
    serves_afresh(d, "step-1")
    d.post("/v1/update_weights", dict(COLUMNS, dtypes=DTYPES, weight_version="step-2"))
    serves_afresh(d, "step-2")
    u = {"update_id": d.post("/v1/update_weights/start", {})["update_id"]}
    d.post("/v1/update_weights?update_id=" + u["update_id"], b"tensors",
           headers={"Content-Type": "application/vnd.safetensors"})
    d.post("/v1/update_weights/finish", u)
    serves_afresh(d, "v4")  # nameless
    assert d.good("DELETE", "/v1/weight_transfer")["state"] == "none"


def vllm_update(d):
    info = {"update_info": dict(COLUMNS, dtype_names=DTYPES)}
    refused(d, 500, "POST", "/update_weights", info)
    refused(d, 500, "POST", "/finish_weight_update", {})
    d.post("/start_weight_update")
    refused(d, 500, "POST", "/start_weight_update")
    refused(d, 500, "POST", "/update_weights", info)  # no group, and what fails ends it
    d.post("/start_weight_update")
    refused(d, 400, "POST", "/init_weight_transfer_engine", {})
    refused(d, 500, "POST", "/init_weight_transfer_engine", {"init_info": dict(NCCL, odd=1)})
    d.post("/init_weight_transfer_engine", {"init_info": NCCL})
    assert d.state()["group"] == NCCL
    refused(d, 400, "POST", "/update_weights", {"update_info": COLUMNS})
    serves_afresh(d, "step-0")
    d.post("/update_weights", info)
    serves_afresh(d, "torn")
    assert d.get("/weight_info")["weight_version"] == "step-0"
    d.post("/finish_weight_update", {"weight_version": "step-1"})
    serves_afresh(d, "step-1")
    assert d.get("/weight_info")["weight_version"] == "step-1"
    assert d.post("/update_weight_version", {"new_version": "step-2"})["new_version"] == "step-2"
    serves_afresh(d, "step-2")


def sglang_update(d):
    columns = dict(COLUMNS, dtypes=DTYPES)
    refused(d, 400, "POST", "/update_weights_from_distributed", columns)
    said = refused(d, 400, "POST", "/init_weights_update_group", dict(NCCL, rank_offset=2))
    assert said["success"] is False, said
    said = refused(d, 400, "POST", "/update_weights_from_distributed", columns)
    assert said == {"success": False, "message": "update_weights_from_distributed must run between "
                    "begin_weight_update() and end_weight_update()"}, said
    refused(d, 400, "POST", "/update_weights_from_tensor", {"serialized_named_tensors": ["a", "b"]})
    refused(d, 400, "POST", "/end_weight_update", {})
    d.post("/init_weights_update_group", dict(NCCL, master_port="29500"))
    refused(d, 422, "POST", "/begin_weight_update", {"selector": "odd"})
    d.post("/begin_weight_update")
    refused(d, 400, "POST", "/begin_weight_update", {})
    d.post("/update_weights_from_distributed", columns)
    serves_afresh(d, "torn")
    d.post("/update_weight_version", {"new_version": "step-1", "abort_all_requests": False})
    serves_afresh(d, "torn")
    d.post("/end_weight_update")
    refused(d, 400, "POST", "/update_weights_from_distributed", columns)
    d.post("/update_weight_version", {"new_version": "step-1", "abort_all_requests": False})
    serves_afresh(d, "step-1")
    d.post("/begin_weight_update", {"selector": "all"})
    d.post("/update_weights_from_distributed", dict(columns, weight_version="step-2"))
    serves_afresh(d, "step-2")
    refused(d, 400, "POST", "/update_weights_from_tensor", {"serialized_named_tensors": ["a"]})
    d.post("/update_weights_from_tensor", {"serialized_named_tensors": ["a", "b"], "weight_version": "step-3"})
    serves_afresh(d, "step-3")
    d.post("/end_weight_update")
    refused(d, 400, "POST", "/update_weights_from_disk", {"model_path": "/nowhere"})
    d.post("/update_weights_from_disk", {"model_path": "/", "weight_version": "step-4"})
    serves_afresh(d, "step-4")
    d.post("/destroy_weights_update_group")
    refused(d, 400, "POST", "/destroy_weights_update_group", {})


def pauses(d):
    """Of a double that makes a token every 2 ms."""
    refused(d, 400, "POST", {"baton": "/v1/pause", "vllm": "/pause?mode=odd",
                             "sglang": "/pause_generation"}[d.dialect], {"mode": "odd"})
    frozen = d.stream("/v1/completions", completion(LONG))
    seen = [t for _ in range(3) for t in ids_of(next(frozen)["choices"][0]["text"])]
    pause(d, "keep")
    at = d.state()["tokens_made"]
    queued = d.send("POST", "/v1/completions", completion(3, stream=True))
    d.wait("it waits", lambda: d.state()["waiting"] == 1)
    assert d.state()["tokens_made"] == at and d.state()["running"] == 1
    d.order("", "wrong_version", label="step-1")
    resume(d)
    made = ids_of("".join(e["choices"][0]["text"] for e in events_of(queued)))
    assert made == expected(PROMPT, "step-1", 0, 3), made
    while len(seen) < at + 3:
        seen += ids_of(next(frozen)["choices"][0]["text"])
    assert seen == expected(PROMPT, "step-0", 0, at) + expected(PROMPT, "step-1", at, at + 3), (at, seen)
    pause(d, "abort")
    last = [e for e in frozen][-2]
    assert finish_of(last) == "abort", last
    resume(d)
    if d.dialect != "sglang":
        waits(d)


def waits(d):
    running = d.send("POST", "/v1/completions", completion(100, stream=True))
    path, body = ("/v1/pause", {"mode": "wait"}) if d.dialect == "baton" else ("/pause?mode=wait", {})
    d.wait("it runs", lambda: d.state()["running"] == 1)
    c = d.connect()
    c.request("POST", path, json.dumps(body))
    d.wait("it pauses", lambda: d.state()["pause"] == "wait")
    assert d.journal("pause")[-1]["end"] is None
    late = d.send("POST", "/v1/completions", completion(1, stream=True))
    assert c.getresponse().status == 200
    c.close()
    assert d.journal("completions")[-2]["end"] == "answered" and d.state()["waiting"] == 1
    assert finish_of(events_of(running)[-1]) == "length"
    resume(d)
    assert finish_of(events_of(late)[-1]) == "length"


def sleeps(d):
    sleep, wake = {"baton": ("/v1/sleep", "/v1/wake"), "vllm": ("/sleep?level=1", "/wake_up"),
                   "sglang": ("/release_memory_occupation", "/resume_memory_occupation")}[d.dialect]
    running = d.stream("/v1/completions", completion(LONG))
    next(running)
    if d.dialect == "sglang":
        refused(d, 400, "POST", sleep, {})
        refused(d, 400, "GET", "/flush_cache")
        assert d.good("POST", "/abort_request", {"abort_all": True}) == ""
    else:
        d.post(sleep)
    assert finish_of([e for e in running][-2]) == "abort"
    if d.dialect == "sglang":
        assert d.post(sleep) is None and d.get("/flush_cache")
    if d.dialect == "vllm":
        assert d.get("/is_sleeping")["is_sleeping"] and d.get("/is_paused")["is_paused"]
        queued = d.send("POST", "/v1/completions", completion(1, stream=True))
    else:
        refused(d, 503 if d.dialect == "baton" else 400, "POST", "/v1/completions", completion())
    if d.dialect == "vllm":
        d.post(wake + "?tags=weights")
        assert d.get("/is_sleeping")["is_sleeping"] and d.state()["waiting"] == 1
        d.post(wake + "?tags=weights&tags=kv_cache")
        assert finish_of(events_of(queued)[-1]) == "length"
    else:
        d.post(wake, {"tags": ["weights"]})
        assert d.state()["kv_released"] and not d.state()["weights_asleep"]
        d.post(wake)
    serves_afresh(d, "step-0")
    if d.dialect == "vllm":
        d.post("/sleep?level=2")
        d.post(wake)
        serves_afresh(d, "torn")
    if d.dialect == "baton":
        assert d.post(sleep, {"level": 2})["weights"] == "dropped"
        d.post(wake)
        assert refused(d, 503, "GET", "/health/ready") == {"ready": False}
        refused(d, 503, "POST", "/v1/completions", completion())
        d.post("/v1/update_weights", dict(COLUMNS, dtypes=DTYPES, weight_version="step-1"))
        serves_afresh(d, "step-1")
        assert d.get("/health/ready") == {"ready": True}


def adapters(d):
    prefix = "" if d.dialect == "sglang" else "/v1"
    load, unload = prefix + "/load_lora_adapter", prefix + "/unload_lora_adapter"
    choose = {("lora_path" if d.dialect == "sglang" else "model"): "l"}
    missing = {"baton": 200, "vllm": 404, "sglang": 400}[d.dialect]
    refused(d, missing, "POST", load, {"lora_name": "odd", "lora_path": "/nowhere"})
    d.post(load, {"lora_name": "l", "lora_path": "/"})
    assert tokens_now(d, **choose) == expected(PROMPT, "step-0/l#1", 0, N)
    serves_afresh(d, "step-0")
    if d.dialect == "sglang":
        assert refused(d, 400, "POST", load, {"lora_name": "l", "lora_path": "/"})["error_message"]
    else:
        if d.dialect == "vllm":
            refused(d, 400, "POST", load, {"lora_name": "l", "lora_path": "/"})
        assert tokens_now(d, **choose) == expected(PROMPT, "step-0/l#1", 0, N)
        d.post(load, {"lora_name": "l", "lora_path": "/tmp", "load_inplace": True})
        if d.dialect == "vllm":  # its cache knows the adapter's name only
            assert tokens_now(d, **choose) == expected(PROMPT, "stale:step-0/l#2", 0, N)
        assert forget(d)
        assert tokens_now(d, **choose) == expected(PROMPT, "step-0/l#2", 0, N)
        assert d.journal("completions")[-1]["versions"] == ["step-0/l#2"]
    d.post(unload, {"lora_name": "l"})
    unknown = refused(d, 400 if d.dialect == "sglang" else 404, "POST", unload, {"lora_name": "l"})
    assert d.dialect != "baton" or unknown["error"]["param"] == "/lora_name", unknown
    refused(d, 400 if d.dialect == "sglang" else 404, "POST", "/v1/completions", completion(**choose))


def aborts(d):
    path = {"baton": "/v1/abort_requests", "vllm": "/abort_requests", "sglang": "/abort_request"}[d.dialect]
    member = "rid" if d.dialect == "sglang" else "request_id"
    a, b = (d.stream("/v1/completions", completion(LONG, **{member: name})) for name in ("a", "b"))
    next(a), next(b)
    d.post(path, {"rid": "a", "request_ids": ["a"]})
    assert finish_of([e for e in a][-2]) == "abort" and d.state()["running"] == 1
    next(b)
    b.close()
    d.wait("b is cancelled", lambda: d.state()["running"] == 0)


def in_the_middle(d):
    """Tokens generated during an update show which weights made them: vLLM and SGLang overwrite."""
    running = d.stream("/v1/completions", completion(LONG))
    seen = ids_of(next(running)["choices"][0]["text"])
    makers = ["step-0", "stale:torn", "stale:step-1"]
    columns = dict(COLUMNS, dtypes=DTYPES)
    if d.dialect == "baton":
        makers = ["step-0", "step-1"]
        u = {"update_id": d.post("/v1/update_weights/start", {})["update_id"]}
        steps = [("/v1/update_weights", dict(columns, **u)), ("/v1/update_weights/finish",
                                                              dict(u, weight_version="step-1"))]
    elif d.dialect == "vllm":
        d.post("/init_weight_transfer_engine", {"init_info": NCCL})
        d.post("/start_weight_update")
        steps = [("/update_weights", {"update_info": dict(COLUMNS, dtype_names=DTYPES)}),
                 ("/finish_weight_update", {"weight_version": "step-1"})]
    else:
        d.post("/init_weights_update_group", NCCL)
        d.post("/begin_weight_update")
        steps = [("/update_weights_from_distributed", dict(columns, flush_cache=False)),
                 ("/end_weight_update", {}),
                 ("/update_weight_version", {"new_version": "step-1", "abort_all_requests": False})]
    for path, body in steps:
        d.post(path, body)
        made = d.state()["tokens_made"]
        while len(seen) <= made:
            seen += ids_of(next(running)["choices"][0]["text"])
    running.close()
    d.wait("it is cancelled", lambda: d.state()["running"] == 0)
    tags = [t // STEPS for t in seen]
    assert sorted(set(tags), key=tags.index) == [tag(m) for m in makers], set(tags)
    assert d.journal("completions")[0]["versions"] == makers


def overwrite(d, label, **more):
    """An update that keeps the cache, unless a flush is requested."""
    columns = dict(COLUMNS, dtypes=DTYPES, weight_version=label, **{"flush_cache": False, **more})
    if d.dialect == "sglang":
        d.post("/begin_weight_update")
        said = d.ask("POST", "/update_weights_from_distributed", columns)
        d.post("/end_weight_update")
        return said
    d.post("/start_weight_update")
    d.post("/update_weights", {"update_info": dict(COLUMNS, dtype_names=DTYPES)})
    return d.ask("POST", "/finish_weight_update", {"weight_version": label})


def cached(d):
    """Entries that the old weights cached are distinguished from those of others."""
    if d.dialect == "baton":
        return
    init = {"init_info": NCCL} if d.dialect == "vllm" else NCCL
    d.post("/init_weight_transfer_engine" if d.dialect == "vllm" else "/init_weights_update_group", init)
    assert tokens_now(d) == tokens_now(d) == expected(PROMPT, "step-0", 0, N)
    assert overwrite(d, "step-1")[0] == 200
    assert tokens_now(d) == tokens_now(d, prompt=PROMPT) == expected(PROMPT, "stale:step-1", 0, N)
    assert tokens_now(d, prompt=PROMPT + "!") == expected(PROMPT + "!", "stale:step-1", 0, N)
    assert tokens_now(d, prompt="Other") == expected("Other", "step-1", 0, N)
    assert forget(d) and tokens_now(d) == expected(PROMPT, "step-1", 0, N)
    if d.dialect == "sglang":
        assert overwrite(d, "step-2", flush_cache=True)[0] == 200
        assert tokens_now(d) == expected(PROMPT, "step-2", 0, N)


def held(d):
    """A cache is not emptied while a request holds KV, unless that is given up; then it is made again."""
    if d.dialect == "baton":
        return
    init = {"init_info": NCCL} if d.dialect == "vllm" else NCCL
    d.post("/init_weight_transfer_engine" if d.dialect == "vllm" else "/init_weights_update_group", init)
    running = d.stream("/v1/completions", completion(LONG))
    next(running)
    assert not forget(d)
    pause(d, "keep")
    assert overwrite(d, "step-1")[0] == 200 and not forget(d)
    if d.dialect == "vllm":
        assert d.post("/reset_prefix_cache?reset_running_requests=true")["success"]
    else:
        assert overwrite(d, "step-2", flush_cache=True)[0] == 400
        d.post("/pause_generation", {"mode": "retract"})
        assert forget(d)
    d.post({"vllm": "/resume", "sglang": "/continue_generation"}[d.dialect])
    made = d.state()["tokens_made"]
    d.wait("it goes on", lambda: d.state()["tokens_made"] > made)
    running.close()
    d.wait("it is cancelled", lambda: d.state()["running"] == 0)
    label = {"vllm": "step-1", "sglang": "step-2"}[d.dialect]
    assert d.journal("completions")[-1]["versions"] == ["step-0", label]


TIMED = (pauses, sleeps, aborts, in_the_middle, held)  # of a double that takes its time for a token


def of(dialect):
    return {"baton": baton_update, "vllm": vllm_update, "sglang": sglang_update}[dialect], adapters, cached
