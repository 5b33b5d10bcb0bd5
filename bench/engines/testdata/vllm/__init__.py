"""What files/driver.py uses of vLLM, for its test: a prompt of 13 raises, others are answered by
1, 2, 3, one of 14 never. An instance goes on for three steps after each answer, and counts its
steps as prompt tokens that it was given."""

from types import SimpleNamespace as Of

print("printed to standard output")


class SamplingParams:
    def __init__(self, **given):
        self.max_tokens, self.extra = given["max_tokens"], given["extra_args"]


class Scheduler:
    block_size = 4
    kv_cache_config = Of(kv_cache_tensors=[Of(size=600), Of(size=200)], num_blocks=8, kv_cache_groups=[None])
    kv_cache_manager = Of(block_pool=Of(get_num_free_blocks=lambda: 7))
    left = steps = 0

    def schedule(self):
        self.left, self.steps = self.left - 1, self.steps + 1
        cached = Of(req_ids=[], new_block_ids=[], resumed_req_ids=set())
        return Of(scheduled_new_reqs=[], scheduled_cached_reqs=cached, total_num_scheduled_tokens=0)

    def has_requests(self):
        return self.left > 0


class Tokenizer:
    all_special_ids = [1, 0]

    def __len__(self):
        return 50


class LLM:
    def __init__(self, model, kv_transfer_config=None, **given):
        print("blocks:", given["num_gpu_blocks_override"])
        self.scheduler, self.model = Scheduler(), model
        self.llm_engine = self
        self.engine_core = Of(engine_core=Of(scheduler=self.scheduler))
        self.asked = {}

    def get_tokenizer(self):
        return Tokenizer()

    def add_request(self, request, prompt, params):
        if prompt["prompt_token_ids"] == [13]:
            raise ValueError("unlucky")
        self.asked[request] = ([0] * 10**6 if prompt["prompt_token_ids"] == [14] else [0, 0, 1, 2, 3], params)
        self.scheduler.left = 10**6 if len(self.asked) > 1 else 3 + 5
        return request + "-00000000"

    def abort_request(self, requests):
        for request in requests:
            del self.asked[request]
        self.scheduler.left = 3

    def step(self):
        self.scheduler.schedule()
        outputs = []
        for request, (left, params) in list(self.asked.items()):
            n = left.pop(0)
            tokens = list(range(1, n + 1))[: params.max_tokens]
            finished = n >= params.max_tokens
            if finished:
                del self.asked[request]
            answer = Of(token_ids=tokens, finish_reason="length" if finished else None)
            outputs.append(Of(request_id=request, outputs=[answer], finished=finished, kv_transfer_params=params.extra))
        return outputs

    def get_metrics(self):
        name = "vllm:prompt_tokens_by_source"
        return [
            Of(name="vllm:other", labels={}, value=9),
            Of(name=name, labels={"source": "local_compute"}, value=0.0),
            Of(name=name, labels={"source": "external_kv_transfer"}, value=float(self.scheduler.steps)),
        ]
