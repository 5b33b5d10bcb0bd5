"""P's side of the hand-off layerwise, around pushes.py: its batches and what D is told."""

from __future__ import annotations

import time
from typing import Any, Callable, Iterable, Sequence

import kvferry

from . import layout, pushes
from .batches import Batches
from .config import Config
from .joined import Joined
from .ledger import Ledger
from .memory import Memory
from .scheduler import Chunk


PREEMPTED = 1.0
"""Seconds for which vLLM's step waits for batches that read the blocks of preempted requests. Then they are canceled."""


class Pusher:
    def __init__(self, config: Config, batches: Batches, memory: Memory, ledger: Ledger, block_tokens: int):
        self.config, self.batches, self.memory, self.ledger, self.block_tokens = config, batches, memory, ledger, block_tokens
        self.pushes = pushes.Pushes(len(memory.layers), block_tokens, config.lease)
        self.writing: dict[int, str] = {}  # batches: their transfers
        self.joined = Joined()

    def step(self, now: float, events: Iterable[pushes.Event] = ()) -> None:
        do: dict[type, Callable[[Any], None]] = {pushes.Write: self._write, pushes.Say: self._say, pushes.Free: self._free}
        for action in self.pushes.step(now, events):
            do[type(action)](action)

    def hear(self, now: float, message: dict[str, Any]) -> None:
        """What D says of a transfer."""
        wanted, key, timeout = "want" in message, (message["answer"], message["token"]), message.get("timeout", 0.0)
        runs, most, patience = message.get("blocks", []), self.memory.buffer.blocks, max(self.config.timeout, self.config.lease)
        counts = [count for _, count, _ in runs]
        if not layout.naturals(counts) or 0 in counts:
            raise ValueError("runs of blocks that have none")
        if sum(counts) > most:
            raise ValueError("more blocks than P has")
        if not 0 <= timeout <= patience:  # of the peer's seconds, so many as P has for its own
            timeout = patience
        blocks = [first + k * step for first, count, step in runs for k in range(count)]
        if wanted:
            at, of = message["at"], message["of"]
            if not layout.naturals([at, of]) or of > most or of and not blocks:
                raise ValueError("blocks of more than P has, or none of them")
            blocks = self.joined.step(now, key, at, blocks, of, timeout)
            if blocks is None:
                return
        want = pushes.Want(
            message["want" if wanted else "stop"],
            message["token"],
            message["advertisement"],
            message["answer"],
            message["planes"],
            blocks,
            message.get("first", 0),
            message.get("tokens", 0),
            timeout,
            message.get("prompt", {}),
        )
        if not all(isinstance(text, str) for text in (want.transfer, want.advertisement, want.answer)):
            raise TypeError("what must be text is none")
        if not wanted:
            self.joined.drop(key)
            self.step(now, [pushes.Unwanted(want)])
        elif layout.layers(want.planes) != len(self.memory.layers) or not layout.naturals([want.first, *blocks]) or len(blocks) != -(-want.tokens // self.block_tokens) - want.first:
            self._say(pushes.Say(want, True, "D has other layers or blocks than P"))
        else:
            self.step(now, [pushes.Wanted(want)])

    def ready(self, now: float, chunks: Iterable[Chunk], layers: Sequence[int]) -> None:
        """These layers of chunks of prompts are computed."""
        self.step(now, [pushes.Ready(c.request, c.transfer, layers, c.end, c.total, c.blocks, c.prompt) for c in chunks if c.transfer])

    def preempted(self, requests: Iterable[str], poll: Callable[[], None]) -> None:
        """vLLM computes requests again, in other blocks, and this step may write into the old ones: it does not ask whether they are
        read. So no batch reads them when this returns: one that takes longer than PREEMPTED has failed."""
        until = time.monotonic() + PREEMPTED
        for request in requests:
            while reading := self.pushes.reading(request):
                if time.monotonic() >= until:
                    for batch in [batch for batch, transfer in self.writing.items() if transfer in reading]:
                        self.batches.engine.cancel(batch)  # it ends soon
                poll()
            self.step(time.monotonic(), [pushes.Preempted(request)])

    def _write(self, write: pushes.Write) -> None:
        want = write.want
        message = {"part": want.token, "index": write.index, "total": write.total}

        def then(error: str, completion: kvferry.Completion | None) -> None:
            if completion:
                del self.writing[completion.batch]
            self.step(time.monotonic(), [pushes.Written(want.transfer, error)])

        # The last layer is there when all are: then a block's checksum can be made.
        checked = self.config.checksums and write.layers[-1] == len(self.memory.layers) - 1
        if checked:
            self.memory.checksums.make(write.ours)
        ranges = self.memory.ranges(want.planes, write.layers, write.ours, write.theirs, checked)
        batch = self.batches.submit(kvferry.WRITE, want.advertisement, ranges, then, timeout=self.config.timeout, tag=want.transfer, message=message)
        if batch:
            self.writing[batch] = want.transfer

    def _say(self, say: pushes.Say) -> None:
        message = {"ended": say.want.token, "clean": say.clean, "error": say.error}
        self.batches.say(say.want.answer, message, say.want.transfer)

    def _free(self, free: pushes.Free) -> None:
        self.ledger.freed([free.request], [free.request] if free.expired else [], 0, self.config.lease)
