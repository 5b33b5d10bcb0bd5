"""What P writes: each layer of a prompt's blocks as it is computed, chunk by chunk, to where D has said.

D's word may come before vLLM has the request here, while it is computed, or after its answer: what is there by then is written
at once, the rest as it comes. vLLM has the blocks back when all is written, when D wants no more, when something has failed, or
when the lease is over and D has not come; and never while a batch reads them.

The state has no clock and calls nobody: step(now, events) returns what is to be done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterable, Sequence, Union

from .fingerprint import unlike

KEPT = 1024
"""Maximum number of remembered transfers without a request, of each kind: any peer can name some. The oldest are forgotten first."""


@dataclass(frozen=True)
class Want:
    """Where a rank of D wants a prompt's blocks, as it has said."""

    transfer: str
    token: int
    """What D calls it."""
    advertisement: str = field(repr=False)
    """Of the memory that is written, until D closes it."""
    answer: str = field(repr=False)
    """Of where D is told something otherwise."""
    planes: list[list[int]] = field(repr=False)
    blocks: list[int] = field(default_factory=list)
    first: int = 0
    """The place in the prompt of the first of them; D has those before it."""
    tokens: int = 0
    """Of the prompt."""
    timeout: float = 0.0
    """Seconds that D waits."""
    prompt: dict[str, str] = field(default_factory=dict)
    """fingerprint.prompt of D's."""


# What happens.


@dataclass(frozen=True)
class Ready:
    """Layers of the prompt's first tokens, in these blocks, are computed. total is the prompt's tokens."""

    request: str
    transfer: str
    layers: Sequence[int]
    tokens: int
    total: int
    blocks: list[int]
    prompt: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wanted:
    want: Want


@dataclass(frozen=True)
class Unwanted:
    """D wants no more; the fields are those of Want."""

    want: Want


@dataclass(frozen=True)
class Written:
    """A batch has ended."""

    transfer: str
    error: str = ""


@dataclass(frozen=True)
class Over:
    """vLLM has ended the request, with an answer or without, and waits for its blocks if it is held."""

    request: str
    transfer: str
    answered: bool
    held: bool


@dataclass(frozen=True)
class Preempted:
    """vLLM takes the blocks and computes the request again; no batch reads them."""

    request: str


# What is to be done.


@dataclass(frozen=True)
class Write:
    """Submit a WRITE of these layers of blocks: ours to theirs. Behind the last, total says how many there were."""

    want: Want
    layers: list[int]
    ours: list[int]
    theirs: list[int]
    index: int
    total: int = 0


@dataclass(frozen=True)
class Say:
    """Tell D that no more is written for it. If it is clean, all that was has arrived."""

    want: Want
    clean: bool
    error: str


@dataclass(frozen=True)
class Free:
    """Tell vLLM that the request's blocks are its own again."""

    request: str
    expired: bool = False


Event = Union[Ready, Wanted, Unwanted, Written, Over, Preempted]
Action = Union[Write, Say, Free]


@dataclass
class _Push:
    request: str
    ready: list[int]  # tokens, by layer
    sent: list[int]  # blocks from the prompt's first, by layer
    total: int = 0  # tokens of the prompt
    prompt: dict[str, str] = field(default_factory=dict)  # its fingerprint
    blocks: list[int] = field(default_factory=list)
    want: Want | None = None
    parts: int = 0
    under: int = 0  # batches
    ended: str = ""  # why no more is written
    clean: bool = True
    said: bool = False  # D knows
    over: Over | None = None
    until: float = 0.0  # of the lease, when it is over
    expired: bool = False  # without D


