"""KvferryConnector: what vLLM calls. It hands on to Scheduler in vLLM's scheduler, and to Worker in each of its workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, CircularBufferSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.request import RequestStatus

from . import fingerprint
from .config import LAYERWISE, Config
from .ledger import Finished
from .memory import Buffer
from .metrics import KvferryPromMetrics, KvferryStats
from .report import Part
from .scheduler import Rank, Scheduler, Step
from .worker import Worker


@dataclass
class KvferryMetadata(KVConnectorMetadata):
    step: Step


@dataclass
class KvferryHandshake(KVConnectorHandshakeMetadata):
    rank: Rank


@dataclass
class KvferryWorkerMetadata(KVConnectorWorkerMetadata):
    """What workers say of transfers, by request."""

    parts: dict[str, Part] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, KvferryWorkerMetadata)
        joined = dict(self.parts)
        for request, part in other.parts.items():
            joined[request] = joined[request].join(part) if request in joined else part
        return KvferryWorkerMetadata(joined)


class KvferryConnector(KVConnectorBase_V1):
    _cache_hit_source = CacheHitSource.P2P

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any):
        super().__init__(vllm_config, role, kv_cache_config)
        transfer, parallel = self._kv_transfer_config, vllm_config.parallel_config
        config = Config.of(transfer.kv_connector_extra_config, transfer.kv_role, parallel.data_parallel_index)
        for size, flag in (
            (parallel.pipeline_parallel_size, "--pipeline-parallel-size"),
            (parallel.decode_context_parallel_size, "--decode-context-parallel-size"),
            (parallel.prefill_context_parallel_size, "--prefill-context-parallel-size"),
        ):
            if size != 1:
                raise NotImplementedError(f"KvferryConnector moves KV between tensor-parallel ranks: leave {flag} at 1")
        if parallel.use_ubatching and config.handoff == LAYERWISE:
            raise NotImplementedError("KvferryConnector's layerwise takes a layer for computed once a step, and of microbatches there are two: leave --enable-dbo and --ubatch-size out, or use pull")
        if len(kv_cache_config.kv_cache_groups) != 1:
            raise NotImplementedError(
                f"KvferryConnector moves KV of one kind, and this model has {len(kv_cache_config.kv_cache_groups)}: --disable-hybrid-kv-cache-manager makes one of sliding windows"
            )
        spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
        if isinstance(spec, (SlidingWindowSpec, ChunkedLocalAttentionSpec, CircularBufferSpec, MambaSpec)):
            raise NotImplementedError(
                f"KvferryConnector moves KV of whole prompts, and vLLM frees a part of this model's as it computes ({type(spec).__name__}): use another connector"
            )
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        self._finished = Finished()
        block_tokens = vllm_config.cache_config.block_size
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = Scheduler(config, transfer.engine_id, block_tokens)
        else:
            from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

            rank = get_tensor_model_parallel_rank()
            self._worker = Worker(config, f"{transfer.engine_id}/{rank}", rank, block_tokens)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        return "LBHNC"  # a layer's blocks lie side by side

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return extra_config.get("handoff") == LAYERWISE  # save_kv_layer is called between layers

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvferryStats:
        return KvferryStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *args: Any) -> KvferryPromMetrics:
        return KvferryPromMetrics(*args)

    # In the scheduler.

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        assert self._scheduler
        self._scheduler.block_ids = lambda request: kv_cache_manager.get_block_ids(request)[0]

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        assert self._scheduler
        self._scheduler.set_ranks([metadata[rank].rank for rank in sorted(metadata)])

    def on_new_request(self, request: Any) -> None:
        assert self._scheduler
        self._scheduler.new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        assert self._scheduler
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduler
        self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KvferryMetadata:
        assert self._scheduler
        tokens, cached = scheduler_output.num_scheduled_tokens, scheduler_output.scheduled_cached_reqs
        before = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        before.update(zip(cached.req_ids, cached.num_computed_tokens))
        computed = {request: n + tokens[request] for request, n in before.items()}
        return KvferryMetadata(self._scheduler.step(computed, scheduler_output.preempted_req_ids or ()))

    def update_connector_output(self, connector_output: Any) -> None:
        assert self._scheduler
        meta = connector_output.kv_connector_worker_meta
        self._scheduler.transferred(meta.parts if meta else {}, connector_output.finished_recving or ())

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler
        answered = request.status in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)
        return self._scheduler.finished(request, block_ids, answered)

    # In a worker.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        assert self._worker
        buffer = Buffer.of(kv_caches, self._kv_cache_config.num_blocks, self._worker.config.gpu)
        spec = self._kv_cache_config.kv_cache_groups[0].kv_cache_spec
        self._worker.register(buffer, fingerprint.instance(self._vllm_config, spec, buffer.layers))

    def get_handshake_metadata(self) -> KvferryHandshake | None:
        assert self._worker
        return KvferryHandshake(self._worker.own) if self._worker.own else None

    def _step(self) -> Step:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, KvferryMetadata)
        return metadata.step

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert self._worker and isinstance(kv_connector_metadata, KvferryMetadata)
        self._worker.before(kv_connector_metadata.step)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        assert self._worker
        self._worker.start(self._step())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Requests are scheduled when all their layers are there."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        assert self._worker
        self._worker.computed(self._step(), [layer_name])

    def wait_for_save(self) -> None:
        assert self._worker
        self._worker.computed(self._step())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        assert self._worker
        self._finished = self._worker.finish(self._step(), finished_req_ids)
        return self._finished.sent, self._finished.received

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._finished.bad

    def build_connector_worker_meta(self) -> KvferryWorkerMetadata | None:
        return KvferryWorkerMetadata(self._finished.parts) if self._finished.parts else None

    def get_kv_connector_stats(self) -> KvferryStats | None:
        counted = self._worker.ledger if self._worker else self._scheduler
        assert counted
        counts = counted.counts()
        return KvferryStats(data=counts) if counts else None

    def shutdown(self) -> None:
        if self._worker:
            self._worker.close()
        if self._scheduler:
            self._scheduler.close()
