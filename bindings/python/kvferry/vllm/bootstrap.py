"""How D finds P for the hand-off layerwise, before P has answered anything: P's scheduler serves what its ranks are, over HTTP."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import urllib.request
from typing import Any, Callable

MOST = 1 << 20
"""Bytes of an answer that are read: one of many ranks has some kilobytes."""

FRESH = 1.0
"""Seconds for which what a P has said is not asked again. It changes when P is restarted."""

ASKED = 64
"""Maximum number of addresses asked at a time, each from a thread: every request can name another."""

SECONDS = 5.0
"""That P may take to say it, or less where D's timeout is."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Refuses every redirect: Config.refuses has seen the first address only."""


open_url = urllib.request.build_opener(_NoRedirects).open


class Server:
    def __init__(self, address: str, description: dict[str, Any]):
        """Serves a description at "host:port" or "[::1]:port", from a thread of its own."""
        host, _, port = address.rpartition(":")
        body = json.dumps(description).encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = SECONDS  # for a request to come: its thread waits

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        class Listener(http.server.ThreadingHTTPServer):
            address_family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET

        try:
            self.server = Listener((host.strip("[]"), int(port)), Handler)
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

    def __init__(self, timeout: float, clock: Callable[[], float]) -> None:
        self.seconds, self.clock = min(SECONDS, timeout), clock
        self.known: dict[str, tuple[float, dict[str, Any] | str]] = {}  # when, and what, or the error
        self.asked: dict[str, float] = {}  # since when
        self.lock = threading.Lock()

    def get(self, now: float, address: str) -> dict[str, Any] | str | None:
        """What P says, an error as text, or None if it has not answered yet: ask again."""
        with self.lock:
            if (known := self.known.get(address)) and now - known[0] < FRESH:
                return known[1]
            if address not in self.asked:
                if len(self.asked) >= ASKED:
                    return f"{address}: {ASKED} others are asked, and have not answered"
                self.known = {other: known for other, known in self.known.items() if now - known[0] < FRESH}
                self.asked[address] = now
                threading.Thread(target=self._ask, args=(address,), name="kvferry-bootstrap", daemon=True).start()
            elif now - self.asked[address] >= 2 * self.seconds:  # it bounds neither a name's look-up nor an answer that comes byte by byte
                return f"{address}: has not answered within {2 * self.seconds:g} s"
            return None

    def _ask(self, address: str) -> None:
        try:
            with open_url(address, timeout=self.seconds) as answer:
                found: dict[str, Any] | str = json.loads(answer.read(MOST))
            if not isinstance(found, dict):
                raise ValueError("there is no P at this address")
        except Exception as e:  # whatever it is: who asks waits for what is noted here
            found = f"{address}: {e}"
        with self.lock:
            del self.asked[address]
            self.known[address] = self.clock(), found
