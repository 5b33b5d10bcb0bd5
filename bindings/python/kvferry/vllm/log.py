"""The connector's log, which is vLLM's: its lines have the name of a file and not whose that is, so ours begin with kvferry."""

from __future__ import annotations

import logging
from typing import Any


class _Named(logging.LoggerAdapter):
    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        return f"kvferry: {msg}", kwargs


log = _Named(logging.getLogger("vllm.kvferry"), {})
