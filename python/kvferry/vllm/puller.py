"""D's side of a pull, around pulls.py: the batches, the word that says whether P held the blocks, the checksums."""

from __future__ import annotations

import time
from typing import Any, Callable

import kvferry

from . import layout, pulls
from .batches import SAY, Batches
from .config import Config
from .holds import SLOTS
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
        ranges = self.memory.ranges(peer.planes, None, pull.ours, pull.theirs, self._checked(pull))

        def then(error: str, completion: kvferry.Completion | None) -> None:
            if completion:
                self.ledger.wire(pull.request, completion.elapsed)
            self.step(pulls.Done(pull.request, error))

        self.ledger.begin(pull.request, pull.ours)
        self.reading[pull.request] = self.batches.submit(kvferry.READ, peer.advertisement, ranges, then, timeout=self.config.timeout, tag=pull.request)
        self.ledger.post(pull.request, time.perf_counter() - began, len(ranges))

    def _confirm(self, confirm: pulls.Confirm) -> None:
        pull = confirm.pull
        free = self.memory.free_words
        word = free.pop()

        def then(error: str, _: kvferry.Completion | None) -> None:
            free.append(word)
            self.step(pulls.Done(pull.request, error, ended=not error and self.memory.words[word] >= pull.hold))

        read = kvferry.Range(self.memory.word + layout.WORD * word, layout.WORD * (pull.hold % SLOTS), layout.WORD, segment=layout.ENDED)
        self.batches.submit(
            kvferry.READ,
            pull.peers[self.rank].advertisement,
            [read],
            then,
            timeout=min(SAY, self.config.timeout),
            tag=pull.request,
            message={"release": pull.hold},
        )
        if self._checked(pull):
            self.ledger.checked(pull.request, self.memory.checksums.wrong(pull.ours))

    def _release(self, release: pulls.Release) -> None:
        pull = release.pull
        self.batches.say(pull.peers[self.rank].advertisement, {"release": pull.hold}, pull.request)

    def _cancel(self, cancel: pulls.Cancel) -> None:
        if batch := self.reading[cancel.pull.request]:
            self.batches.engine.cancel(batch)

    def _finish(self, finish: pulls.Finish) -> None:
        del self.reading[finish.pull.request]
        self.ledger.finish(finish.pull.request, finish.error, finish.aborted)

    def _checked(self, pull: pulls.Pull) -> bool:
        return self.config.checksums and pull.checked
