"""OpenAI's client, unmodified, against baton.
Usage: test_openai.py --baton PROGRAM [--record DIR]"""

import asyncio
import sys

import openai
import real_world
from real_world import CHAT, MODEL, SAYS, world

GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 6}


def completions(checks, client):
    made = client.completions.create(prompt="In the beginning", logprobs=2, n=2, seed=1, **GREEDY)
    checks.same([c.text for c in made.choices], [SAYS] * 2, "completions")
    checks.same(made.usage.completion_tokens, 12, "usage of both choices")
    checks.same(len(made.choices[0].logprobs.token_logprobs), 6, "a logprob for each token")
    checks.same(made.choices[0].finish_reason, "length", "why it ended")
    scored = client.completions.create(
        prompt="In the beginning", echo=True, logprobs=1, **{**GREEDY, "max_tokens": 0}
    )
    checks.same(scored.choices[0].text, "In the beginning", "echo and max_tokens 0 score a prompt")
    stream = client.completions.create(
        prompt="In the beginning", stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    chunks = list(stream)
    text = "".join(c.choices[0].text for c in chunks if c.choices)
    checks.same(text, SAYS, "a stream of completions")
    checks.same(chunks[-1].usage.completion_tokens, 6, "its last chunk has the usage")


def chats(checks, client):
    made = client.chat.completions.create(messages=CHAT, logprobs=True, top_logprobs=2, **GREEDY)
    checks.same(made.choices[0].message.content, SAYS, "chat")
    checks.same(len(made.choices[0].logprobs.content), 6, "chat: logprobs")
    stream = client.chat.completions.create(messages=CHAT, stream=True, **GREEDY)
    text = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
    checks.same(text, SAYS, "a stream of chat")


def models(checks, client):
    checks.same([m.id for m in client.models.list()][0], MODEL, "models")
    checks.same(client.models.retrieve(MODEL).id, MODEL, "one model")


def errors(checks, client):
    cases = (
        ("a model that is not there", openai.NotFoundError, {"model": "another"}),
        ("a wrong member", openai.BadRequestError, {"temperature": -1}),
        ("a prompt that does not fit", openai.BadRequestError, {"prompt": [11] * 5000}),
    )
    for name, kind, more in cases:
        try:
            client.completions.create(**{"prompt": "In the beginning", **GREEDY, **more})
            checks.that(False, name, "it was taken")
        except openai.APIError as e:
            checks.that(isinstance(e, kind), f"{name}: {kind.__name__}", repr(e)[:200])
    try:
        client.models.retrieve("another")
        checks.that(False, "one model that is not there", "it was found")
    except openai.NotFoundError as e:
        checks.that(True, "one model that is not there", repr(e)[:200])


def many(checks, url):
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            asked = [
                client.completions.create(prompt="In the beginning", **GREEDY) for _ in range(30)
            ]
            return await asyncio.gather(*asked)

    texts = {r.choices[0].text for r in asyncio.run(all_of_them())}
    checks.same(texts, {SAYS}, "thirty at once")


def main():
    args = real_world.options()
    checks = world.Checks()
    with (
        real_world.embedded(args) as server,
        real_world.recorded(args, server, "openai-to-baton") as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        for part in (completions, chats, models, errors):
            with checks.section(f"openai {openai.__version__}, {part.__name__}"):
                part(checks, client)
        with checks.section("many"):
            many(checks, url)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
