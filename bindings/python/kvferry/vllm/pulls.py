"""What D reads: for each request one batch with the blocks that it lacks, then a word that says whether P still held them.

The word is read when the blocks are there. The message that releases P's hold goes out behind it, when vLLM can be told: nobody waits
for it. A request ends once, whatever comes, and only when no batch can touch its blocks any more.

The state has no clock and calls nobody: step(events) returns what is to be done. Deadlines are those of the batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterable, Union


@dataclass(frozen=True)
class Peer:
    """A rank of P, as its answer has it."""

    advertisement: str
    planes: list[list[int]]


@dataclass(frozen=True)
class Pull:
    """What D lacks of a request, and where P has it. Without blocks nobody waits, and there is only P's hold to release."""

    request: str
    hold: int
    peers: list[Peer] = field(repr=False)
    """By rank."""
    ours: list[int] = field(default_factory=list)
    theirs: list[int] = field(default_factory=list)
    checked: int = 0
    """Of how many of the blocks, from the first, P has checksums; it may be more than there are."""
    key: int = 0
    """Of the hold."""


# What happens.


@dataclass(frozen=True)
class Asked:
    pull: Pull


@dataclass(frozen=True)
class Done:
    """The request's batch is over, with an error or without. Of a Confirm: whether the hold had ended."""

    request: str
    error: str = ""
    ended: bool = False


@dataclass(frozen=True)
class Silent:
    """P does not answer at all."""

    request: str
    error: str


@dataclass(frozen=True)
class Aborted:
    request: str


# What is to be done.


@dataclass(frozen=True)
class Read:
    """Submit the READ of the blocks, and see whether P is there."""

    pull: Pull


@dataclass(frozen=True)
class Confirm:
    """Submit the READ of the word, and compare the checksums."""

    pull: Pull


@dataclass(frozen=True)
class Release:
    """Submit the message that releases P's hold. Nobody waits for it: if it is lost, the lease ends the hold."""

    pull: Pull


@dataclass(frozen=True)
class Cancel:
    """Cancel the READ of the blocks."""

    pull: Pull


@dataclass(frozen=True)
class Finish:
    """Tell vLLM. With an error, none of the blocks is what it should be."""

    pull: Pull
    error: str = ""
    aborted: bool = False


Event = Union[Asked, Done, Silent, Aborted]
Action = Union[Read, Confirm, Release, Cancel, Finish]

_READING, _CANCELED, _CONFIRMING = "reading", "canceled", "confirming"


@dataclass
class _State:
    pull: Pull
    phase: str = _READING
    aborted: bool = False
    silent: str = ""


class Pulls:
    def __init__(self) -> None:
        self.states: dict[str, _State] = {}  # by request

    def step(self, events: Iterable[Event]) -> list[Action]:
        actions: list[Action] = []
        for event in events:
            if isinstance(event, Asked):
                actions.append(self._ask(event.pull))
            elif state := self.states.get(event.request):
                if isinstance(event, Done):
                    actions += self._done(state, event)
                    continue
                if state.phase == _READING:
                    state.phase = _CANCELED
                    actions.append(Cancel(state.pull))
                if isinstance(event, Aborted):
                    state.aborted = True
                else:
                    state.silent = event.error
        return actions

    def _ask(self, pull: Pull) -> Action:
        if not pull.ours:
            return Release(pull)
        self.states[pull.request] = _State(pull)
        return Read(pull)

    def _done(self, state: _State, done: Done) -> list[Action]:
        pull = state.pull
        if state.phase == _READING and not done.error:
            state.phase = _CONFIRMING
            return [Confirm(pull)]
        del self.states[pull.request]
        if state.phase == _CONFIRMING:
            lost = "P's lease had ended before the blocks were read: it is too short for how long D's requests wait" if done.ended else ""
            finish, answers = Finish(pull, done.error or lost, state.aborted), not done.error
        else:
            finish, answers = Finish(pull, state.silent or done.error, state.aborted), not state.silent
        return [finish, Release(pull)] if answers else [finish]
