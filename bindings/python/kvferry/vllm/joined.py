"""P's part of a long Want: a message is bounded, and where D's blocks are in very many runs they come in several, in any order.

The state has no clock and calls nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Key = tuple[str, int]
"""Which Want of which D."""

KEPT = 64
"""Maximum number of Wants of which parts are kept: any peer can send some. The oldest is forgotten first."""


@dataclass
class _Parts:
    until: float
    blocks: dict[int, list[int]] = field(default_factory=dict)  # by the place of the first of them


class Joined:
    def __init__(self) -> None:
        self.parts: dict[Key, _Parts] = {}

    def step(self, now: float, key: Key, at: int, blocks: list[int], of: int, timeout: float) -> list[int] | None:
        """All blocks, once all of them have come; None before. What D waits for no more is forgotten."""
        for other in [other for other, parts in self.parts.items() if parts.until <= now]:
            del self.parts[other]
        if len(blocks) == of:
            return blocks
        if key not in self.parts and len(self.parts) >= KEPT:
            del self.parts[next(iter(self.parts))]
        parts = self.parts.setdefault(key, _Parts(now + timeout))
        parts.blocks[at] = blocks
        if sum(map(len, parts.blocks.values())) < of:
            return None
        del self.parts[key]
        return [block for _, some in sorted(parts.blocks.items()) for block in some]

    def drop(self, key: Key) -> None:
        self.parts.pop(key, None)
