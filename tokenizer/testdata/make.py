"""Makes what the tests of package tokenizer compare with. See README.md.

python make.py small           the folders here
python make.py large DIR...    expected.jsonl and chat.jsonl in folders with a tokenizer.json
"""

import json
import os
import random
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))

# Each is there for something that tokenizers get wrong.
FIXED = [
    "", " ", "       ", "\n", "\r\n\r\n", "    four", "a  b   c    d", "trailing   ",
    "Hello, world!", "I'm sure they'll say it's what we'd've DON'T you'RE WE'LL I'M he'D",
    "'s 't 're 've 'm 'll 'd 'S 'T 'RE x's X'S 's's '\u017f don'\u017f",
    "tabs\tand\r\nlines\n\n\n  indented   \n \t end   ", "\u00a0\u00a0x\u2003y\u3000z\u0085w",
    "12345 1 22 333 4444 55555 3.14159 1,000,000 \u00bd \u2167 \u0663\u0664\u0665 \u2460\u2461\u2462 x\u00b2",
    "na\u00efve caf\u00e9 \u00c5\u212b e\u0301 A\u030a \u1100\u1161\u11a8 \ufb01",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u3001\u5143\u6c17\uff1f",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01 \uc548\ub155 \u041f\u0440\u0438\u0432\u0435\u0442 \u0393\u03b5\u03b9\u03ac \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "\U0001f600\U0001f603\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f1e9\U0001f1ea \u2764\ufe0f \u20ac \u2211",
    "def f(x):\n    return {k: v for k, v in x.items() if v != 0}  # comment\n\tpass\n",
    "for (int i = 0; i < n; ++i) { a[i] = b[i] * 2; }\n// done\n", "<html><body class=\"x\">&amp;<br/></body></html>",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><|begin_of_text|> <|eot_id|>x <|im_en <|im_start|",
    "<s></s><unk> <pad> <tool_call>{}</tool_call>", "\x00\x01\x7f\x80\ufffd\ufffe\U0010ffff\ufeff",
    "a" * 120, "ab" * 80, " " * 60 + "x", "\n" * 20, "0123456789" * 8, "-" * 60, "\u6f22\u5b57" * 40,
    # Letters and numbers that came with Unicode 15.1 and 16.
    "\u1c80\u1c89\u1c8a \U0002ebf0\U0002ee5d\U00016d40\U00010d40 \u0132\u0149\u01c5\u00df\u0130\u0131\u212a",
    "__init__ snake_case camelCase HTTPServer v1.2.3-rc4", "\u201cquotes\u201d \u2014 dash \u2026 \u2039x\u203a", "\u200b\u200c\u200d\u2028\u2029x\u061c",
]
WORDS = "the of and to a in is it you that he was for on are with as his they be at one have this from by hot but some what there we can out other were all your when how said each she which time will way about many then them write would like so these her long make thing see him two has look".split()
BLOCKS = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x2000, 0x20CF), (0x2100, 0x214F), (0x2190, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xFB00, 0xFFFF), (0x1F300, 0x1FAFF), (0x10000, 0x10FFFF), (0x20000, 0x2EE5D)]
SPACES = [" "] * 3 + ["  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", " \n", "\n "]
MARKS = list(".,;:!?-_()[]{}<>/\\|@#$%^&*+=~`\"'") + ["'s", "'LL", "...", "->", "==", "<|", "|>"]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>", "<s>", "</s>", "<think>"]


