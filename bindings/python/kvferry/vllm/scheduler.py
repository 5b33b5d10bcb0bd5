"""The connector in vLLM's scheduler: which requests P holds or writes, and what D asks for. It moves nothing and loads no library.

What a request needs goes to the workers as a Step, with vLLM's next step.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Sequence

from . import bootstrap, fingerprint, layout, report, stats
from .asked import Asked
from .config import LAYERWISE, Config
from .holds import Hold
from .log import log
from .pulls import Peer, Pull
from .pushes import Over
from .receives import Receive


@dataclass(frozen=True)
class Rank:
    """What the scheduler knows of a worker, and peers are told of it."""

    advertisement: str
    planes: list[list[int]]
    kind: dict[str, str]
    """fingerprint.instance."""


@dataclass(frozen=True)
class Chunk:
    """A part of a prompt that this step computes, for a request that D will have."""

    request: str
    transfer: str
    """The transfer's name if P writes the blocks; empty if D reads them."""
    begin: int
    """Tokens that were computed before it; 0 in the first, although some may be in the prefix cache."""
    end: int
    total: int
    """Tokens of the prompt."""
    blocks: list[int]
    """Of the prompt's first `end` tokens."""
    prompt: dict[str, str] = field(default_factory=dict)
    """fingerprint.prompt of all of it, if P writes."""


@dataclass
class Step:
    """What the workers have to know of a step."""

    holds: list[Hold] = field(default_factory=list)
    pulls: list[Pull] = field(default_factory=list)
    receives: list[Receive] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    over: list[Over] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    idle: bool = False
    """Whether nothing is computed: vLLM then steps for as long as a transfer is under way, or a request is held."""


@dataclass
class _Prefill:
    transfer: str
    total: int
    prompt: dict[str, str]
    computed: int = 0


