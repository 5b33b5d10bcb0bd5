"""What a request is to the connector: its kv_transfer_params, read in one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import layout
from .config import LAYERWISE, PULL

NEEDED = {
    PULL: (("remote_ranks", "remote_kind", "remote_hold", "remote_key", "remote_block_ids", "remote_num_tokens"), "give D all that P has answered"),
    LAYERWISE: (("transfer_id", "remote_bootstrap_addr"), "give it to P and to D"),
}
"""The fields that D cannot do without, beside do_remote_prefill, and where they come from."""


@dataclass(frozen=True)
class Asked:
    comes: str
    """How its KV comes from a P: PULL or LAYERWISE; empty if it does not."""
    goes: str
    """How it goes to a D, likewise."""
    params: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, request: Any, writes: bool) -> Asked:
        """writes says whether we write KV for a D that names a transfer: without a bootstrap D cannot find us, and reads."""
        params = request.kv_transfer_params or {}
        comes = LAYERWISE if "remote_bootstrap_addr" in params else PULL
        goes = LAYERWISE if writes and params.get("transfer_id") else PULL
        return cls(comes if params.get("do_remote_prefill") else "", goes if params.get("do_remote_decode") else "", params)

    @property
    def transfer(self) -> str:
        """The name of the transfer that we write; empty where D reads."""
        return str(self.params["transfer_id"]) if self.goes == LAYERWISE else ""

    def wrong(self, handoff: str) -> str:
        """What is wrong with what D was given, if something is; handoff is D's own."""
        params, (names, hint) = self.params, NEEDED[self.comes]
        if self.comes == LAYERWISE != handoff:
            return f'P is to write the blocks, and kv_connector_extra_config.handoff of D is {handoff!r}: make it "{LAYERWISE}"'
        if missing := [name for name in names if not params.get(name)]:
            return f"kv_transfer_params have no {missing[0]}: {hint}"
        if self.comes == LAYERWISE:
            return "" if isinstance(params["remote_bootstrap_addr"], str) else "remote_bootstrap_addr is no text"
        blocks, tokens = params["remote_block_ids"], params["remote_num_tokens"]
        if not layout.naturals([tokens, params["remote_hold"], params["remote_key"], params.get("remote_checked_blocks", 0)]) or not layout.naturals(blocks):
            return "remote_block_ids, remote_num_tokens, remote_hold, remote_key and remote_checked_blocks are not what P has answered"
        return ""