def texts(n, length=60, seed=1):
    """n texts of up to length words, or characters."""
    r = random.Random(seed)

    def char():
        while True:
            c = r.randint(*r.choice(BLOCKS))
            if not 0xD800 <= c < 0xE000:
                return chr(c)

    def word():
        k = r.random()
        if k < 0.45:
            w = r.choice(WORDS)
            return w if r.random() < 0.7 else (w.upper() if r.random() < 0.3 else w.capitalize())
        if k < 0.55:
            return str(r.randint(0, 10 ** r.randint(1, 12)))
        if k < 0.65:
            return "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(1, 15)))
        if k < 0.75:
            return r.choice(MARKS) * r.randint(1, 3)
        if k < 0.8:
            return r.choice(SPECIAL)
        lo, hi = r.choice(BLOCKS[1:])
        return "".join(chr(c) for c in (r.randint(lo, hi) for _ in range(r.randint(1, 8))) if not 0xD800 <= c < 0xE000)

    out = list(FIXED)
    while len(out) < n:
        k, m = r.random(), r.randint(1, length)
        if k < 0.7:
            out.append("".join(word() + (r.choice(SPACES) if r.random() < 0.85 else "") for _ in range(m)))
        elif k < 0.85:
            out.append("".join(char() for _ in range(m)))
        elif k < 0.95:
            out.append("".join(r.choice(" \n\t\r'asdtrevmlLx12") for _ in range(m)))
        else:
            out.append(unicodedata.normalize("NFD", "".join(char() for _ in range(m))))
    return out


CHATS = [
    [{"role": "user", "content": "hi"}],
    [{"role": "user", "content": " two\n\nlines <b>&amp;</b> 'quoted' \"twice\" "}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}, {"role": "user", "content": "你好 😀"}],
    [{"role": "user", "content": ""}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}, {"role": "user", "content": "and?"}, {"role": "assistant", "content": "no"}],
    [{"role": "assistant", "content": "first"}, {"role": "user", "content": "{{ x }} {% y %}"}],
    [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}],
]


def expect(folder, n, length):
    path = os.path.join(folder, "tokenizer.json")
    t = Tokenizer.from_file(path)
    r = random.Random(2)
    size = t.get_vocab_size(with_added_tokens=True)
    with open(os.path.join(folder, "expected.jsonl"), "w") as f:
        for s in texts(n, length):
            ids = t.encode(s).ids
            drawn = [r.randrange(size + 3) for _ in range(r.randint(0, 12))]
            line = {"text": s, "ids": ids, "plain": t.encode(s, add_special_tokens=False).ids, "decoded": t.decode(ids, skip_special_tokens=True),
                    "drawn": drawn, "drawn_decoded": t.decode(drawn, skip_special_tokens=False)}
            f.write(json.dumps(line, separators=(",", ":")) + "\n")
    if not os.path.exists(os.path.join(folder, "tokenizer_config.json")):
        return
    auto = AutoTokenizer.from_pretrained(folder)
    with open(os.path.join(folder, "chat.jsonl"), "w") as f:
        f.write(json.dumps({"len": len(auto), "vocab_size": auto.vocab_size, "special": sorted(auto.all_special_ids)}) + "\n")
        for chat in CHATS if auto.chat_template else []:
            for prompt in (False, True):
                try:
                    line = {"text": auto.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt)}
                except Exception as e:
                    line = {"error": str(e)}
                f.write(json.dumps({"messages": chat, "prompt": prompt} | line) + "\n")