class Scheduler:
    def __init__(self, config: Config, engine_id: str, block_tokens: int, clock: Callable[[], float] = time.monotonic):
        self.config, self.engine_id, self.block_tokens, self.clock = config, engine_id, block_tokens, clock
        self.ranks: list[Rank] = []
        self.block_ids: Callable[[str], Sequence[int]] | None = None  # of a request
        self.hold = 0  # the last one's number
        self.next = Step()
        self.prefills: dict[str, _Prefill] = {}  # requests that D will have
        self.arrived: dict[str, float] = {}  # requests that P has computed, which have no blocks yet: when
        self.reports: dict[str, report.Report] = {}  # of requests that have been transferred
        self.refused = 0  # requests, since counts was called
        self.found: dict[str, dict[str, Any]] = {}  # requests that P will write: what its bootstrap says
        self.unwanted: list[Any] = []  # requests of which P is to be told that nothing is wanted, once its bootstrap has answered
        self.warned = False  # of a report_url that is not allowed
        self.server: bootstrap.Server | None = None
        self.client = bootstrap.Client(config.timeout, clock)

    def set_ranks(self, ranks: list[Rank]) -> None:
        self.ranks, self.kind = ranks, fingerprint.joined([rank.kind for rank in ranks])
        if self.config.bootstrap and self.config.handoff == LAYERWISE:
            self.server = bootstrap.Server(self.config.bootstrap, {**self._description(), "remote_checksums": self.config.checksums})

    def close(self) -> None:
        if self.server:
            self.server.close()
            self.server = None

    def _description(self) -> dict[str, Any]:
        """What D has to know of this P."""
        return {
            "remote_kind": self.kind,
            "remote_ranks": [{"advertisement": rank.advertisement, "planes": rank.planes} for rank in self.ranks],
        }

    def _asked(self, request: Any) -> Asked:
        return Asked.of(request, bool(self.server))

    def new_request(self, request: Any) -> None:
        if self._asked(request).comes:
            self.arrived[request.request_id] = self.clock()

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """How many tokens P has beyond those that D has itself, and whether they will come by themselves. None: ask again."""
        asked = self._asked(request)
        if not asked.comes:
            return 0, False
        params = asked.params
        wrong, remote = self._wrong(asked), params
        if asked.comes == LAYERWISE and not wrong:
            found = self.client.get(self.clock(), params["remote_bootstrap_addr"])
            if found is None:
                return None, False
            wrong, remote = (found, params) if isinstance(found, str) else ("", found)
        if wrong := wrong or self._unlike(remote) or self._other(request, asked):
            log.error("%s: %s: its prompt is computed here", request.request_id, wrong)
            self.refused += 1
            params["do_remote_prefill"] = False
            return 0, False
        if asked.comes == LAYERWISE:
            self.found[request.request_id] = remote
        count = self._end(request, asked) - computed
        return (count, True) if count > 0 else (0, False)

    def _wrong(self, asked: Asked) -> str:
        wrong = asked.wrong(self.config.handoff)
        if wrong or asked.comes != LAYERWISE:
            return wrong
        return self.config.refuses("remote_bootstrap_addr", asked.params["remote_bootstrap_addr"])

    def _unlike(self, remote: dict[str, Any]) -> str:
        """Why what P says of itself cannot be taken, if it cannot. It came over HTTP, from whoever sent it."""
        ranks = remote.get("remote_ranks")
        if not isinstance(ranks, list) or not all(isinstance(rank, dict) and isinstance(rank.get("advertisement"), str) for rank in ranks):
            return "remote_ranks are not what P says"
        if len(ranks) != len(self.ranks):
            return f"P has {len(ranks)} tensor-parallel ranks and D {len(self.ranks)}: give both the same --tensor-parallel-size"
        if unlike := fingerprint.unlike(remote.get("remote_kind"), self.kind):
            return f"P's KV is not of the kind of D's: {unlike}"
        own = layout.layers(self.ranks[0].planes)
        return "remote_ranks have other layers than remote_kind" if any(layout.layers(rank.get("planes")) != own for rank in ranks) else ""

    def _other(self, request: Any, asked: Asked) -> str:
        """What is said if P has answered another prompt. Its hold is not ended here: who has that prompt may come."""
        if asked.comes == LAYERWISE:
            return ""  # P compares them
        tokens = asked.params["remote_num_tokens"]
        if len(asked.params["remote_block_ids"]) != -(-tokens // self.block_tokens):
            return "remote_block_ids and remote_num_tokens are not what P has answered"
        unlike = fingerprint.unlike(asked.params.get("remote_prompt"), self._prompt(request, tokens))
        return unlike and f"P's prompt is another: {unlike}: give each prompt kv_transfer_params of its own"

    def _prompt(self, request: Any, tokens: int) -> dict[str, str]:
        return fingerprint.prompt(request, tokens, self.engine_id)

    def _end(self, request: Any, asked: Asked) -> int:
        """How many tokens of a prompt P computes."""
        return request.num_prompt_tokens if asked.comes == LAYERWISE else min(asked.params["remote_num_tokens"], request.num_prompt_tokens)

    def allocated(self, request: Any, blocks: Sequence[int], external: int) -> None:
        """A request has its blocks, and `external` tokens of them are P's."""
        asked = self._asked(request)
        if asked.goes:
            self.prefills[request.request_id] = _Prefill(asked.transfer, request.num_prompt_tokens, self._prompt(request, request.num_prompt_tokens) if asked.transfer else {})
        if not asked.comes:
            return
        asked.params["do_remote_prefill"] = False  # once, also if it is scheduled again
        end = self._end(request, asked)
        first, last = (end - external) // self.block_tokens, -(-end // self.block_tokens)
        lacking = slice(first, last) if external else slice(0)
        if asked.comes == LAYERWISE:
            self._receive(request, list(blocks)[lacking], first, end)
        else:
            self._pull(request, list(blocks)[lacking], asked.params["remote_block_ids"][lacking], max(0, asked.params.get("remote_checked_blocks", 0) - first))
        self._begin(request, waiting=external > 0)

    def _pull(self, request: Any, ours: list[int], theirs: list[int], checked: int) -> None:
        params = request.kv_transfer_params
        self.next.pulls.append(Pull(request.request_id, params["remote_hold"], _peers(params), ours, theirs, checked, params["remote_key"]))

    def _receive(self, request: Any, blocks: list[int], first: int, tokens: int) -> None:
        remote = self.found.pop(request.request_id, None)
        if remote is None:  # vLLM does not wait for KV of a request with prompt_logprobs, nor for one that is aborted
            self.unwanted.append(request)
            return
        transfer, checked = str(request.kv_transfer_params["transfer_id"]), bool(remote.get("remote_checksums"))
        self.next.receives.append(Receive(request.request_id, transfer, _peers(remote), blocks, first, tokens, checked, self._prompt(request, request.num_prompt_tokens)))

    def _begin(self, request: Any, waiting: bool) -> None:
        """The report of a transfer that begins, and is over at once where nothing is waited for."""
        queue = self.clock() - self.arrived.pop(request.request_id, self.clock())
        url = str(request.kv_transfer_params.get("report_url") or "")
        if url and (refused := self.config.refuses("report_url", url)):
            if not self.warned:
                log.warning("%s: %s: no such report is posted", request.request_id, refused)
            url, self.warned = "", True
        made = self.reports[request.request_id] = report.Report(request.request_id, round(queue * 1e6), url)
        if not waiting:
            report.post(made)

    def step(self, computed: dict[str, int], preempted: Iterable[str] = ()) -> Step:
        """What the workers need for a step, after which so many tokens of these requests are computed."""
        unwanted, self.unwanted = self.unwanted, []
        for request in unwanted:
            found = self.client.get(self.clock(), request.kv_transfer_params["remote_bootstrap_addr"])
            if found is None:
                self.unwanted.append(request)
            elif isinstance(found, dict) and not self._unlike(found):
                self.found[request.request_id] = found
                self._receive(request, [], 0, 0)
        step, self.next = self.next, Step()
        step.idle, step.preempted = not computed, [request for request in preempted if request in self.prefills]
        for request, end in computed.items():
            prefill = self.prefills.get(request)
            if prefill is None or prefill.computed >= prefill.total:
                continue
            assert self.block_ids
            end = min(end, prefill.total)
            blocks = list(self.block_ids(request))[: -(-end // self.block_tokens)]
            step.chunks.append(Chunk(request, prefill.transfer, prefill.computed, end, prefill.total, blocks, prefill.prompt))
            prefill.computed = end
        return step

    def transferred(self, parts: dict[str, report.Part], over: Iterable[str]) -> None:
        """What workers say of transfers, and the requests whose transfers are over in all workers."""
        for request, part in parts.items():
            if made := self.reports.get(request):
                made.add(part)
        for request in over:
            if made := self.reports.get(request):
                report.post(made)

    def counts(self) -> dict[str, Any] | None:
        """What was counted since the last call. Refused requests are failed transfers, as failed handshakes are to vLLM's NIXL connector."""
        refused, self.refused = self.refused, 0
        return {**stats.empty(), "num_failed_transfers": refused} if refused else None

    def finished(self, request: Any, blocks: Sequence[int], answered: bool) -> tuple[bool, dict[str, Any] | None]:
        """A request is over, with an answer or without: whether its blocks are held, and the kv_transfer_params of the answer."""
        asked = self._asked(request)
        self.prefills.pop(request.request_id, None)
        if asked.comes:
            self._decline(request, asked)
        self.arrived.pop(request.request_id, None)
        self.found.pop(request.request_id, None)
        if made := self.reports.pop(request.request_id, None):
            report.post(made)  # of a transfer that has failed, or that nobody waits for
        if not asked.goes:
            return False, {"kvferry": made.json()} if made else None
        if transfer := asked.transfer:
            self.next.over.append(Over(request.request_id, transfer, answered, bool(blocks)))
            return bool(blocks), {"do_remote_prefill": True, "do_remote_decode": False, "transfer_id": transfer, "remote_bootstrap_addr": f"http://{self.config.bootstrap}"}
        if not answered or not blocks:
            return False, None
        self.hold += 1
        key = secrets.randbits(61)
        self.next.holds.append(Hold(self.hold, request.request_id, key))
        tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
        return True, {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.engine_id,
            "remote_request_id": request.request_id,
            "remote_block_ids": list(blocks)[: -(-tokens // self.block_tokens)],
            "remote_num_tokens": tokens,
            "remote_prompt": self._prompt(request, tokens),
            "remote_hold": self.hold,
            "remote_key": key,
            "remote_checked_blocks": self._checked(request, tokens),
            **self._description(),
        }

    def _decline(self, request: Any, asked: Asked) -> None:
        """D has ended a request before it was scheduled: P need not wait for its lease."""
        asked.params["do_remote_prefill"] = False
        if self._wrong(asked):
            return
        if asked.comes == LAYERWISE:
            self._receive(request, [], 0, 0)
        elif not (self._unlike(asked.params) or self._other(request, asked)):
            self._pull(request, [], [], 0)

    def _checked(self, request: Any, tokens: int) -> int:
        """Of how many blocks with a prompt's tokens there are checksums. Tokens of P's answer change the block that they begin in."""
        if not self.config.checksums:
            return 0
        return tokens // self.block_tokens if request.num_computed_tokens > tokens else -(-tokens // self.block_tokens)


def _peers(remote: dict[str, Any]) -> list[Peer]:
    """P's ranks."""
    return [Peer(rank["advertisement"], rank["planes"]) for rank in remote["remote_ranks"]]
