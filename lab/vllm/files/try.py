"""Have vLLM answer one prompt of each model, and say what it answers.

usage: try.py TINY SMOLLM2

vLLM runs within this process: its own processes would spin on shared memory, and starve
whatever runs beside them.
"""

import sys


def answer(folder, prompt, tokens, **options):
    from vllm import LLM, SamplingParams

    llm = LLM(folder, max_model_len=512, enforce_eager=True, disable_log_stats=True, **options)
    outputs = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=tokens), use_tqdm=False)
    return outputs[0].outputs[0].text


if __name__ == "__main__":
    tiny, smollm2 = sys.argv[1:]
    print("tiny:", answer(tiny, "bado cibe", 8, dtype="float32"))
    text = answer(smollm2, "The capital of France is", 8)
    print("SmolLM2:", text)
    if "Paris" not in text:
        sys.exit("SmolLM2 does not know that the capital of France is Paris: its weights are wrong")
