"""kv_connector_extra_config: what the connector can be told."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

PULL, LAYERWISE = "pull", "layerwise"
STAGED, DIRECT = "staged", "direct"


class ConfigError(ValueError):
    """A field of kv_connector_extra_config that is wrong, and what would do."""

    def __init__(self, field: str, text: str):
        super().__init__(f"kv_connector_extra_config.{field}: {text}")


@dataclass(frozen=True)
class Config:
    rails: str
    """As everywhere in kvferry: "tcp/eth0,tcp/eth1", "rdma/mlx5_0", "cma"."""
    handoff: str = PULL
    """PULL: D reads a prompt's blocks when P has answered. LAYERWISE: P writes each layer when it has computed it."""
    bootstrap: str = ""
    """"host:port" at which P says how it is reached, over HTTP. P needs it for LAYERWISE."""
    timeout: float = 30.0
    """Seconds that a transfer may take, then D computes the prompt itself."""
    lease: float = 60.0
    """Seconds that P keeps the blocks of a prompt that it has answered, for D to take them."""
    checksums: bool = False
    """Whether each block is checked by D against P's checksum of it. Both must say so."""
    gpu: str = STAGED
    """How KV on a GPU is moved. STAGED: by way of pinned host memory. DIRECT: by NICs that reach it. Of no meaning on a CPU."""

    @classmethod
    def of(cls, extra: dict[str, Any], role: str = "kv_both") -> Config:
        """Of the JSON, and vLLM's kv_role: an instance that is only P needs a bootstrap, one that is only D has none."""
        fields = {f.name: f for f in dataclasses.fields(cls)}
        if unknown := [name for name in extra if name not in fields]:
            raise ConfigError(unknown[0], f"there is no such field: use {', '.join(fields)}")
        rails = extra.get("rails")
        if isinstance(rails, (list, tuple)):
            extra = {**extra, "rails": ",".join(map(str, rails))}
        elif not isinstance(rails, str) or not rails:
            raise ConfigError("rails", f'is {rails!r}: name the NICs to use, "tcp/eth0" or "tcp/eth0,tcp/eth1", or "cma" within a machine')
        if extra.get("handoff", PULL) not in (PULL, LAYERWISE):
            raise ConfigError("handoff", f"is {extra['handoff']!r}: use {PULL} or {LAYERWISE}")
        address = extra.get("bootstrap", "")
        if not isinstance(address, str) or address and not re.fullmatch(r"(\[[^]]+\]|[^:[\]]*):\d+", address):
            raise ConfigError("bootstrap", f'is {address!r}: give a host of this machine and a port, "127.0.0.1:8998" or "[::1]:8998"')
        if role == "kv_producer" and not address and extra.get("handoff") == LAYERWISE:
            raise ConfigError("bootstrap", f'is missing, and P needs it for {LAYERWISE}: give a host of this machine and a port, "127.0.0.1:8998"')
        for name in ("timeout", "lease"):
            value = extra.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
                raise ConfigError(name, f"is {value!r}: give seconds, more than 0")
        if not isinstance(extra.get("checksums", False), bool):
            raise ConfigError("checksums", f"is {extra['checksums']!r}: use true or false")
        if extra.get("gpu", STAGED) not in (STAGED, DIRECT):
            raise ConfigError("gpu", f"is {extra['gpu']!r}: use {STAGED} or {DIRECT}")
        if extra.get("gpu") == DIRECT and not re.search(r"(^|,)\s*rdma/", extra["rails"]):
            raise ConfigError("gpu", f'is "{DIRECT}", and no rail of {extra["rails"]!r} is over RDMA: name such NICs, "rdma/mlx5_0", or use "{STAGED}"')
        if extra.get("gpu") == DIRECT and extra.get("checksums"):
            raise ConfigError("checksums", f'is true, and with "gpu":"{DIRECT}" nobody reads the blocks: use false, or "gpu":"{STAGED}"')
        return cls(**{**extra, "bootstrap": "" if role == "kv_consumer" else address})
