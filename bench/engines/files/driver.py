"""One instance of vLLM in this process, which takes orders and gives events: lines of JSON.

The first line is what the instance is: model, dtype, max_model_len, core, kv_transfer_config, blocks.
Then it says "ready". Orders:

  generate  id, tokens, max_tokens, params   answered by "first" at the first token, then "done"
  cancel    id                               answered by "cancelled", and there is no "done"
  flip      id                               answered by "flipped": a bit of the request's KV
  count                                      answered by "counted": CPU seconds, prompt tokens,
                                             blocks that nobody holds
  digest    id, tokens                       answered by "digested": of the KV of so many tokens

An order is taken between two steps of vLLM, so that one may come while others are under way.
"error" is the last event of one that cannot go on. Standard input's end ends it. What vLLM
prints goes to standard error. vLLM is used as any program may: nothing of it is replaced, and
what its scheduler has decided is looked at to know a request's blocks. Of kvferry two calls are
replaced for the one flip in KV that is still to go.
"""

import ctypes
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
        if spec.get("blocks"):
            options["num_gpu_blocks_override"] = spec["blocks"]
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
        self.names = {}  # vLLM's own, of each request
        self.blocks = {}  # by these names, in the order of its tokens
        self.begun = set()  # requests that have a token
        self.computed = False  # by the last step: some tokens
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
        """Note the blocks that the scheduler gives to requests, and whether a step computes."""
        schedule = self.scheduler.schedule

        def watched(*args, **kwargs):
            output = schedule(*args, **kwargs)
            self.computed = output.total_num_scheduled_tokens > 0
            for new in output.scheduled_new_reqs:
                self.blocks[new.req_id] = list(new.block_ids[0])
            cached = output.scheduled_cached_reqs
            for request, more in zip(cached.req_ids, cached.new_block_ids):
                if more:
                    self.blocks[request] = ([] if request in cached.resumed_req_ids else self.blocks[request]) + list(more[0])
            return output

        self.scheduler.schedule = watched

    def busy(self):
        """Whether vLLM's own loop would go on: a step may free blocks, or push them."""
        return self.scheduler.has_requests()

    def step(self):
        """One step, and what vLLM's own loop does behind it."""
        for output in self.engine.step():
            request, answer = output.request_id, output.outputs[0]
            if answer.token_ids and request not in self.begun:
                self.begun.add(request)
                self.say(event="first", id=request)
            if output.finished:
                self.begun.discard(request)
                self.say(
                    event="done",
                    id=request,
                    tokens=list(answer.token_ids),
                    params=output.kv_transfer_params,
                    finish=answer.finish_reason,
                )
        if not self.computed and self.busy():
            time.sleep(0.001)  # for threads of a connector

    def generate(self, order):
        from vllm import SamplingParams

        extra = {"kv_transfer_params": order["params"]} if order.get("params") else None
        params = SamplingParams(temperature=0, max_tokens=order["max_tokens"], ignore_eos=True, extra_args=extra)
        self.names[order["id"]] = self.engine.add_request(order["id"], {"prompt_token_ids": order["tokens"]}, params)

    def cancel(self, order):
        self.engine.abort_request([order["id"]])
        self.begun.discard(order["id"])
        self.say(event="cancelled", id=order["id"])

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
            free=self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        )

    def kv(self):
        """The KV of each layer that has any: blocks x heads x tokens of a block x values."""
        if len(self.scheduler.kv_cache_config.kv_cache_groups) != 1:
            raise RuntimeError("the model has several kinds of KV: only one kind can be looked at")
        layers = self.core.vllm_config.compilation_config.static_forward_context
        for layer_name in sorted(layers):
            layer = layers[layer_name]
            kv = getattr(layer, "kv_cache", None)
            if kv is None:
                continue
            if kv.shape[2] != self.scheduler.block_size:
                raise RuntimeError(f"KV of shape {tuple(kv.shape)} in blocks of {self.scheduler.block_size} tokens")
            yield layer, kv

    def flip(self, order):
        """One bit of a request's KV: a small value gets the highest exponent.

        Before the request is there, the bit is changed on the wire: in the last batch that kvferry
        writes to D, behind P's checksums. P's own KV is whole again when the batch has gone.
        """
        import torch

        _, kv = next(self.kv())

        def changed(values):
            at = (int((values.abs() < 2).nonzero()[0]) + 1) * values.element_size() - 1
            values.view(torch.uint8)[at] ^= 0x40
            self.say(event="flipped", id=order["id"])
            return values.view(torch.uint8)[at]

        request = self.names.get(order["id"])
        if request in self.blocks:
            changed(kv[self.blocks[request][0]].view(-1))
            return
        from kvferry import WRITE, Engine

        submit, poll, under = Engine.submit, Engine.poll, {}

        def submitted(engine, target, op, ranges, **more):
            if op == WRITE and json.loads(more["message"] or b"{}").get("total"):
                Engine.submit = submit
                memory = (ctypes.c_char * int(ranges[0]["length"])).from_address(int(ranges[0]["local"]))
                under[more["user_data"]] = changed(torch.frombuffer(memory, dtype=kv.dtype))
            return submit(engine, target, op, ranges, **more)

        def polled(engine):
            completions = poll(engine)
            for completion in completions:
                if completion.user_data in under:
                    Engine.poll = poll
                    under.pop(completion.user_data).bitwise_xor_(0x40)
            return completions

        Engine.submit, Engine.poll = submitted, polled

    def digest(self, order):
        import torch

        size = self.scheduler.block_size
        blocks = self.blocks.pop(self.names.pop(order["id"]))
        whole, rest = divmod(order["tokens"], size)
        total = hashlib.sha256()
        for layer, kv in self.kv():
            parts = [kv[blocks[:whole]]]
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
                self.step()
                continue
            order = lines.next()
            if order is None:
                return
            began = time.thread_time()
            orders = {o.__name__: o for o in (self.generate, self.cancel, self.flip, self.count, self.digest)}
            orders[order["do"]](order)
            if order["do"] in ("count", "digest"):
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
