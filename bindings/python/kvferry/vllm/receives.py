"""What D is sent: for each request it tells P where its blocks go, and P writes them layer by layer while it computes.

P's batches are parts with numbers, each with a message that comes when its bytes are there; the last says how many there are. A
request ends once: when all parts have come, when P says that it will write no more, or when the memory is closed to P, so that it
cannot write. Only then are its blocks vLLM's.

The state has no clock and calls nobody: step(now, events) returns what is to be done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Iterable, Union

from .pulls import Aborted, Peer


@dataclass(frozen=True)
class Receive:
    """What D lacks of a request. Without blocks P is only told that nothing is wanted."""

    request: str
    transfer: str
    """The transfer's name, by which P knows its request for the same prompt."""
    peers: list[Peer] = field(repr=False)
    """By rank."""
    blocks: list[int] = field(default_factory=list)
    first: int = 0
    """The place in the prompt of the first of them, in blocks."""
    tokens: int = 0
    """Of the prompt."""
    checked: bool = False
    """Whether P has checksums of its blocks."""
    prompt: dict[str, str] = field(default_factory=dict)
    """fingerprint.prompt of it, that must be P's."""


# What happens, beside Aborted.


@dataclass(frozen=True)
class Asked:
    receive: Receive


@dataclass(frozen=True)
class Untold:
    """P could not be told."""

    token: int
    error: str
    sent: bool
    """Whether it may know all the same."""


@dataclass(frozen=True)
class Part:
    token: int
    index: int
    total: int = 0
    """How many parts there are, in the last one."""


@dataclass(frozen=True)
class Ended:
    """P writes no more. If it is clean, all that it has written has arrived, or never will."""

    token: int
    clean: bool
    error: str


# What is to be done.


@dataclass(frozen=True)
class Tell:
    """Tell P where the blocks go."""

    receive: Receive
    token: int


@dataclass(frozen=True)
class Stop:
    """Tell P to write no more."""

    receive: Receive
    token: int


@dataclass(frozen=True)
class Fence:
    """Close the memory to P, which is told of it anew with what is asked from now on."""

    receive: Receive


@dataclass(frozen=True)
class Finish:
    """Tell vLLM. With an error, none of the blocks is what it should be."""

    receive: Receive
    error: str = ""
    aborted: bool = False


Event = Union[Asked, Untold, Part, Ended, Aborted]
Action = Union[Tell, Stop, Fence, Finish]


@dataclass
class _State:
    receive: Receive
    until: float
    parts: set[int] = field(default_factory=set)
    total: int = 0
    stopping: str = ""  # why P was told to stop
    aborted: bool = False


class Receives:
    def __init__(self, timeout: float, grace: float, draw: Callable[[], int] | None = None):
        """timeout is how long a request may take, and grace its end, in which P says that it has stopped. draw makes tokens: who can
        guess one can end another's request, and have vLLM take what is in its blocks for KV."""
        self.writing, self.grace = timeout - grace, grace
        self.states: dict[int, _State] = {}  # by token
        self.last = 0  # token
        self.draw = draw or (lambda: self.last + 1)

    def step(self, now: float, events: Iterable[Event] = ()) -> list[Action]:
        actions: list[Action] = []
        for event in events:
            if isinstance(event, Asked):
                actions.append(self._ask(now, event.receive))
            elif isinstance(event, Aborted):
                for token, state in self.states.items():
                    if state.receive.request == event.request and not state.aborted:
                        state.aborted = True
                        if not state.stopping:
                            actions.append(self._stop(now, token, "the request was aborted"))
            elif event.token in self.states:
                actions += self._hear(event)
        for token, state in list(self.states.items()):
            if token not in self.states or state.until > now:
                continue
            if not state.stopping:
                actions.append(self._stop(now, token, f"P has not written all of it within {self.writing:g} s"))
            else:
                actions += self._fence(token, state.stopping)
        return actions

    def _ask(self, now: float, receive: Receive) -> Action:
        self.last = self.draw()
        if not receive.blocks:
            return Stop(receive, self.last)
        self.states[self.last] = _State(receive, now + self.writing)
        return Tell(receive, self.last)

    def _stop(self, now: float, token: int, why: str) -> Action:
        state = self.states[token]
        state.stopping, state.until = why, now + self.grace
        return Stop(state.receive, token)

    def _hear(self, event: Untold | Part | Ended) -> list[Action]:
        state = self.states[event.token]
        if isinstance(event, Untold):
            error = f"P was not told where the blocks are: {event.error}"
            return self._fence(event.token, error) if event.sent else [self._finish(event.token, state.stopping or error)]
        if isinstance(event, Ended):
            if not event.clean:
                return self._fence(event.token, event.error)
            return [self._finish(event.token, state.stopping or event.error)]
        state.parts.add(event.index)
        state.total = state.total or event.total
        if state.total and len(state.parts) == state.total:
            return [self._finish(event.token, state.stopping)]
        return []

    def _finish(self, token: int, error: str) -> Action:
        state = self.states.pop(token)
        return Finish(state.receive, error, state.aborted)

    def _fence(self, token: int, error: str) -> list[Action]:
        """Ends all transfers of a P: it may still write for this one, so that the memory is closed to it."""
        receive = self.states[token].receive
        ended = [self._finish(token, error)]
        for other, state in list(self.states.items()):
            if state.receive.peers == receive.peers:
                ended.append(self._finish(other, f"the memory was closed to its P, as request {receive.request} has failed: {error}"))
        return [Fence(receive), *ended]