class Pushes:
    def __init__(self, layers: int, block_tokens: int, lease: float):
        self.layers, self.block_tokens, self.lease = layers, block_tokens, lease
        self.pushes: dict[str, _Push] = {}  # by transfer
        self.wants: dict[str, tuple[Want, float]] = {}  # that have come before their request, and when they are forgotten
        self.gone: dict[str, tuple[str, float]] = {}  # transfers that will not be: why, and when that is forgotten

    def step(self, now: float, events: Iterable[Event] = ()) -> list[Action]:
        actions: list[Action] = []
        for event in events:
            if isinstance(event, Ready):
                self._ready(event)
                actions += self._go_on(now, event.transfer)
            elif isinstance(event, Wanted):
                actions += self._wanted(now, event.want)
            elif isinstance(event, Unwanted):
                actions += self._unwanted(now, event.want)
            elif isinstance(event, Written):
                actions += self._written(now, event)
            elif isinstance(event, Over):
                actions += self._over(now, event)
            else:
                for push in self.pushes.values():
                    if push.request == event.request and not self._sent(push):
                        push.ready, push.sent, push.blocks = [0] * self.layers, [0] * self.layers, []
        for transfer, push in list(self.pushes.items()):
            if push.over and not push.ended and push.until <= now:
                push.ended = f"P has freed its blocks: it could not write them within the lease of {self.lease:g} s"
                push.expired = not push.want
                actions += self._go_on(now, transfer)
        for forgotten in (self.wants, self.gone):
            for transfer, (_, until) in list(forgotten.items()):
                if until <= now:
                    del forgotten[transfer]
        return actions

    def waits(self) -> bool:
        """Whether a prompt is computed and D has not said yet where it goes."""
        return any(not push.want and not push.over for push in self.pushes.values())

    def reading(self, request: str) -> set[str]:
        """The transfers whose batches read a request's blocks."""
        return {transfer for transfer, push in self.pushes.items() if push.request == request and push.under}

    def _ready(self, event: Ready) -> None:
        push = self.pushes.get(event.transfer)
        if push and push.request != event.request:
            return
        if push is None:
            push = self.pushes[event.transfer] = _Push(event.request, [0] * self.layers, [0] * self.layers)
            push.ended = self.gone.get(event.transfer, ("", 0.0))[0]
            push.want = self.wants.pop(event.transfer, (None, 0.0))[0]
        push.total, push.blocks, push.prompt = event.total, event.blocks, event.prompt
        for layer in event.layers:
            push.ready[layer] = event.tokens

    def _wanted(self, now: float, want: Want) -> list[Action]:
        if want.transfer in self.gone:
            return [Say(want, True, self.gone[want.transfer][0])]
        push = self.pushes.get(want.transfer)
        if push is None:
            _keep(self.wants, want.transfer, want, now + want.timeout)
            return []
        if push.want:
            return [Say(want, True, f"transfer {want.transfer!r} has another receiver: give each request a transfer_id of its own")]
        push.want = want
        return self._go_on(now, want.transfer)

    def _unwanted(self, now: float, want: Want) -> list[Action]:
        push = self.pushes.get(want.transfer)
        known = self.wants.get(want.transfer, (want, 0.0))[0]
        if known.token != want.token:  # another D's
            return [Say(want, True, "nothing is written")]
        self.wants.pop(want.transfer, None)
        if push is None or push.want and push.want.token != want.token:
            if push is None:
                _keep(self.gone, want.transfer, "D does not want it", now + self.lease)
            return [Say(want, True, "nothing is written")]
        push.want, push.said = want, False
        push.ended = push.ended or "D wants no more"
        return self._go_on(now, want.transfer)

    def _written(self, now: float, event: Written) -> list[Action]:
        push = self.pushes[event.transfer]
        push.under -= 1
        if event.error:
            push.clean, push.ended = False, push.ended or f"P could not write it: {event.error}"
        return self._go_on(now, event.transfer)

    def _over(self, now: float, event: Over) -> list[Action]:
        push = self.pushes.get(event.transfer)
        free: list[Action] = [Free(event.request)] if event.held else []
        if push and push.request != event.request:  # another request has its name
            return free
        if push is None:  # never computed
            reason = "P has ended the request without computing it"
            _keep(self.gone, event.transfer, reason, now + self.lease)
            want = self.wants.pop(event.transfer, (None, 0.0))[0]
            return [*([Say(want, True, reason)] if want else []), *free]
        push.over, push.until = event, now + self.lease
        if not event.answered:
            push.ended = push.ended or "P has ended the request before it was computed"
        return self._go_on(now, event.transfer)

    def _go_on(self, now: float, transfer: str) -> list[Action]:
        """What can be written now, and what follows if nothing is left."""
        push = self.pushes[transfer]
        actions: list[Action] = []
        if push.want and not push.ended:
            if push.want.tokens != push.total:
                push.ended = f"P's prompt has {push.total} tokens and D's {push.want.tokens}"
            elif differ := unlike(push.prompt, push.want.prompt):
                push.ended = f"P's prompt is another: {differ}: give each prompt a transfer_id of its own"
            else:
                actions += self._writes(push, push.want)
                push.under += len(actions)
        if push.under or not (push.ended or self._sent(push)):
            return actions
        if push.want and push.ended and not push.said:
            push.said = True
            actions.append(Say(push.want, push.clean, push.ended))
        if push.over:
            del self.pushes[transfer]
            if push.ended:
                _keep(self.gone, transfer, push.ended, now + self.lease)
            if push.over.held:
                actions.append(Free(push.request, push.expired))
        return actions

    def _sent(self, push: _Push) -> bool:
        """Whether all parts have been submitted."""
        return bool(push.want and push.total) and min(push.sent) * self.block_tokens >= push.total

    def _writes(self, push: _Push, want: Want) -> list[Action]:
        layers: dict[tuple[int, int], list[int]] = {}  # by the blocks that can be written
        for layer, tokens in enumerate(push.ready):
            whole = tokens >= push.total
            begin, end = max(push.sent[layer], want.first), -(-tokens // self.block_tokens) if whole else tokens // self.block_tokens
            if end > begin:
                layers.setdefault((begin, end), []).append(layer)
                push.sent[layer] = end
        actions: list[Action] = []
        for (begin, end), some in layers.items():
            theirs = want.blocks[begin - want.first : end - want.first]
            actions.append(Write(want, some, push.blocks[begin:end], theirs, push.parts))
            push.parts += 1
        if actions and self._sent(push):
            last = actions[-1]
            assert isinstance(last, Write)
            actions[-1] = Write(want, last.layers, last.ours, last.theirs, last.index, push.parts)
        return actions


def _keep(kept: dict[str, tuple[Any, float]], transfer: str, what: Any, until: float) -> None:
    while len(kept) >= KEPT:
        del kept[next(iter(kept))]
    kept[transfer] = what, until
