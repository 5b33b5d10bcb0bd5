"""Where the time of a request's transfer went: for whoever asked, in D's answer and by HTTP."""

from __future__ import annotations

import json
import queue
import threading
import urllib.request
from dataclasses import dataclass
from typing import Any

from .bootstrap import open_url
from .log import log

SECONDS = 5.0
"""That a POST may take."""

WAITING = 1000
"""Reports that may wait to be posted. More are dropped: they are for figures, and must cost nothing."""


@dataclass
class Part:
    """What a worker says of a request's transfer. Times are of the slowest worker, in microseconds."""

    post_us: int = 0
    wire_us: int = 0
    land_us: int = 0
    kv_bytes: int = 0
    kv_blocks_checked: int = 0
    kv_blocks_bad: int = 0

    def join(self, other: Part) -> Part:
        """This and another worker's."""
        return Part(
            max(self.post_us, other.post_us),
            max(self.wire_us, other.wire_us),
            max(self.land_us, other.land_us),
            self.kv_bytes + other.kv_bytes,
            self.kv_blocks_checked + other.kv_blocks_checked,
            self.kv_blocks_bad + other.kv_blocks_bad,
        )


@dataclass
class Report:
    request_id: str
    queue_us: int
    """From the request's arrival at D to its blocks."""
    url: str = ""
    """Where it is to be posted; empty once it is."""
    part: Part | None = None

    def add(self, part: Part) -> None:
        self.part = self.part.join(part) if self.part else part

    def json(self) -> dict[str, Any]:
        return {"request_id": self.request_id, "queue_us": self.queue_us, **vars(self.part or Part())}


_queue: queue.Queue[tuple[str, bytes]] | None = None


def post(report: Report) -> None:
    """Sends a report to its URL, once, if it has one, from a thread of its own."""
    global _queue
    url, report.url = report.url, ""
    if not url:
        return
    if _queue is None:
        _queue = queue.Queue(WAITING)
        threading.Thread(target=_post_all, args=(_queue,), name="kvferry-reports", daemon=True).start()
    try:
        _queue.put_nowait((url, json.dumps(report.json()).encode()))
    except queue.Full:
        log.warning("%s: its report is dropped: %d wait to be posted", report.request_id, WAITING)


def _post_all(reports: queue.Queue[tuple[str, bytes]]) -> None:
    while True:
        url, body = reports.get()
        try:
            asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            open_url(asked, timeout=SECONDS).close()
        except Exception as e:  # whatever it is: the others are posted
            log.warning("the report of a transfer was not posted to %s: %s", url, e)