def small():
    corpus = texts(400, 40, seed=3)
    special = lambda *names: [AddedToken(n, special=True, normalized=False) for n in names]
    gpt4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    bytes_alphabet = pre_tokenizers.ByteLevel.alphabet()

    def cut(digits):
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(gpt4 % digits), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    qwen = Tokenizer(models.BPE())
    qwen.normalizer, qwen.pre_tokenizer, qwen.decoder, qwen.post_processor = normalizers.NFC(), cut(""), decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    qwen.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=700, initial_alphabet=bytes_alphabet, show_progress=False))
    qwen.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    qwen.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("caf\u00e9", single_word=True), AddedToken("<think>", lstrip=True, rstrip=True)])

    llama = Tokenizer(models.BPE(ignore_merges=True))
    llama.pre_tokenizer, llama.decoder = cut("{1,3}"), decoders.ByteLevel()
    llama.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=700, initial_alphabet=bytes_alphabet, show_progress=False))
    llama.add_special_tokens(special("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"))
    llama.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", llama.token_to_id("<|begin_of_text|>"))])])

    fallback = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    fallback.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    fallback.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    words = [w for s in corpus for w in s.split(" ") if w.isascii()]
    fallback.train_from_iterator(words, trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", "<s>", "</s>"] + ["<0x%02X>" % i for i in range(256)], show_progress=False))
    fallback.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])

    smol = Tokenizer(models.BPE())
    smol.pre_tokenizer, smol.decoder = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]), decoders.ByteLevel()
    smol.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=500, initial_alphabet=bytes_alphabet, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], show_progress=False))

    # A pattern that no one has, so that it goes through the regular expressions, and a space before the text.
    odd = Tokenizer(models.BPE())
    odd.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{N}{1,2}"), "merged_with_next"), pre_tokenizers.Split(Regex(r"[\p{Lu}\p{M}]+\p{Ll}*|\p{Ll}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"), "merged_with_previous"), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)])
    odd.decoder = decoders.ByteLevel()
    odd.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=400, initial_alphabet=bytes_alphabet, show_progress=False))

    metaspace = Tokenizer(models.BPE(unk_token="<unk>"))
    metaspace.pre_tokenizer, metaspace.decoder = pre_tokenizers.Metaspace(prepend_scheme="first"), decoders.Metaspace(prepend_scheme="first")
    metaspace.train_from_iterator([s for s in corpus if s.isascii()], trainers.BpeTrainer(vocab_size=250, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False))

    level = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<unk>", "<pad>"] + WORDS + list(".,:;!?'"))}, unk_token="<unk>"))
    level.pre_tokenizer = pre_tokenizers.Whitespace()
    level.add_special_tokens(special("<unk>", "<pad>"))

    # One template goes the ways of Qwen's, the other those of Llama 3's.
    marks = (
        "{%- if messages[0].role == 'system' %}\n    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}\n{%- else %}\n    {{- '<|im_start|>system\\nHello.<|im_end|>\\n' }}\n{%- endif %}\n"
        "{%- set ns = namespace(last=-1) %}\n{%- for m in messages[::-1] %}\n    {%- if ns.last < 0 and m['role'] == 'user' %}\n        {%- set ns.last = messages|length - 1 - loop.index0 %}\n    {%- endif %}\n{%- endfor %}\n"
        "{%- for m in messages %}\n    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}\n        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}\n"
        "    {%- elif m.role == 'assistant' %}\n        {%- set c = m.content %}\n        {%- if '</think>' in c and loop.index0 < ns.last %}\n            {%- set c = c.split('</think>')[-1].lstrip('\\n') %}\n        {%- endif %}\n        {{- '<|im_start|>assistant\\n' + c + '<|im_end|>\\n' }}\n    {%- endif %}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}"
    )
    headers = (
        "{% if tools is not none and tools is defined %}tools{% endif %}\n{% for m in messages %}\n    {% if m['role'] not in ['system', 'user', 'assistant'] or (loop.previtem is defined and loop.previtem.role == m.role) %}\n        {{ raise_exception('Roles must alternate') }}\n    {% endif %}\n"
        "    {% set content = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' %}\n    {% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}\n{{ content }}\n{% endfor %}\n"
        "{% if add_generation_prompt %}\n{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}\n"
    )
    for name, t, n, settings in [
        ("qwen", qwen, 90, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "chat_template": marks}),
        ("llama3", llama, 90, {"bos_token": "<|begin_of_text|>", "eos_token": {"__type": "AddedToken", "content": "<|eot_id|>"}}),
        ("llama2", fallback, 50, None), ("smollm", smol, 50, None), ("pattern", odd, 50, None), ("metaspace", metaspace, 40, None), ("wordlevel", level, 40, None),
    ]:
        folder = os.path.join(HERE, name)
        os.makedirs(folder, exist_ok=True)
        t.save(os.path.join(folder, "tokenizer.json"), pretty=False)
        if settings:
            with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
                json.dump(settings | {"tokenizer_class": "PreTrainedTokenizerFast"}, f, indent=1)
        if name == "llama3":
            with open(os.path.join(folder, "chat_template.jinja"), "w") as f:
                f.write(headers)
        expect(folder, n, 12)


if __name__ == "__main__":
    if sys.argv[1] == "small":
        small()
    else:
        for folder in sys.argv[2:]:
            expect(folder, 3000, 60)
            print(folder)
