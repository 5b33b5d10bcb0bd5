"""A checksum of each block of KV, CRC-32 over its layers in their order: made by P, moved beside the block, compared by D.

The checksums are a table in memory that both sides register, an entry of eight bytes a block. Nothing of KV can be derived from
tokens, so this is all that tells wrong bytes from right ones.
"""

from __future__ import annotations

import ctypes
import zlib
from array import array
from typing import Iterable, Sequence

MADE = 1 << 32
"""In an entry that has a checksum: zero is none."""


class Checksums:
    def __init__(self, address: int, length: int, layers: Sequence[tuple[int, int, int]], blocks: int):
        """Of the buffer at an address; layers are their offset, stride and page."""
        self.memory = memoryview((ctypes.c_char * length).from_address(address)).cast("B")
        self.layers = layers
        self.table = array("Q", bytes(8 * blocks))

    def of(self, block: int) -> int:
        crc = 0
        for offset, stride, page in self.layers:
            at = offset + block * stride
            crc = zlib.crc32(self.memory[at : at + page], crc)
        return MADE | crc

    def make(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.table[block] = self.of(block)

    def wrong(self, blocks: Iterable[int]) -> list[int]:
        """The blocks that are not what the table says."""
        return [block for block in blocks if self.of(block) != self.table[block]]
