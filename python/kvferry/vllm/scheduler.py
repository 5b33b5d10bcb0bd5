"""The connector in vLLM's scheduler: which requests are held by P and which D asks for. It moves nothing and loads no library.

What a request needs goes to the workers as a Step, with vLLM's next step.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Sequence

from . import report
from .config import Config
from .holds import Hold
from .pulls import Peer, Pull

log = logging.getLogger("vllm.kvferry")


@dataclass(frozen=True)
class Rank:
    """What the scheduler knows of a worker, and peers are told of it."""

    advertisement: str
    planes: list[list[int]]
    model: str
    """layout.model."""


@dataclass(frozen=True)
class Chunk:
    """A part of a prompt that this step computes, for a request that D will have."""

    request: str
    blocks: list[int]
    """That have new tokens after it."""


@dataclass
class Step:
    """What the workers have to know of a step."""

    holds: list[Hold] = field(default_factory=list)
    pulls: list[Pull] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    idle: bool = False
    """Whether nothing is computed: vLLM then steps for as long as a transfer is under way, or a request is held."""


NEEDED = ("remote_ranks", "remote_model", "remote_hold", "remote_block_ids", "remote_num_tokens")
"""The fields of kv_transfer_params that D cannot do without, beside do_remote_prefill."""


class Scheduler:
    def __init__(self, config: Config, engine_id: str, block_tokens: int, clock: Callable[[], float] = time.monotonic):
        self.config, self.engine_id, self.block_tokens, self.clock = config, engine_id, block_tokens, clock
        self.ranks: list[Rank] = []
        self.block_ids: Callable[[str], Sequence[int]] | None = None  # of a request
        self.hold = 0  # the last one's number
        self.next = Step()
        self.prefills: dict[str, int] = {}  # requests that D will have: how many of their tokens are computed
        self.arrived: dict[str, float] = {}  # requests that P has computed, which have no blocks yet: when
        self.reports: dict[str, report.Report] = {}  # of requests that have been transferred

    def set_ranks(self, ranks: list[Rank]) -> None:
        self.ranks = ranks

    def new_request(self, request: Any) -> None:
        params = request.kv_transfer_params or {}
        if params.get("do_remote_prefill"):
            self.arrived[request.request_id] = self.clock()

    def matched(self, request: Any, computed: int) -> tuple[int, bool]:
        """How many tokens P has beyond those that D has itself, and whether they will come by themselves."""
        params = request.kv_transfer_params or {}
        if not params.get("do_remote_prefill"):
            return 0, False
        if wrong := self._wrong(params):
            log.error("%s: %s: its prompt is computed here", request.request_id, wrong)
            params["do_remote_prefill"] = False
            return 0, False
        count = min(params["remote_num_tokens"], request.num_prompt_tokens) - computed
        return (count, True) if count > 0 else (0, False)

    def _wrong(self, params: dict[str, Any]) -> str:
        """What is wrong with P's answer, if something is."""
        if missing := [name for name in NEEDED if not params.get(name)]:
            return f"kv_transfer_params have no {missing[0]}: give D all that P has answered"
        if len(params["remote_ranks"]) != len(self.ranks):
            return f"P has {len(params['remote_ranks'])} tensor-parallel ranks and D {len(self.ranks)}: give both the same --tensor-parallel-size"
        if params["remote_model"] != self.ranks[0].model:
            return "P's KV is not of the kind of D's: give both the same model, dtype, --block-size and --kv-cache-dtype"
        return ""

    def allocated(self, request: Any, blocks: Sequence[int], external: int) -> None:
        """A request has its blocks, and `external` tokens of them are P's."""
        params = request.kv_transfer_params or {}
        if params.get("do_remote_decode"):
            self.prefills[request.request_id] = 0
        if not params.get("do_remote_prefill"):
            return
        params["do_remote_prefill"] = False  # once, also if it is scheduled again
        end = min(params["remote_num_tokens"], request.num_prompt_tokens)
        first, last = (end - external) // self.block_tokens, -(-end // self.block_tokens)
        lacking = slice(first, last) if external else slice(0)
        self._ask(request, list(blocks)[lacking], params["remote_block_ids"][lacking], waiting=external > 0)

    def _ask(self, request: Any, ours: list[int], theirs: list[int], waiting: bool) -> None:
        params = request.kv_transfer_params
        self.next.pulls.append(
            Pull(
                request.request_id,
                params["remote_hold"],
                [Peer(**rank) for rank in params["remote_ranks"]],
                ours,
                theirs,
                checked=bool(params.get("remote_checksums")),
                waiting=waiting,
            )
        )
        queue = self.clock() - self.arrived.pop(request.request_id, self.clock())
        made = self.reports[request.request_id] = report.Report(request.request_id, queue_us=round(queue * 1e6))
        made.url = params.get("report_url") or ""
        if not waiting:
            report.post(made)

    def step(self, computed: dict[str, int]) -> Step:
        """What the workers need for a step, after which so many tokens of these requests are computed."""
        step, self.next = self.next, Step()
        step.idle = not computed
        for request, end in computed.items():
            if request not in self.prefills or not self.config.checksums:
                continue
            begin, self.prefills[request] = self.prefills[request], end
            assert self.block_ids
            step.chunks.append(Chunk(request, list(self.block_ids(request)[begin // self.block_tokens : -(-end // self.block_tokens)])))
        return step

    def transferred(self, parts: dict[str, report.Part], over: Iterable[str]) -> None:
        """What workers say of transfers, and the requests whose transfers are over in all workers."""
        for request, part in parts.items():
            if made := self.reports.get(request):
                made.add(part)
        for request in over:
            if made := self.reports.get(request):
                report.post(made)

    def finished(self, request: Any, blocks: Sequence[int], answered: bool) -> tuple[bool, dict[str, Any] | None]:
        """A request is over, with an answer or without: whether its blocks are held, and the kv_transfer_params of the answer."""
        params = request.kv_transfer_params or {}
        self.prefills.pop(request.request_id, None)
        if params.get("do_remote_prefill") and not self._wrong(params):  # never scheduled: P need not wait for its lease
            params["do_remote_prefill"] = False
            self._ask(request, [], [], waiting=False)
        self.arrived.pop(request.request_id, None)
        if made := self.reports.pop(request.request_id, None):
            return False, {"kvferry": made.json()}
        if not params.get("do_remote_decode") or not answered or not blocks:
            return False, None
        self.hold += 1
        self.next.holds.append(Hold(self.hold, request.request_id))
        tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
        return True, {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.engine_id,
            "remote_request_id": request.request_id,
            "remote_block_ids": list(blocks)[: -(-tokens // self.block_tokens)],
            "remote_num_tokens": tokens,
            "remote_hold": self.hold,
            "remote_model": self.ranks[0].model,
            "remote_ranks": [{"advertisement": rank.advertisement, "planes": rank.planes} for rank in self.ranks],
            "remote_checksums": self.config.checksums,
        }
