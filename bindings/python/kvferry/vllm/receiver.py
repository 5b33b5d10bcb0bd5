"""D's side of the hand-off layerwise, around receives.py: what P is told, the fence, the checksums."""

from __future__ import annotations

import secrets
import time
from typing import Any, Callable, Iterable

import kvferry

from . import layout, receives
from .batches import HEARD, SAY, Batches
from .config import Config
from .ledger import Ledger
from .memory import Memory


RUNS = 2000
"""Runs of blocks in a message to P, of at most 27 bytes each: with what is said beside them it is within 64 KiB."""


class Receiver:
    def __init__(self, config: Config, rank: int, batches: Batches, memory: Memory, ledger: Ledger):
        self.config, self.rank, self.batches, self.memory, self.ledger = config, rank, batches, memory, ledger
        self.receives = receives.Receives(config.timeout, min(SAY, config.timeout / 4), lambda: secrets.randbits(61))
        self.told: dict[str, float] = {}  # requests that P knows of: since when
        self.asking: set[str] = set()  # advertisements of P that are asked whether they are there

    def step(self, now: float, events: Iterable[receives.Event] = ()) -> None:
        do: dict[type, Callable[[Any], None]] = {
            receives.Tell: self._tell,
            receives.Stop: self._stop,
            receives.Fence: lambda fence: self.memory.fence(self._p(fence.receive)),
            receives.Finish: self._finish,
        }
        for action in self.receives.step(now, events):
            do[type(action)](action)

    def watch(self) -> None:
        """Asks each P that is waited for, and has not been heard of for a while, whether it is there."""
        now = time.perf_counter()
        for state in self.receives.states.values():
            p = self._p(state.receive)
            if p not in self.asking and now - max(self.told[state.receive.request], self.batches.heard.get(p, 0.0)) >= HEARD:
                self.asking.add(p)
                self.memory.read_word(self.batches, p, 0, lambda error, _, p=p: self._asked(p, error), min(SAY, self.config.timeout), state.receive.request)

    def _asked(self, p: str, error: str) -> None:
        self.asking.remove(p)
        if error:
            tokens = [token for token, state in self.receives.states.items() if self._p(state.receive) == p]
            self.step(time.monotonic(), [receives.Ended(token, False, f"P does not answer: {error}") for token in tokens])

    def hear(self, now: float, message: dict[str, Any]) -> None:
        """What P says of a transfer."""
        if "part" in message:
            self.step(now, [receives.Part(message["part"], message["index"], message["total"])])
        else:
            self.step(now, [receives.Ended(message["ended"], message["clean"], message["error"])])

    def _tell(self, tell: receives.Tell) -> None:
        receive, began = tell.receive, time.perf_counter()

        def then(error: str, completion: kvferry.Completion | None) -> None:
            if error:
                self.step(time.monotonic(), [receives.Untold(tell.token, error, sent=completion is not None)])

        runs = [[first, count, step] for first, _, count, step, _ in layout.runs(receive.blocks, receive.blocks)]
        want = {**self._name("want", tell), "first": receive.first, "tokens": receive.tokens, "timeout": self.config.timeout, "prompt": receive.prompt, "of": len(receive.blocks)}
        at = 0
        self.ledger.begin(receive.request, receive.blocks)
        for begin in range(0, len(runs), RUNS):
            some = runs[begin : begin + RUNS]
            self._say(receive, {**want, "blocks": some, "at": at}, then)
            at += sum(count for _, count, _ in some)
        self.told[receive.request] = time.perf_counter()
        self.ledger.post(receive.request, self.told[receive.request] - began, len(runs))

    def _stop(self, stop: receives.Stop) -> None:
        self._say(stop.receive, self._name("stop", stop), None)

    def _name(self, what: str, action: receives.Tell | receives.Stop) -> dict[str, Any]:
        """What each message to P begins with."""
        return {
            what: action.receive.transfer,
            "token": action.token,
            "advertisement": self.memory.open(self._p(action.receive), {self._p(state.receive) for state in self.receives.states.values()}),
            "answer": self.memory.advertisement,
            "planes": self.memory.planes,
        }

    def _say(self, receive: receives.Receive, message: dict[str, Any], then: Any) -> None:
        self.batches.say(self._p(receive), message, receive.request, then)

    def _p(self, receive: receives.Receive) -> str:
        """P, by its advertisement."""
        return receive.peers[self.rank].advertisement

    def _finish(self, finish: receives.Finish) -> None:
        receive = finish.receive
        told = self.told.pop(receive.request)
        if not finish.error:
            self.ledger.wire(receive.request, time.perf_counter() - told)
            if self.config.checksums and receive.checked:
                self.ledger.checked(receive.request, len(receive.blocks), self.memory.checksums.wrong(receive.blocks))
        self.memory.land(self.ledger, receive.request, finish.error, finish.aborted)
