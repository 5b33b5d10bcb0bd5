"""The engine of a worker: batches with what is to be done when they end, and messages, which are small JSON objects."""

from __future__ import annotations

import json
import time
from typing import Any, Callable

import kvferry

from .log import log

TARGETS = 256
"""Peers that are kept open. The one that was used longest ago is closed for another; it is opened again when it is needed."""

SAY = 5.0
"""Seconds that a message by itself may take."""

HEARD = 1.0
"""Seconds after a batch with a peer for which it is known to be there."""

Then = Callable[[str, "kvferry.Completion | None"], None]
"""What is done when a batch ends: its error, "" for none, and its completion, None if it was not even submitted."""


class Batches:
    def __init__(self, engine: kvferry.Engine):
        self.engine = engine
        self.targets: dict[str, kvferry.Target] = {}  # by advertisement, the one used longest ago first
        self.heard: dict[str, float] = {}  # when a batch to one of them has last ended well
        self.under: dict[int, tuple[str, Then]] = {}  # by user data: to whom
        self.unsubmitted: list[tuple[str, Then]] = []  # that have ended at once, with their errors
        self.last = 0  # user data

    def submit(self, op: int, advertisement: str, ranges: Any, then: Then, *, timeout: float, tag: str, message: dict[str, Any] | None = None) -> int:
        """Starts a batch to the peer with that advertisement, and returns its number, 0 if it cannot be submitted. What is to be done
        then is done by poll, in either case."""
        self.last += 1
        try:
            batch = self.engine.submit(
                self._target(advertisement),
                op,
                ranges,
                user_data=self.last,
                timeout=timeout,
                tag=tag,
                message=None if message is None else json.dumps(message, separators=(",", ":")).encode(),
            )
        except (kvferry.Error, ValueError) as e:  # ValueError: what a peer says has characters that are none
            self.unsubmitted.append((str(e), then))
            return 0
        self.under[self.last] = advertisement, then
        return batch

    def say(self, advertisement: str, message: dict[str, Any], tag: str, then: Then | None = None) -> None:
        """Sends a message by itself."""

        def lost(error: str, _: Any) -> None:
            if error:
                log.warning("%s: a message is lost: %s", tag, error)

        self.submit(kvferry.WRITE, advertisement, [], then or lost, timeout=SAY, tag=tag, message=message)

    def poll(self, wait: float) -> list[kvferry.Message] | None:
        """Does what is to be done of the batches that have ended, and returns the messages that have come; None if neither has
        within so many seconds."""
        unsubmitted, self.unsubmitted = self.unsubmitted, []
        for error, then in unsubmitted:
            then(error, None)
        if not self.engine.wait(0 if unsubmitted else wait):
            return [] if unsubmitted else None
        for completion in self.engine.poll():
            advertisement, then = self.under.pop(completion.user_data)
            if completion.error is None and advertisement in self.targets:
                self.heard[advertisement] = time.perf_counter()
            then(str(completion.error or ""), completion)
        return self.engine.receive()

    def _target(self, advertisement: str) -> kvferry.Target:
        target = self.targets.pop(advertisement, None) or self.engine.connect(advertisement.encode())
        self.targets[advertisement] = target
        if len(self.targets) > TARGETS:
            oldest = next(iter(self.targets))
            self.heard.pop(oldest, None)
            self.targets.pop(oldest).close()  # what is under way to it goes on
        return target
