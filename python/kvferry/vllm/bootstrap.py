"""How D finds P for the hand-off layerwise, before P has answered anything: P's scheduler serves what its ranks are, over HTTP."""

from __future__ import annotations

import http.server
import json
import logging
import threading
import urllib.request
from typing import Any

log = logging.getLogger("vllm.kvferry")

FRESH = 1.0
"""Seconds for which what a P has said is not asked again. It changes when P is restarted."""

SECONDS = 5.0
"""That P may take to say it, or less where D's timeout is."""


class Server:
    def __init__(self, address: str, description: dict[str, Any]):
        """Serves a description at "host:port", from a thread of its own."""
        host, _, port = address.rpartition(":")
        body = json.dumps(description).encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        try:
            self.server = http.server.ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
        except (OSError, ValueError, OverflowError) as e:
            raise RuntimeError(f"kv_connector_extra_config.bootstrap {address!r}: {e}: give a host of this machine and a free port") from e
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), name="kvferry-bootstrap", daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Client:
    """What each P has said, by its address. Asking happens on threads: nobody waits here."""

    def __init__(self, timeout: float) -> None:
        self.seconds = min(SECONDS, timeout)
        self.known: dict[str, tuple[float, dict[str, Any] | str]] = {}  # when, and what, or the error
        self.asked: set[str] = set()
        self.lock = threading.Lock()

    def get(self, now: float, address: str) -> dict[str, Any] | str | None:
        """What P says, an error as text, or None if it has not answered yet: ask again."""
        with self.lock:
            at, found = self.known.get(address, (0.0, ""))
            if found and now - at < FRESH:
                return found
            if address not in self.asked:
                self.asked.add(address)
                threading.Thread(target=self._ask, args=(now, address), name="kvferry-bootstrap", daemon=True).start()
            return None

    def _ask(self, now: float, address: str) -> None:
        try:
            if not address.startswith(("http://", "https://")):
                raise ValueError("a remote_bootstrap_addr begins with http:// or https://")
            with urllib.request.urlopen(address, timeout=self.seconds) as answer:
                found: dict[str, Any] | str = json.loads(answer.read())
            if not isinstance(found, dict):
                raise ValueError("there is no P at this address")
        except (OSError, ValueError) as e:
            found = f"{address}: {e}"
        with self.lock:
            self.asked.remove(address)
            self.known[address] = now, found
