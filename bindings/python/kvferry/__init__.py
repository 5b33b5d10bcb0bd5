"""kvferry's transfer engine for Python: byte ranges between registered memory of different processes.

    with kvferry.Engine("tcp/eth0") as engine:
        segment = engine.register(buffer)
        ...
"""

from .engine import (
    BULK,
    BY_SIZE,
    MOST_MESSAGE,
    RANGE_FIELDS,
    READ,
    URGENT,
    WRITE,
    Code,
    Completion,
    Engine,
    Error,
    Message,
    Rail,
    Range,
    Segment,
    Target,
    build,
)

__all__ = [
    "BULK",
    "BY_SIZE",
    "MOST_MESSAGE",
    "RANGE_FIELDS",
    "READ",
    "URGENT",
    "WRITE",
    "Code",
    "Completion",
    "Engine",
    "Error",
    "Message",
    "Rail",
    "Range",
    "Segment",
    "Target",
    "build",
]
