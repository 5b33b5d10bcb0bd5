# Arrivals and adapters as the tools draw them: their own functions, on a clock that
# asyncio.sleep moves. Made with vllm 0.32.0, sglang 0.5.23, numpy 2.4.6, pandas 2.3.3 and
# vllm/workload_generator of LLMServe/dLoRA-artifact@75f1c439:
#   python arrivals.py vllm/benchmarks/serve.py sglang/benchmark/serving.py workload_generator > arrivals.json
# The modules themselves need a GPU's packages; only the functions named here are taken out of them.
import ast, asyncio, contextlib, io, json, os, random, sys, tempfile, types
import numpy as np
import pandas as pd


class Clock:
    def __init__(self):
        self.now = 0.0

    def time(self):
        return self.now

    perf_counter = time

    async def sleep(self, seconds):
        self.now += seconds


def functions(path, names, clock):
    """The named functions of a file, with that clock."""
    tree = ast.parse(open(path).read())
    tree.body = [n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name in names]
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
            for a in node.args.args:
                a.annotation = None
    space = {"np": np, "time": clock, "asyncio": types.SimpleNamespace(sleep=clock.sleep), "Iterable": (list, tuple), "print": lambda *a: None}
    exec(compile(tree, path, "exec"), space)
    return space


def vllm(seed, n, **kw):
    clock = Clock()
    get = functions(sys.argv[1], ["get_request", "_get_current_request_rate"], clock)["get_request"]
    np.random.seed(seed)
    at = []

    async def run():
        async for _ in get([types.SimpleNamespace(timestamp=None)] * n, **kw):
            at.append(clock.now)

    asyncio.run(run())
    return at


def sglang(seed, n, rate, drawn=0, names=None, distribution=None, alpha=1.5):
    """The loop of benchmark() around get_request: its adapter is drawn between two gaps."""
    clock = Clock()
    get = functions(sys.argv[2], ["get_request"], clock)["get_request"]
    random.seed(seed)
    np.random.seed(seed)
    np.random.randint(1, 65, size=drawn)  # what a dataset took before
    if distribution == "skewed":
        weights = np.array([alpha**-i for i in range(len(names))])
        probs = weights / np.sum(weights)
    at, chosen = [], []

    async def run():
        async for _ in get([None] * n, rate):
            at.append(clock.now)
            if distribution == "uniform":
                chosen.append(random.choice(names))
            elif distribution == "skewed":
                chosen.append(str(np.random.choice(names, p=probs)))

    asyncio.run(run())
    return {"at": at, "end": clock.now, "adapters": chosen}


CALLS = "app,func,end_timestamp,duration\n" + "".join(
    f"app{(i * 7) % 3},f{(i * i) % 5},{i * 11.5},0.5\n" for i in range(700)
)


def dlora(models, n, start, end, minutes, rate, cv, stride, sort):
    sys.modules["vllm"] = types.ModuleType("vllm")
    sys.modules["vllm.workload_generator"] = package = types.ModuleType("vllm.workload_generator")
    package.__path__ = [sys.argv[3]]
    from vllm.workload_generator.trace import Trace

    with tempfile.TemporaryDirectory() as d, contextlib.redirect_stdout(io.StringIO()):
        with open(d + "/AzureFunctionsInvocationTraceForTwoWeeksJan2021.txt", "w") as f:
            f.write(CALLS)
        work = Trace("azure_v2", d + "/", start, end, need_sort=sort).replay_to_workload(models, n, "gamma", minutes, rate, cv, stride)
    at = np.cumsum([gap for _, gap in work]).tolist()
    return {"at": at, "adapters": [m for m, _ in work]}


NAMES = [f"lora{i}" for i in range(4)]
MANY = [f"lora{i}" for i in range(300)]
out = {
    "normalized": [dict(seed=s, n=40, rate=r, burstiness=b, at=vllm(s, 40, request_rate=r, burstiness=b))
                   for s, r, b in [(0, 2.0, 1.0), (1, 7.5, 0.25), (42, 3.0, 4.0), (0, 5.0, float("inf"))]],
    "ramp": [dict(seed=0, n=40, strategy=s, start=2, end=20, burstiness=b, at=vllm(0, 40, request_rate=float("inf"), burstiness=b, ramp_up_strategy=s, ramp_up_start_rps=2, ramp_up_end_rps=20))
             for s, b in [("linear", 1.0), ("exponential", 1.0), ("linear", 0.5)]],
    "sglang": [dict(seed=s, rate=r, drawn=d, names=len(names or []), choice=c, alpha=a, **sglang(s, 40, r, d, names, c, a))
               for s, r, d, names, c, a in [
                   (1, 4.0, 0, None, None, 1.5), (42, 4.0, 33, None, None, 1.5), (42, 4.0, 0, NAMES, "uniform", 1.5),
                   (42, 4.0, 7, NAMES, "skewed", 1.5), (1, 2.5, 0, MANY, "skewed", 1.02), (42, float("inf"), 0, MANY[:11], "skewed", 1.2)]],
    "calls": CALLS,
    "functions": [dict(models=m, start=s, end=e, minutes=i, rate=r, cv=cv, stride=st, sort=so, **dlora(m, 120, s, e, i, r, cv, st, so))
                  for m, s, e, i, r, cv, st, so in [
                      (4, "0.0.0", "0.0.60", 60, 4.0, 1.0, 1, False), (3, "0.0.10", "0.2.0", 25, 2.0, 0.5, 2, False),
                      (2, "0.0.0", "0.2.0", 7, 8.0, 2.0, 1, False), (4, "0.0.0", "0.1.0", 60, 0.01, 1.0, 1, True)]],
}
random.seed(7)
out["vllm_adapters"] = [random.choice(NAMES[:3]) for _ in range(30)]


def plain(o):
    if isinstance(o, dict):
        return {k: plain(v) for k, v in o.items()}
    if isinstance(o, list):
        return [plain(v) for v in o]
    if isinstance(o, float) and o in (float("inf"),):
        return "Inf"
    return o.item() if isinstance(o, np.generic) else o


print(json.dumps(plain(out)))
