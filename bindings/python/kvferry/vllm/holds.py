"""What P holds: the blocks of prompts that it has answered, for D to read them.

A hold has a number, one more than the one before, and ends once: by D's release or by the end of its lease. Then its blocks are
vLLM's again and hold other KV soon. So D has to know, when it has read the blocks, that the hold had not ended: it reads a word
of `ended` after them. Word n % SLOTS has the highest number of a hold that has ended of those that share it.

Numbers can be counted up by any peer, so a hold has a random key too, and a release without it does nothing.

The state has no clock and calls nobody: step(now, ...) returns what follows.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Iterable

SLOTS = 4096
"""Words of `ended`. Holds that many numbers apart share one: a hold that is older than 4,096 others may be taken for ended."""


@dataclass(frozen=True)
class Hold:
    number: int
    request: str
    """vLLM's id of the request, whose blocks are held."""
    key: int = 0


@dataclass
class Freed:
    """Requests whose blocks are vLLM's again, and how many of them by the end of their lease; releases that came after that."""

    requests: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    late: int = 0


class Holds:
    def __init__(self, lease: float):
        self.lease = lease
        self.ended = array("Q", bytes(8 * SLOTS))
        self.held: dict[int, tuple[Hold, float]] = {}  # by number: and when its lease ends, in the order of both
        self.early: dict[tuple[int, int], float] = {}  # released with this key, and not yet held, as D was faster than vLLM's next step: when that is forgotten

    def step(self, now: float, begun: Iterable[Hold] = (), released: Iterable[tuple[int, int]] = ()) -> Freed:
        freed = Freed()
        for hold in begun:
            self.held[hold.number] = hold, now + self.lease
            if self.early.pop((hold.number, hold.key), None):
                self._end(hold.number, freed)
        for number, key in released:
            if number in self.held:
                if self.held[number][0].key == key:
                    self._end(number, freed)
            elif self.over(number):
                freed.late += 1
            else:
                self.early[number, key] = now + self.lease
        for release, until in list(self.early.items()):
            if until > now and len(self.early) <= SLOTS:
                break
            del self.early[release]
        for number, (hold, until) in list(self.held.items()):
            if until > now:
                break
            self._end(number, freed)
            freed.expired.append(hold.request)
        return freed

    def over(self, number: int) -> bool:
        """Whether a hold has ended. D asks the same of the word that it reads."""
        return self.ended[number % SLOTS] >= number

    def _end(self, number: int, freed: Freed) -> None:
        hold, _ = self.held.pop(number)
        slot = number % SLOTS
        self.ended[slot] = max(self.ended[slot], number)
        freed.requests.append(hold.request)
