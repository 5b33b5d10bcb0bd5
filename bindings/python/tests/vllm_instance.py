"""bench/engines' driver with more orders, for test_vllm_real.py. It runs in vLLM's environment.

  abort   id, tokens, params, steps   a request that is aborted after so many steps; answered by "aborted" when vLLM is at rest
  change  id, block                   a bit of each layer in a request's block is changed; answered by "changed"
  free    -                           answered by "free": blocks, and vLLM's kvferry metrics, when it is at rest

A generate may also have lora (name, number and folder of an adapter), salt, prompt_logprobs, and embeds, a seed of embeddings that
take the place of the tokens. The first line may have options, further arguments of LLM.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "bench" / "engines" / "files"))

import driver  # noqa: E402


class Instance(driver.Instance):
    def __init__(self, spec, say):
        import vllm

        made = vllm.LLM
        vllm.LLM = lambda *args, **options: made(*args, **{**options, **spec.get("options", {})})
        super().__init__(spec, say)

    def generate(self, order):
        add = self.engine.add_request

        def added(name, prompt, params, **more):
            if "lora" in order:
                from vllm.lora.request import LoRARequest

                more["lora_request"] = LoRARequest(*order["lora"])
            if "salt" in order:
                prompt["cache_salt"] = order["salt"]
            if "embeds" in order:
                import torch

                drawn = torch.randn(len(order["tokens"]), 256, generator=torch.Generator().manual_seed(order["embeds"]))
                prompt = {"prompt_embeds": drawn.to(self.llm.model_config.dtype)}
            if "prompt_logprobs" in order:
                params.prompt_logprobs, params.skip_reading_prefix_cache = order["prompt_logprobs"], True  # as SamplingParams does
            return add(name, prompt, params, **more)

        self.engine.add_request = added
        try:
            super().generate(order)
        finally:
            self.engine.add_request = add

    def abort(self, order):
        self.generate({**order, "max_tokens": 16})
        say, self.say = self.say, lambda **_: None  # it may have tokens by then
        for _ in range(order["steps"]):
            self.step()
        self.engine.abort_request([order["id"]])
        self.begun.discard(order["id"])
        self.rest()
        self.say = say
        self.say(event="aborted", id=order["id"])

    def rest(self):
        while self.busy():
            self.step()

    def change(self, order):
        import torch

        block = self.blocks[self.names[order["id"]]][order["block"]]
        for _, kv in self.kv():
            kv[block].view(torch.int32)[0, 0, 0] ^= 1 << 30  # of a float's exponent
        self.say(event="changed")

    def free(self, order):
        self.rest()
        metrics = {}
        for metric in self.llm.get_metrics():
            if metric.name.startswith("vllm:kvferry_"):
                metrics[metric.name] = getattr(metric, "value", None) or getattr(metric, "sum", 0)
        self.say(event="free", blocks=self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(), metrics=metrics)


class Lines(driver.Lines):
    """Orders that the driver does not know are done here."""

    def next(self):
        while (order := super().next()) and order.get("do") in ("abort", "change", "free"):
            getattr(INSTANCE[0], order["do"])(order)
        return order


INSTANCE = []


def instance(spec, say):
    INSTANCE.append(Instance(spec, say))
    return INSTANCE[0]


if __name__ == "__main__":
    made, driver.Instance, driver.Lines = driver.Instance, instance, Lines
    driver.main()
