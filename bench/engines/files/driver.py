"""One instance of vLLM in this process, which takes orders and gives events: lines of JSON.

The first line is what the instance is: model, dtype, max_model_len, core, kv_transfer_config.
Then it says "ready". Orders, one at a time:

  generate  id, tokens, max_tokens, params   answered by "first" at the first token, then "done"
  count                                      answered by "counted": CPU seconds, prompt tokens
  digest    id, tokens                       answered by "digested": of the KV of so many tokens

"error" is the last event of one that cannot go on. Standard input's end ends it. What vLLM
prints goes to standard error. vLLM is used as any program may: nothing of it is replaced, and
what its scheduler has decided is looked at to know a request's blocks.
"""

import hashlib
import json
import os
import select
import sys
import time
import traceback


class Lines:
    """The lines of standard input, and whether one is there."""

    def __init__(self):
        self.read = b""

    def waiting(self):
        return b"\n" in self.read or bool(select.select([0], [], [], 0)[0])

    def next(self):
        while b"\n" not in self.read:
            more = os.read(0, 1 << 20)
            if not more:
                return None
            self.read += more
        line, self.read = self.read.split(b"\n", 1)
        return json.loads(line)


class Instance:
    def __init__(self, spec, say):
        from vllm import LLM

        self.say = say
        options = {}
        if spec.get("kv_transfer_config"):
            options["kv_transfer_config"] = spec["kv_transfer_config"]
        self.llm = LLM(
            spec["model"],
            dtype=spec["dtype"],
            max_model_len=spec["max_model_len"],
            enforce_eager=True,
            enable_prefix_caching=False,
            disable_log_stats=False,
            **options,
        )
        self.engine = self.llm.llm_engine
        self.core = self.engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.blocks = {}  # of each request, in the order of its tokens
        self.request = None  # that is under way
        self.aside = 0.0  # CPU seconds of count and digest
        self.watch()
        tokenizer = self.llm.get_tokenizer()
        config = self.scheduler.kv_cache_config
        say(
            event="ready",
            vocabulary=len(tokenizer),
            special=sorted(tokenizer.all_special_ids),
            block_tokens=self.scheduler.block_size,
            block_bytes=sum(t.size for t in config.kv_cache_tensors) // config.num_blocks,
        )

    def watch(self):
        """Note the blocks that the scheduler gives to the request that is under way."""
        schedule = self.scheduler.schedule

        def watched(*args, **kwargs):
            output = schedule(*args, **kwargs)
            for new in output.scheduled_new_reqs:
                self.blocks[self.request] = list(new.block_ids[0])
            for more in output.scheduled_cached_reqs.new_block_ids:
                if more:
                    self.blocks[self.request] += more[0]
            return output

        self.scheduler.schedule = watched

    def busy(self):
        """Whether vLLM's own loop would go on: a step may free blocks, or push them."""
        return self.scheduler.has_requests()

    def generate(self, order):
        from vllm import SamplingParams

        extra = {"kv_transfer_params": order["params"]} if order.get("params") else None
        params = SamplingParams(temperature=0, max_tokens=order["max_tokens"], ignore_eos=True, extra_args=extra)
        self.request = order["id"]
        self.engine.add_request(order["id"], {"prompt_token_ids": order["tokens"]}, params)
        begun = False
        while True:
            for output in self.engine.step():
                tokens = output.outputs[0].token_ids
                if tokens and not begun:
                    begun = True
                    self.say(event="first", id=order["id"])
                if output.finished:
                    self.say(event="done", id=order["id"], tokens=list(tokens), params=output.kv_transfer_params)
                    return

    def count(self, order):
        cpu = time.process_time() - self.aside
        sources = {}
        for metric in self.llm.get_metrics():
            if metric.name == "vllm:prompt_tokens_by_source":
                sources[metric.labels["source"]] = metric.value
        self.say(
            event="counted",
            cpu_s=cpu,
            computed=int(sources["local_compute"]),
            received=int(sources["external_kv_transfer"]),
        )

    def digest(self, order):
        import torch

        if len(self.scheduler.kv_cache_config.kv_cache_groups) != 1:
            raise RuntimeError("the model has several kinds of KV: only one kind can be digested")
        layers = self.core.vllm_config.compilation_config.static_forward_context
        size = self.scheduler.block_size
        blocks = self.blocks.pop(order["id"])
        whole, rest = divmod(order["tokens"], size)
        total = hashlib.sha256()
        for name in sorted(layers):
            layer = layers[name]
            kv = getattr(layer, "kv_cache", None)
            if kv is None:
                continue
            if kv.shape[2] != size:
                raise RuntimeError(f"KV of shape {tuple(kv.shape)} in blocks of {size} tokens")
            parts = [kv[blocks[:whole]]]  # blocks x heads x tokens of a block x values
            if rest:
                # Where in a block a token is, only the attention backend knows: it writes ones
                # for those that do not count into a block of zeros.
                last, others = kv[blocks[whole]].unsqueeze(0).clone(), torch.zeros_like(kv[:1])
                slots = torch.arange(rest, size)
                ones = torch.ones(len(slots), kv.shape[1], kv.shape[3] // 2, dtype=kv.dtype)
                layer.impl.do_kv_cache_update(layer, ones, ones, others, slots)
                last[others != 0] = 0
                parts.append(last)
            for part in parts:
                total.update(part.contiguous().view(-1).view(torch.uint8).numpy())
        self.say(event="digested", digest=total.hexdigest())

    def run(self, lines):
        while True:
            if self.busy() and not lines.waiting():
                self.engine.step()
                continue
            order = lines.next()
            if order is None:
                return
            if order["do"] == "generate":
                self.generate(order)
                continue
            began = time.thread_time()
            getattr(self, {"count": "count", "digest": "digest"}[order["do"]])(order)
            self.aside += time.thread_time() - began


def main():
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM prints to standard output

    def say(**event):
        out.write(json.dumps(event) + "\n")

    lines = Lines()
    spec = lines.next()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[spec["core"] % len(cores)]})  # before vLLM: its threads inherit it
    try:
        Instance(spec, say).run(lines)
    except BaseException as err:
        traceback.print_exc()
        say(event="error", text=f"{type(err).__name__}: {err}")
    sys.stderr.flush()
    os._exit(0)  # what connectors wait for at an orderly exit may never come


if __name__ == "__main__":
    main()
