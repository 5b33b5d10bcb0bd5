"""D's side of a pull, around pulls.py: the batches, the word that says whether P held the blocks, the checksums."""

from __future__ import annotations

import time
from typing import Any, Callable

import kvferry

from . import pulls
from .batches import HEARD, SAY, Batches
from .config import Config
from .ledger import Ledger
from .memory import Memory


class Puller:
    def __init__(self, config: Config, rank: int, batches: Batches, memory: Memory, ledger: Ledger):
        self.config, self.rank, self.batches, self.memory, self.ledger = config, rank, batches, memory, ledger
        self.pulls = pulls.Pulls()
        self.reading: dict[str, int] = {}  # batches of READs, by request

    def step(self, event: pulls.Event) -> None:
        do: dict[type, Callable[[Any], None]] = {
            pulls.Read: self._read,
            pulls.Confirm: self._confirm,
            pulls.Release: self._release,
            pulls.Cancel: self._cancel,
            pulls.Finish: self._finish,
        }
        for action in self.pulls.step([event]):
            do[type(action)](action)

    def _read(self, read: pulls.Read) -> None:
        pull, began = read.pull, time.perf_counter()
        peer = pull.peers[self.rank]
        ranges = self.memory.ranges(peer.planes, None, pull.ours, pull.theirs, bool(self._checked(pull)))

        def then(error: str, completion: kvferry.Completion | None) -> None:
            if completion:
                self.ledger.wire(pull.request, completion.elapsed)
            self.step(pulls.Done(pull.request, error))

        self.ledger.begin(pull.request, pull.ours)
        self.reading[pull.request] = self.batches.submit(kvferry.READ, peer.advertisement, ranges, then, timeout=self.config.timeout, tag=pull.request)
        self.ledger.post(pull.request, time.perf_counter() - began, len(ranges))
        if began - self.batches.heard.get(peer.advertisement, 0.0) >= HEARD:
            self._word(pull, lambda error, _: error and self.step(pulls.Silent(pull.request, error)))

    def _confirm(self, confirm: pulls.Confirm) -> None:
        pull = confirm.pull
        self._word(pull, lambda error, word: self.step(pulls.Done(pull.request, error, ended=not error and word >= pull.hold)))
        if checked := self._checked(pull):
            self.ledger.checked(pull.request, len(checked), self.memory.checksums.wrong(checked))

    def _word(self, pull: pulls.Pull, then: Callable[[str, int], Any]) -> None:
        """Reads the word that says whether P still holds the blocks."""
        timeout = min(SAY, self.config.timeout)
        self.memory.read_word(self.batches, pull.peers[self.rank].advertisement, pull.hold, then, timeout, pull.request)

    def _release(self, release: pulls.Release) -> None:
        pull = release.pull
        self.batches.say(pull.peers[self.rank].advertisement, {"release": pull.hold, "key": pull.key}, pull.request)

    def _cancel(self, cancel: pulls.Cancel) -> None:
        if batch := self.reading[cancel.pull.request]:
            self.batches.engine.cancel(batch)

    def _finish(self, finish: pulls.Finish) -> None:
        del self.reading[finish.pull.request]
        self.memory.land(self.ledger, finish.pull.request, finish.error, finish.aborted)

    def _checked(self, pull: pulls.Pull) -> list[int]:
        """Blocks of ours that are compared with P's checksums."""
        return pull.ours[: pull.checked] if self.config.checksums else []
