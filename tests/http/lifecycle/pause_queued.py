"""Which requests a pause covers that have no permit: of a server with --generate-concurrency 2.

Usage: pause_queued.py URL API|asleep|tokenizing...
"""
import sys

from pause import Client, LONG, PROMPT, call, generate, post, running, status, wait_for

APIS = {  # to pause by abort, to pause by wait, to resume
    "native": (("/v1/pause", {"mode": "abort"}), ("/v1/pause", {"mode": "wait"}), "/v1/resume"),
    "vllm": (("/pause?mode=abort", None), ("/pause?mode=wait", None), "/resume"),
    "sglang": (("/pause_generation", {"mode": "abort"}), None, "/continue_generation"),
    "areal": (("/areal_pause_generation", None), None, "/areal_continue_generation"),
    "prime-rl": (("/pause?mode=abort", None), ("/pause?mode=wait", None), "/resume"),
}


def waiting(n):
    wait_for(f"{n} waiting", lambda: status()["admission"]["generate"]["waiting"] == n)


def ends(x):
    """Why the sequences of a reply of any generate route ended, and how many tokens they have."""
    reply = x.result()
    assert x.code == 200, reply
    if x.body.get("stream"):
        return [(reply["finish_reason"], len(x.tokens))]
    if "meta_info" in reply:
        return [(reply["meta_info"]["finish_reason"]["type"], len(reply["output_ids"]))]
    if "usage" in reply:
        return [(c["finish_reason"], reply["usage"]["completion_tokens"] // len(reply["choices"]))
                for c in reply["choices"]]
    return [(c["finish_reason"], len(c["token_ids"])) for c in reply["choices"]]


def six(api, max_tokens):
    """Two run, and four of other routes wait for a permit."""
    openai = {"max_tokens": max_tokens, "ignore_eos": True}
    first = [Client(generate(max_tokens)) for _ in range(2)]
    running(2)
    more = [Client(generate(max_tokens, stream=True)),
            Client({"prompt": "In the", **openai}, "/v1/completions"),
            Client({"prompt": PROMPT, "n": 2, **openai}, "/v1/completions"),
            Client(generate(max_tokens, n=2)) if api == "prime-rl" else
            Client({"input_ids": PROMPT, "sampling_params": {"max_new_tokens": max_tokens, "ignore_eos": True}},
                   "/generate")]
    waiting(4)
    return first + more


def queued(api):
    """All six belong to the pause, two with a permit and four without; what comes later is held."""
    abort_by, wait_by, resume = APIS[api]
    for by, reason, max_tokens in ((abort_by, "abort", LONG), (wait_by, "length", LONG // 4)):
        if by is None:
            continue
        before = six(api, max_tokens)
        post(*by)
        now = status()
        assert now["pause"]["acknowledged"], now["pause"]
        assert now["admission"]["generate"]["running"] == now["admission"]["generate"]["waiting"] == 0, now
        late = Client(generate(3))
        waiting(1)
        for i, x in enumerate(before):
            for why, n in ends(x):
                assert why == reason, (api, i, why, n)
                assert n == max_tokens if reason == "length" else i < 2 or n == 0, (api, i, why, n)
        assert late.reply is None
        post(resume)
        assert ends(late) == [("length", 3)]


def asleep():
    """A sleep without a pause ends all six; in one it leaves alone what the pause holds."""
    before = six("native", LONG)
    assert post("/v1/sleep", {"level": 1})["aborted"] == 6
    for i, x in enumerate(before):
        assert all(why == "abort" and (i < 2 or n == 0) for why, n in ends(x)), (i, x.reply)
    post("/v1/wake")
    post("/v1/pause", {"mode": "wait"})
    late = Client(generate(3))
    waiting(1)
    assert post("/v1/sleep", {"level": 1})["aborted"] == 0
    post("/v1/wake")
    post("/v1/resume")
    assert ends(late) == [("length", 3)]


TEXT = "In the beginning God created the heaven and the earth. "


def behind_long_prompts(bodies):
    """Requests that wait to be tokenized, by the one thread that is there, and the prompts that it has before."""
    for _ in range(20):
        long = [Client({"prompt": TEXT * 35000, "max_tokens": 1}, "/v1/completions") for _ in range(3)]
        wait_for("the first", lambda: call("GET", "/v1/generations")["n"] > 1 or all(x.reply for x in long))
        short = [Client(dict(b, max_tokens=9, ignore_eos=True), "/v1/completions") for b in bodies]
        names = {b["request_id"] for b in bodies}

        def listed():
            return names <= {g["request_id"] for g in call("GET", "/v1/generations")["generations"]
                             if g["state"] == "waiting" and g["n_prompt_tokens"] == 0}

        if wait_for("all are listed", lambda: "yes" if listed() else "no" if any(x.reply for x in short) else None) == "yes":
            return long, short
        for x in long + short:
            x.result()
    sys.exit("no request was ever seen to wait for the tokenizer")


def tokenizing():
    """What waits to be tokenized belongs to the pause too, and can be aborted by its id."""
    for mode, end in (("abort", ("abort", 0)), ("wait", ("length", 9))):
        long, before = behind_long_prompts([{"prompt": TEXT, "request_id": f"t{i}"} for i in range(4)])
        said = post("/v1/pause", {"mode": mode})
        made = status()["engine"]["n_generated_tokens"]
        assert said["acknowledged"] and (said["aborted"] >= 4 if mode == "abort" else said["waiting"] == 0), said
        late = Client(generate(3))
        for x in before:
            assert ends(x) == [end], mode
        assert status()["engine"]["n_generated_tokens"] == made and late.reply is None
        for x in long:
            x.result()
            assert x.code == 400, x.reply
        post("/v1/resume")
        assert ends(late) == [("length", 3)]
    long, (x,) = behind_long_prompts([{"prompt": [TEXT] * 2, "request_id": "t"}])
    assert "wait" in call("POST", "/flush_cache", want=400)["error"]["message"]
    assert post("/v1/abort_requests", {"request_ids": ["cmpl-t-1"]}) == {"aborted": 1}
    assert [c["finish_reason"] for c in x.result()["choices"]] == ["length", "abort"], x.reply
    for x in long:
        x.result()


if __name__ == "__main__":
    for command in sys.argv[2:]:
        if command in ("asleep", "tokenizing"):
            {"asleep": asleep, "tokenizing": tokenizing}[command]()
        else:
            queued(command)
