"""The connector in a worker of vLLM's: the engine, and what is done with it in each of vLLM's steps."""

from __future__ import annotations

import json
import time
from typing import Any, Iterable

import kvferry

from . import layout, pulls, receives
from .batches import Batches
from .config import LAYERWISE, Config
from .device import Host
from .holds import Holds
from .ledger import Finished, Ledger
from .log import log
from .memory import Buffer, Memory
from .puller import Puller
from .pusher import Pusher
from .receiver import Receiver
from .scheduler import Chunk, Rank, Step

IDLE = 0.001
"""Seconds that a step with nothing to compute waits for something to come: the engine's threads may have no other core."""

READING = 0.004
"""Seconds that it waits for a pull's end, which a step of its own would come to later. A request that comes meanwhile waits too."""


class Worker:
    def __init__(self, config: Config, name: str, rank: int, block_tokens: int):
        """Loads the library: to be called in the process that moves the KV, after its last fork."""
        self.config, self.rank, self.block_tokens = config, rank, block_tokens
        try:
            self.engine = kvferry.Engine(config.rails, name=name, timeout=config.timeout)
        except kvferry.Error as e:
            raise RuntimeError(f"kv_connector_extra_config.rails {config.rails!r}: {e}") from e
        self.batches, self.ledger, self.holds = Batches(self.engine), Ledger(), Holds(config.lease)
        self.own: Rank | None = None
        self.device = Host()
        self.saved: set[int] = set()  # layers, of the step

    def register(self, buffer: Buffer, kind: dict[str, str]) -> None:
        """kind is fingerprint.instance."""
        memory = self.memory = Memory(self.engine, buffer, self.holds.ended)
        self.device = buffer.device
        self.ledger.block_bytes = memory.block_bytes
        self.puller = Puller(self.config, self.rank, self.batches, memory, self.ledger)
        self.receiver = Receiver(self.config, self.rank, self.batches, memory, self.ledger)
        self.pusher = Pusher(self.config, self.batches, memory, self.ledger, self.block_tokens)
        self.layers = {layer.name: k for k, layer in enumerate(buffer.layers)}
        self.own = Rank(memory.advertisement, memory.planes, kind)

    def before(self, step: Step) -> None:
        """A step begins: its requests' blocks may be written when this returns."""
        self.pusher.preempted(step.preempted, lambda: self._poll(IDLE))

    def start(self, step: Step) -> None:
        """What the scheduler wants of the step."""
        self._free(begun=step.holds)
        for pull in step.pulls:
            self.puller.step(pulls.Asked(pull))
        self.receiver.step(time.monotonic(), [receives.Asked(receive) for receive in step.receives])

    def computed(self, step: Step, layers: Iterable[str] = ()) -> None:
        """vLLM has started to compute layers of the step's KV, on a CPU has computed them; without names all. All that are handed
        over have been when that returns."""
        chunks = [chunk for chunk in step.chunks if chunk.transfer or self.config.checksums or self.device.copies]
        names = list(layers)
        if not chunks or names and self.config.handoff != LAYERWISE:
            return
        some = [self.layers[name] for name in names if name in self.layers] if names else [k for k in range(len(self.layers)) if k not in self.saved]
        self.saved.update(some)
        self.device.save(some, (block for chunk in chunks for block in self._blocks(chunk)))
        for ready in self.device.saved(wait=not names):
            if self.pusher.pushes.waits():
                self._poll(0)  # D's word may come while the step computes
            self.pusher.ready(time.monotonic(), chunks, ready)
        if names:
            return
        self.saved.clear()
        if self.config.checksums:
            for chunk in chunks:
                if not chunk.transfer:
                    self.memory.checksums.make(self._blocks(chunk))

    def _blocks(self, chunk: Chunk) -> list[int]:
        """What a chunk has computed or changed; of a prompt's first, the blocks of the prefix cache too: who made them may not have
        handed them over."""
        return chunk.blocks[chunk.begin // self.block_tokens :]

    def finish(self, step: Step, over: Iterable[str]) -> Finished:
        """The end of a step: what has come to an end by then. `over` are requests that vLLM has ended."""
        for request in over:
            self.puller.step(pulls.Aborted(request))
        self.receiver.step(time.monotonic(), [pulls.Aborted(request) for request in over])
        self.pusher.step(time.monotonic(), step.over)
        self._await(step.idle)
        self.device.landed(wait=step.idle)
        now = time.monotonic()
        self._free()
        self.receiver.step(now)
        self.receiver.watch()
        self.pusher.step(now)
        return self.ledger.take()

    def close(self) -> None:
        self.engine.close()
        self.device.close()

    def _await(self, idle: bool) -> None:
        """Does what has come. A step with nothing to compute waits for more, until a request has ended."""
        until = time.monotonic() + ((READING if self.puller.pulls.states else IDLE) if idle else 0)
        while self._poll(max(0, until - time.monotonic())) and self.puller.pulls.states and not (self.ledger.finished.received or self.device.landing):
            if time.monotonic() >= until + IDLE:
                return  # of messages there may be always one more

    def _poll(self, wait: float) -> bool:
        """Does what has come, and says whether something has."""
        messages = self.batches.poll(wait)
        if messages is None:
            return False
        for message in messages:
            try:
                self._hear(json.loads(message.data))
            except Exception as e:  # whatever it is: a peer must not end vLLM
                log.error("a message of %s is not understood: %r: %.200r", message.sender, e, message.data)
        return True

    def _hear(self, message: Any) -> None:
        if not isinstance(message, dict):
            raise TypeError("no object")
        if "release" in message:
            if not layout.naturals(release := [message["release"], message["key"]]):
                raise TypeError("no number and key of a hold")
            self._free(released=[tuple(release)])
        elif "part" in message or "ended" in message:
            self.receiver.hear(time.monotonic(), message)
        else:
            self.pusher.hear(time.monotonic(), message)

    def _free(self, **happened: Any) -> None:
        freed = self.holds.step(time.monotonic(), **happened)
        self.ledger.freed(freed.requests, freed.expired, freed.late, self.config.lease)
