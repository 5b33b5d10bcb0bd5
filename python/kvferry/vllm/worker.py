"""The connector in a worker of vLLM's: the engine, the memory of KV, and the batches that pulls and holds lead to."""

from __future__ import annotations

import json
import logging
import time
from array import array
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Sequence

import kvferry

from . import layout, pulls, stats
from .checksums import Checksums
from .config import Config
from .holds import SLOTS, Holds
from .report import Part
from .scheduler import Rank, Step

log = logging.getLogger("vllm.kvferry")

TARGETS = 256
"""Peers that are kept open. The one that was used longest ago is closed for another; it is opened again when it is needed."""

IDLE = 0.001
"""Seconds that a step with nothing to compute waits for something to come: the engine's threads may have no other core."""

RELEASE = 5.0
"""Seconds that a message may take that nobody waits for."""


@dataclass
class Memory:
    """A rank's KV: one buffer with all layers."""

    address: int
    length: int
    layers: list[layout.Layer]
    blocks: int
    location: str | None = None


@dataclass
class Flight:
    """A batch that is under way, of a pull."""

    pull: pulls.Pull
    batch: int = 0
    slot: int = 0
    """Of the word that a Confirm reads, in `words`; 0 for others."""


@dataclass
class Timing:
    """When a pull came how far."""

    posted: float = 0.0
    part: Part = field(default_factory=Part)
    descriptors: int = 0
    bad: list[int] = field(default_factory=list)


@dataclass
class Finished:
    """What vLLM is told after a step."""

    sent: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    bad: set[int] = field(default_factory=set)
    parts: dict[str, Part] = field(default_factory=dict)


