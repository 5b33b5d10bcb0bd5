"""stats.py's counts as vLLM's: KVConnectorStats for its log, and Prometheus metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.utils import create_metric_per_engine

from . import stats


@dataclass
class KvferryStats(KVConnectorStats):
    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data = stats.empty()

    def is_empty(self) -> bool:
        return stats.is_empty(self.data)

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        stats.add(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        return stats.reduced(self.data)


_TIMES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_BYTES = tuple(float(2**k) for k in range(14, 36, 2))
_COUNTS = tuple(float(2**k) for k in range(0, 17, 2))

HISTOGRAMS = {
    "transfer_duration": ("xfer_time_seconds", "Seconds from the submission of a transfer's batch to its end.", _TIMES),
    "post_duration": ("post_time_seconds", "Seconds to make and submit a transfer's batch.", _TIMES),
    "land_duration": ("land_time_seconds", "Seconds from the end of a transfer's batch to vLLM's being told: checks, and the wait for a step.", _TIMES),
    "bytes_transferred": ("bytes_transferred", "Bytes of a transfer.", _BYTES),
    "num_descriptors": ("num_descriptors", "Ranges of a transfer.", _COUNTS),
}

COUNTERS = {
    "num_failed_transfers": ("num_failed_transfers", "Transfers that failed, and prompts whose KV D did not ask for, as P is not one for it: they are recomputed or fail."),
    "num_kv_expired_reqs": ("num_kv_expired_reqs", "Requests of P whose lease has ended before D took their KV."),
    "num_notifications_after_expiry": ("num_notifications_after_expiry", "Releases that came to P after the lease had ended."),
    "num_blocks_checked": ("kv_blocks_checked", "Blocks that D has compared with P's checksums."),
    "num_blocks_bad": ("kv_blocks_bad", "Of those, blocks that were not equal."),
}


class KvferryPromMetrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config: Any, metric_types: dict[Any, Any], labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        histogram, counter = metric_types[Histogram], metric_types[Counter]
        self.metrics = {
            **{
                key: histogram(name=f"vllm:kvferry_{name}", documentation=text, buckets=list(buckets), labelnames=labelnames)
                for key, (name, text, buckets) in HISTOGRAMS.items()
            },
            **{key: counter(name=f"vllm:kvferry_{name}", documentation=text, labelnames=labelnames) for key, (name, text) in COUNTERS.items()},
        }
        self.metrics = {key: create_metric_per_engine(metric, per_engine_labelvalues) for key, metric in self.metrics.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for key in HISTOGRAMS:
            for value in transfer_stats_data[key]:
                self.metrics[key][engine_idx].observe(value)
        for key in COUNTERS:
            self.metrics[key][engine_idx].inc(transfer_stats_data[key])
