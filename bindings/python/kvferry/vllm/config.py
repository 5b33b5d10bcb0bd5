"""kv_connector_extra_config: what the connector can be told."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import urllib.parse
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
    allow: tuple[tuple[str, int | None], ...] = ()
    """Hosts or networks, each with a port or None for any, to which a request may send this engine over HTTP beside LOOPBACK."""
    gpu: str = STAGED
    """How KV on a GPU is moved. STAGED: by way of pinned host memory. DIRECT: by NICs that reach it. Of no meaning on a CPU."""

    @classmethod
    def of(cls, extra: dict[str, Any], role: str = "kv_both", rank: int = 0) -> Config:
        """Of the JSON, and vLLM's kv_role: an instance that is only P needs a bootstrap, one that is only D has none. Each
        data-parallel rank has a bootstrap of its own, at the port plus its number."""
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
        allow, hosts = extra.get("allow", ""), []
        for entry in allow.split(",") if isinstance(allow, str) else allow if isinstance(allow, list) else [allow]:
            try:
                if entry:
                    hosts.append(_host(entry.strip()))
            except (AttributeError, ValueError) as e:
                raise ConfigError("allow", f'is {allow!r}: {e}: give hosts or networks, "10.0.0.1:8998,10.0.1.0/24"') from e
        if address:
            host, _, port = address.rpartition(":")
            hosts.append((host.strip("[]").lower(), int(port)))
            address = f"{host}:{int(port) + rank}"
        return cls(**{**extra, "bootstrap": "" if role == "kv_consumer" else address, "allow": tuple(hosts)})

    def refuses(self, name: str, url: str) -> str:
        """Says why a request may not send this engine to a URL, which it has under this name; returns "" if it may."""
        try:
            parts = urllib.parse.urlsplit(url)
            host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as e:
            return f"{name} {url!r}: {e}"
        if parts.scheme not in ("http", "https") or not host:
            return f"{name} {url!r}: it begins with http:// or https:// and a host"
        if any(port in (only, port if only is None else only) and _within(host, there) for there, only in (*LOOPBACK, *self.allow)):
            return ""
        return f"{name} {url!r}: kv_connector_extra_config.allow has no {host}:{port}: add it if requests may send this engine there"


LOOPBACK = (("localhost", None), ("127.0.0.0/8", None), ("::1", None))


def _host(entry: str) -> tuple[str, int | None]:
    """Splits an entry of allow into a host or network and a port."""
    if "/" in entry:
        return str(ipaddress.ip_network(entry)), None
    parts = urllib.parse.urlsplit("//" + entry)
    if not parts.hostname or parts.path:
        raise ValueError(f"{entry!r} is no host")
    return parts.hostname, parts.port


def _within(host: str, there: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(there)
    except ValueError:
        return host == there