class Worker:
    def __init__(self, config: Config, name: str, rank: int, block_tokens: int, clock: Callable[[], float] = time.monotonic):
        """Loads the library: to be called in the process that moves the KV, after its last fork."""
        self.config, self.rank, self.block_tokens, self.clock = config, rank, block_tokens, clock
        try:
            self.engine = kvferry.Engine(config.rails, name=name, timeout=config.timeout)
        except kvferry.Error as e:
            raise RuntimeError(f"kv_connector_extra_config.rails {config.rails!r}: {e}") from e
        self.holds = Holds(config.lease)
        self.pulls = pulls.Pulls()
        self.targets: dict[str, kvferry.Target] = {}  # by advertisement, the one used longest ago first
        self.flights: dict[int, Flight] = {}  # by user data
        self.reading: dict[str, int] = {}  # batches of READs, by request
        self.timings: dict[str, Timing] = {}
        self.last = 0  # user data
        self.words = array("Q", bytes(8 * SLOTS))  # that Confirms read; the first is nobody's
        self.free = list(range(1, SLOTS))
        self.counted = stats.empty()
        self.finished = Finished()
        self.own: Rank | None = None

    def register(self, memory: Memory) -> None:
        self.memory = memory
        self.block_bytes = sum(layer.page for layer in memory.layers)
        places = [(layer.offset, layer.stride, layer.page) for layer in memory.layers]
        self.checksums = Checksums(memory.address, memory.length, places, memory.blocks)
        kv = self.engine.register(memory.address, memory.length, name="kv", location=memory.location)
        digests = self.engine.register(self.checksums.table, name="checksums")
        ended = self.engine.register(self.holds.ended, name="holds")
        self.word = self.engine.register(self.words, name="words", private=True).address
        self.digests = digests.address
        self.own = Rank(
            self.engine.advertise(kv, digests, ended).decode(),
            layout.planes(memory.layers),
            layout.model(memory.layers, self.block_tokens),
        )

    def start(self, step: Step) -> None:
        """What the scheduler wants of a step."""
        self._free(self.holds.step(self.clock(), begun=step.holds))
        self._step([pulls.Asked(pull) for pull in step.pulls])

    def computed(self, step: Step) -> None:
        """The step's KV is there."""
        for chunk in step.chunks:
            self.checksums.make(chunk.blocks)

    def poll(self, step: Step, over: Iterable[str]) -> Finished:
        """What has come to an end; `over` are requests that vLLM has ended."""
        self._step([pulls.Aborted(request) for request in over])
        events: list[pulls.Event] = []
        released: list[int] = []
        if self.engine.wait(IDLE if step.idle else 0):
            events = [event for completion in self.engine.poll() if (event := self._completed(completion))]
            released = [json.loads(message.data)["release"] for message in self.engine.receive()]
        self._step(events)
        self._free(self.holds.step(self.clock(), released=released))
        finished, self.finished = self.finished, Finished()
        return finished

    def counts(self) -> dict[str, Any] | None:
        """What was counted since the last call."""
        if stats.is_empty(self.counted):
            return None
        counted, self.counted = self.counted, stats.empty()
        return counted

    def close(self) -> None:
        self.engine.close()

    def _free(self, freed: Any) -> None:
        self.finished.sent.update(freed.requests)
        self.counted["num_kv_expired_reqs"] += len(freed.expired)
        self.counted["num_notifications_after_expiry"] += freed.late
        for request in freed.expired:
            log.warning("%s: no D has taken its blocks within the lease of %g s: they are freed", request, self.config.lease)

    def _step(self, events: Sequence[pulls.Event]) -> None:
        do: dict[type, Callable[[Any], pulls.Event | None]] = {
            pulls.Read: self._read,
            pulls.Confirm: self._confirm,
            pulls.Release: self._release,
            pulls.Cancel: self._cancel,
            pulls.Finish: self._finish,
        }
        while events:  # what cannot be submitted is over at once
            events = [event for action in self.pulls.step(events) if (event := do[type(action)](action))]

    def _read(self, read: pulls.Read) -> pulls.Event | None:
        pull, began = read.pull, time.perf_counter()
        places = layout.places(self._peer(pull).planes)
        base = self.memory.address
        parts = [
            (base + ours.offset, ours.stride, offset, stride, page, layout.KV)
            for ours, (offset, stride, page) in zip(self.memory.layers, places, strict=True)
        ]
        if self._checked(pull):
            parts.append((self.digests, layout.WORD, 0, layout.WORD, layout.WORD, layout.DIGESTS))
        ranges = layout.ranges(parts, pull.ours, pull.theirs)
        failed = self._submit(pull, ranges, timeout=self.config.timeout)
        timing = self.timings[pull.request] = Timing(time.perf_counter(), descriptors=len(ranges))
        timing.part.post_us = round((timing.posted - began) * 1e6)
        if not failed:
            self.reading[pull.request] = self.last
        return failed

    def _confirm(self, confirm: pulls.Confirm) -> pulls.Event | None:
        pull = confirm.pull
        slot = self.free.pop()
        word = kvferry.Range(self.word + layout.WORD * slot, layout.WORD * (pull.hold % SLOTS), layout.WORD, segment=layout.ENDED)
        failed = self._submit(pull, [word], timeout=self.config.timeout, slot=slot, message=_release(pull))
        if self._checked(pull):
            timing = self.timings[pull.request]
            timing.bad = self.checksums.wrong(pull.ours)
            timing.part.kv_blocks_checked, timing.part.kv_blocks_bad = len(pull.ours), len(timing.bad)
        return failed

    def _release(self, release: pulls.Release) -> None:
        self._submit(release.pull, [], timeout=RELEASE, message=_release(release.pull), waited=False)

    def _cancel(self, cancel: pulls.Cancel) -> None:
        self.engine.cancel(self.flights[self.reading[cancel.pull.request]].batch)

    def _finish(self, finish: pulls.Finish) -> None:
        pull = finish.pull
        timing, bad = self.timings.pop(pull.request), []
        self.reading.pop(pull.request, None)
        if finish.error:
            bad = pull.ours
            if not finish.aborted:
                log.error("%s: its KV was not received: %s", pull.request, finish.error)
        elif timing.bad:
            bad = timing.bad
            log.error("%s: %d of %d blocks have another checksum than at P: %s", pull.request, len(bad), len(pull.ours), bad[:8])
        part = timing.part
        part.land_us = max(0, round((time.perf_counter() - timing.posted) * 1e6) - part.wire_us)
        if not finish.aborted:
            self._count(part, timing, failed=bool(bad))
        self.finished.received.add(pull.request)
        self.finished.bad.update(bad)
        self.finished.parts[pull.request] = part

    def _count(self, part: Part, timing: Timing, failed: bool) -> None:
        self.counted["num_blocks_checked"] += part.kv_blocks_checked
        self.counted["num_blocks_bad"] += part.kv_blocks_bad
        if failed:
            self.counted["num_failed_transfers"] += 1
            return
        for name, value in (
            ("transfer_duration", part.wire_us / 1e6),
            ("post_duration", part.post_us / 1e6),
            ("land_duration", part.land_us / 1e6),
            ("bytes_transferred", part.kv_bytes),
            ("num_descriptors", timing.descriptors),
        ):
            self.counted[name].append(value)

    def _completed(self, completion: kvferry.Completion) -> pulls.Event | None:
        flight = self.flights.pop(completion.user_data, None)
        if flight is None:
            return None
        ended = False
        if flight.slot:
            self.free.append(flight.slot)
            ended = not completion.error and self.words[flight.slot] >= flight.pull.hold
        elif not completion.error:
            part = self.timings[flight.pull.request].part
            part.wire_us = round(completion.elapsed * 1e6)
            part.kv_bytes = len(flight.pull.ours) * self.block_bytes
        return pulls.Done(flight.pull.request, str(completion.error or ""), ended)

    def _checked(self, pull: pulls.Pull) -> bool:
        return self.config.checksums and pull.checked

    def _peer(self, pull: pulls.Pull) -> pulls.Peer:
        return pull.peers[self.rank]

    def _submit(self, pull: pulls.Pull, ranges: Any, *, timeout: float, slot: int = 0, message: bytes | None = None, waited: bool = True) -> pulls.Event | None:
        """Submits a READ. Returns its end if it cannot be; otherwise its completion has it, if it is waited for."""
        self.last += 1
        try:
            target = self._target(self._peer(pull).advertisement)
            batch = self.engine.submit(
                target, kvferry.READ, ranges, user_data=self.last, timeout=timeout, tag=pull.request, message=message
            )
        except kvferry.Error as e:
            if slot:
                self.free.append(slot)
            return pulls.Done(pull.request, str(e)) if waited else None
        if waited:
            self.flights[self.last] = Flight(pull, batch, slot)
        return None

    def _target(self, advertisement: str) -> kvferry.Target:
        target = self.targets.pop(advertisement, None) or self.engine.connect(advertisement.encode())
        self.targets[advertisement] = target
        if len(self.targets) > TARGETS:
            self.targets.pop(next(iter(self.targets))).close()  # what is under way to it goes on
        return target


def _release(pull: pulls.Pull) -> bytes:
    return json.dumps({"release": pull.hold}).encode()
