"""KV of vLLM's over kvferry: a connector that vLLM loads by name, unmodified.

    --kv-transfer-config '{"kv_connector":"KvferryConnector","kv_connector_module_path":"kvferry.vllm", ...}'

docs/connector.md has the whole configuration. vLLM is imported with the connector and not before: everything else here
runs without it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["KvferryConnector"]


def __getattr__(name: str) -> Any:
    if name == "KvferryConnector":
        from .connector import KvferryConnector

        return KvferryConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
