"""Mooncake's connector as vLLM has it, on a machine without an accelerator.

It asks torch for the number of its device, which a CPU does not have. That function is given
here, and all else is vLLM's own: name this module as kv_connector_module_path.
"""

import torch

if not torch.accelerator.is_available():
    torch.accelerator.current_device_index = lambda: 0

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import (  # noqa: E402
    MooncakeConnector,
)

__all__ = ["MooncakeConnector"]
