# Prompts as the tools make them of traces: their own functions. Made with vllm 0.32.0,
# sglang 0.5.23 and CPython 3.11, whose hash of a str is only the same in each process with
# PYTHONHASHSEED=0:
#   PYTHONHASHSEED=0 python traces.py vllm/benchmarks/datasets/datasets.py sglang/benchmark/datasets/mooncake.py > traces.json
import ast, asyncio, hashlib, json, random, sys, types
import numpy as np


def taken(path, names, space):
    """The named functions of a file, of classes too, without their annotations."""
    tree = ast.parse(open(path).read())
    found = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name in names]
    for node in found:
        node.returns = None
        for a in node.args.args:
            a.annotation = None
    tree.body = found
    exec(compile(tree, path, "exec"), space)
    return space


class Tokenizer:
    """1000 tokens, of which some are special."""

    all_special_ids = [0, 1, 500, 999]

    def get_vocab(self):
        return {f"t{i}": i for i in range(1000)}

    def encode(self, text):
        return []

    def apply_chat_template(self, *a, **kw):
        raise ValueError("no template")


def timed(chunk, ids, length):
    space = taken(sys.argv[1], ["_expand_prompt", "_sample_token"], {"random": random})
    trace = types.SimpleNamespace(chunk_size=chunk, _expanded_generated_prompts={})
    trace._sample_token = lambda *a, **kw: space["_sample_token"](trace, *a, **kw)
    return space["_expand_prompt"](trace, ids, length, Tokenizer())


class Clock:
    now = 0.0

    def perf_counter(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds


LINES = [
    {"timestamp": 3000, "input_length": 700, "output_length": 3, "hash_ids": [46, 47]},
    {"timestamp": 500, "input_length": 20, "output_length": 2, "hash_ids": [46]},
    {"timestamp": 500, "input_length": 20, "hash_ids": []},
    {"timestamp": 1250.5, "output_length": 1},
]


def mooncake(slowdown, rounds):
    clock = Clock()
    space = {"time": clock, "asyncio": types.SimpleNamespace(sleep=clock.sleep), "DatasetRow": lambda **kw: types.SimpleNamespace(**kw)}
    get = taken(sys.argv[2], ["get_mooncake_request_over_time"], space)["get_mooncake_request_over_time"]
    got = []

    async def run():
        async for r in get([dict(l) for l in LINES], Tokenizer(), slowdown, rounds):
            got.append({"at": clock.now, "output": r.output_len, "bytes": len(r.prompt), "md5": hashlib.md5(r.prompt.encode()).hexdigest()})

    asyncio.run(run())
    return got


print(json.dumps({
    "timed": [dict(chunk=c, ids=i, length=n, tokens=timed(c, i, n)) for c, i, n in [(16, [1089, 1090, 1089], 40), (16, [7], 33), (512, [46, 47, 2353], 1030)]],
    "lines": "".join(json.dumps(l) + "\n" for l in LINES),
    "mooncake": [dict(slowdown=s, rounds=r, requests=mooncake(s, r)) for s, r in [(1.0, 1), (2.0, 3)]],
}))
