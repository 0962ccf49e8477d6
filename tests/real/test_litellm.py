"""litellm, unmodified, against baton. Usage: test_litellm.py --baton PROGRAM [--record DIR]"""

import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no network

import litellm  # noqa: E402
import real_world  # noqa: E402
from real_world import CHAT, MODEL, SAYS, world  # noqa: E402


def texts(checks, asked):
    made = litellm.text_completion(prompt="In the beginning", **asked)
    checks.same(made.choices[0].text, SAYS, "text completion")
    made = litellm.completion(messages=CHAT, logprobs=True, **asked)
    checks.same(made.choices[0].message.content, SAYS, "chat")
    stream = litellm.completion(messages=CHAT, stream=True, **asked)
    text = "".join(c.choices[0].delta.content or "" for c in stream)
    checks.same(text, SAYS, "a stream of chat")


def errors(checks, asked):
    cases = (
        ("a prompt that does not fit", litellm.ContextWindowExceededError,
         {"messages": [{"role": "user", "content": "the LORD " * 3000}]}),
        ("a model that is not there", litellm.NotFoundError, {"model": "hosted_vllm/another"}),
        ("a wrong member", litellm.BadRequestError, {"temperature": -1}),
    )
    for name, kind, more in cases:
        given = {"messages": CHAT, **asked, **more}
        try:
            litellm.completion(**given)
            checks.that(False, name, "it was taken")
        except Exception as e:  # noqa: BLE001
            checks.that(isinstance(e, kind), f"{name}: {kind.__name__}", repr(e)[:300])


def main():
    args = real_world.options()
    checks = world.Checks()
    with (
        real_world.embedded(args) as server,
        real_world.recorded(args, server, "litellm-to-baton") as url,
    ):
        asked = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{url}/v1", "api_key": "none"}
        asked.update(temperature=0, max_tokens=6, num_retries=0)
        for part in (texts, errors):
            with checks.section(f"litellm, {part.__name__}"):
                part(checks, asked)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
