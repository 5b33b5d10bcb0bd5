"""Make a tiny Qwen2 with random weights: 4 layers, 3.4 million parameters, fp32.

usage: tiny.py FOLDER

The weights are drawn from a wide distribution, so that each prompt has another answer:
with the usual range of 0.02 all prompts have the same one, and equal tokens would then
mean nothing. Give vLLM dtype float32, or it makes bf16 of it.
"""

import os
import shutil
import sys

CONSONANTS, VOWELS = "bcdfghjklmnprstvwxyz", "aeiou"
WORDS = 1869  # each with a space before it, and without: with the rest, 4,096 tokens


def vocabulary():
    """The tokens of a byte-level BPE and its merges: bytes, syllables, words of two syllables.

    Any text can be written with it, and a word, "bado", is one token. Qwen2's tokenizer reads
    no other kind of vocabulary.
    """
    syllables = [c + v for c in CONSONANTS for v in VOWELS]
    pairs = [(a, b) for a in syllables for b in syllables][:WORDS]
    space = "Ġ"  # how byte-level BPE writes it
    merges = [tuple(s) for s in syllables] + pairs + [(space, a + b) for a, b in pairs]
    # The bytes as byte-level BPE writes them: those that are no printable character move up.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [chr(b) for b in printable] + [chr(0x100 + i) for i in range(256 - len(printable))]
    tokens = ["<|endoftext|>", "<|pad|>", *letters, *(a + b for a, b in merges)]
    return {token: i for i, token in enumerate(tokens)}, merges


def tokenizer():
    from transformers import Qwen2Tokenizer

    vocab, merges = vocabulary()
    return Qwen2Tokenizer(
        vocab=vocab, merges=merges, unk_token="<|endoftext|>", eos_token="<|endoftext|>", pad_token="<|pad|>"
    )


def model():
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(vocabulary()[0]),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        initializer_range=0.15,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    return Qwen2ForCausalLM(config).to(torch.float32)


def save(folder, model, tokenizer):
    """Save beside the folder and rename: what has its name is whole."""
    work = folder + ".part"
    shutil.rmtree(work, ignore_errors=True)
    model.save_pretrained(work)
    tokenizer.save_pretrained(work)
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(work, folder)


if __name__ == "__main__":
    save(sys.argv[1], model(), tokenizer())
