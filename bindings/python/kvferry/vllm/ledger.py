"""What D notes of each transfer, for vLLM, its metrics and the report, whichever way the KV came."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Sequence

from . import stats
from .log import log
from .report import Part


@dataclass
class Finished:
    """What vLLM is told after a step."""

    sent: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    bad: set[int] = field(default_factory=set)
    parts: dict[str, Part] = field(default_factory=dict)


@dataclass
class _Transfer:
    blocks: Sequence[int]
    began: float
    part: Part = field(default_factory=Part)
    descriptors: int = 0
    bad: list[int] = field(default_factory=list)


class Ledger:
    def __init__(self) -> None:
        self.block_bytes = 0
        self.transfers: dict[str, _Transfer] = {}  # under way, by request
        self.counted = stats.empty()
        self.finished = Finished()

    def begin(self, request: str, blocks: Sequence[int]) -> None:
        self.transfers[request] = _Transfer(blocks, time.perf_counter())

    def post(self, request: str, seconds: float, descriptors: int) -> None:
        transfer = self.transfers[request]
        transfer.part.post_us, transfer.descriptors = round(seconds * 1e6), descriptors

    def wire(self, request: str, seconds: float) -> None:
        part = self.transfers[request].part
        part.wire_us, part.kv_bytes = round(seconds * 1e6), len(self.transfers[request].blocks) * self.block_bytes

    def checked(self, request: str, blocks: int, bad: list[int]) -> None:
        transfer = self.transfers[request]
        transfer.bad = bad
        transfer.part.kv_blocks_checked, transfer.part.kv_blocks_bad = blocks, len(bad)

    def good(self, request: str, error: str) -> list[int]:
        """Blocks of a transfer that is over which vLLM is to have: with an error none of them is right."""
        transfer = self.transfers[request]
        return [] if error else [block for block in transfer.blocks if block not in transfer.bad]

    def finish(self, request: str, error: str, aborted: bool) -> None:
        """A transfer is over, and its good blocks have landed."""
        transfer = self.transfers.pop(request)
        part, bad = transfer.part, transfer.blocks if error else transfer.bad
        part.land_us = max(0, round((time.perf_counter() - transfer.began) * 1e6) - part.post_us - part.wire_us)
        self.finished.received.add(request)
        self.finished.parts[request] = part
        if aborted:
            return
        self.finished.bad.update(bad)
        if error:
            log.error("%s: its KV was not received: %s", request, error)
        elif bad:
            log.error("%s: %d of %d blocks have another checksum than at P: %s", request, len(bad), len(transfer.blocks), bad[:8])
        self.counted["num_blocks_checked"] += part.kv_blocks_checked
        self.counted["num_blocks_bad"] += part.kv_blocks_bad
        if bad:
            self.counted["num_failed_transfers"] += 1
            return
        for name, value in (
            ("transfer_duration", part.wire_us / 1e6),
            ("post_duration", part.post_us / 1e6),
            ("land_duration", part.land_us / 1e6),
            ("bytes_transferred", part.kv_bytes),
            ("num_descriptors", transfer.descriptors),
        ):
            self.counted[name].append(value)

    def freed(self, requests: Sequence[str], expired: Sequence[str], late: int, lease: float) -> None:
        """P's blocks of these requests are vLLM's again."""
        self.finished.sent.update(requests)
        self.counted["num_kv_expired_reqs"] += len(expired)
        self.counted["num_notifications_after_expiry"] += late
        for request in expired:
            log.warning("%s: no D has taken its blocks within the lease of %g s: they are freed", request, lease)

    def take(self) -> Finished:
        finished, self.finished = self.finished, Finished()
        return finished

    def counts(self) -> dict[str, Any] | None:
        """What was counted since the last call."""
        if stats.is_empty(self.counted):
            return None
        counted, self.counted = self.counted, stats.empty()
        return counted
