"""Chats through OpenAI's own Python client, streamed and not, and prints what it saw as JSON.

    python3 openai_sdk.py URL MODEL REQUESTS TOKENS
"""

import json
import sys
import time

import openai

url, model, requests, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
assert client.models.list().data[0].id == model
assert client.models.retrieve(model).id == model
seen = {"completed": 0, "input": 0, "output": 0}
ttft, itl, e2e = [], [], []
for i in range(requests):
    sent = time.perf_counter()
    first = last = None
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Tell me about ferry {i}"}],
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    for chunk in stream:
        now = time.perf_counter()
        if chunk.usage:
            seen["input"] += chunk.usage.prompt_tokens
            seen["output"] += chunk.usage.completion_tokens
        if chunk.choices and chunk.choices[0].delta.content:
            if first is None:
                first = now
                ttft.append(now - sent)
            else:
                itl.append(now - last)
            last = now
    e2e.append(last - sent)
    seen["completed"] += 1

# What is not streamed says the same.
whole = client.completions.create(model=model, prompt="ferries", max_tokens=tokens, extra_body={"ignore_eos": True})
assert whole.usage.completion_tokens == tokens and whole.choices[0].finish_reason == "length", whole
seen["completed"] += 1
seen["input"] += whole.usage.prompt_tokens
seen["output"] += whole.usage.completion_tokens

# An error has the client's own type, and names what is wrong.
try:
    client.completions.create(model="no such model", prompt="x", max_tokens=1)
    raise SystemExit("a model that is not served was served")
except openai.NotFoundError as error:
    assert "no such model" in str(error), error

mean = lambda values: sum(values) / len(values)
print(json.dumps({**seen, "ttft": mean(ttft), "itl": mean(itl), "e2e": mean(e2e)}))
