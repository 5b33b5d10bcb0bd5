"""A chat completion, streamed, through OpenAI's own client.

    python3 examples/python-openai/completion.py [http://127.0.0.1:8000/v1]

Needs: pip install openai, and a proxy at that address.
"""

import sys

import openai

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
client = openai.OpenAI(base_url=url, api_key="none")  # the proxy asks for no key
model = client.models.list().data[0].id
stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Tell me about ferries"}],
    max_tokens=6,
    stream=True,
    stream_options={"include_usage": True},
    extra_body={"return_breakdown": True},  # kvferry's own: where the time went
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        print(f"\n{model}: {chunk.usage.prompt_tokens} tokens in, {chunk.usage.completion_tokens} out")
    if breakdown := (chunk.model_extra or {}).get("breakdown"):
        print("breakdown:", breakdown)
