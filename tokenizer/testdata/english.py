"""Trains the English pieces of kvferry's own tokenizer (../english.txt).

python english.py OUT TEXT...

The texts are Mark Twain's Tom Sawyer and Isaac Newton's Opticks, both in the public domain, as they lie in the sources of
github.com/klauspost/compress (testdata/Mark.Twain-Tom.Sawyer.txt) and of Go (src/testdata/Isaac.Newton-Opticks.txt). Each line of the
output is a merge: the two parts of a piece, with a tab between them.

This is byte-pair encoding, but a piece begins as what the merges of kvferry's words make of it; see ../own.go. No merge has
a word in it, since it depends on the size of the vocabulary which words there are.
"""

import collections
import re
import sys

from tokenizers import Regex, pre_tokenizers

PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
C, V = "[bcdfghjklmnpqrstvwxz]", "[aeiou]"
FIRST = re.compile(f" {C}{V}{C}{V}{C}|{V}{C}|.", re.S)
BEGIN = re.compile(f"( {C}{V}{C}{V}{C}| {C}{V}{C}| {C})?(.*)", re.S)
WORD = re.compile(f" {C}{V}{C}{V}{C}$")
MERGES = 8000


def symbols(piece):
    head, rest = BEGIN.match(piece).groups()
    return tuple(([head] if head else []) + re.findall(f"{V}{C}|[\\s\\S]", rest))


def main(out, names):
    cut = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    counts = collections.Counter()
    for name in names:
        text = open(name, encoding="utf-8", errors="ignore").read().replace("\r\n", "\n")
        # Lines of a book are broken by hand; text that is sent to a model is not.
        text = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
        counts.update(p for p, _ in cut.pre_tokenize_str(text) if p.isascii())
    words = [(list(symbols(p)), n) for p, n in counts.items()]
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, (s, n) in enumerate(words):
        for pair in zip(s, s[1:]):
            pairs[pair] += n
            where[pair].add(i)
    merges = []
    while len(merges) < MERGES:
        pair, n = max(((p, n) for p, n in pairs.items() if not (WORD.match(p[0]) or WORD.match(p[1]))), key=lambda x: (x[1], x[0]))
        if n < 2:
            break
        merges.append(pair)
        for i in list(where[pair]):
            s, n = words[i]
            for p in zip(s, s[1:]):
                pairs[p] -= n
                where[p].discard(i)
            new, j = [], 0
            while j < len(s):
                if tuple(s[j:j + 2]) == pair:
                    new.append(s[j] + s[j + 1])
                    j += 2
                else:
                    new.append(s[j])
                    j += 1
            words[i] = (new, n)
            for p in zip(new, new[1:]):
                pairs[p] += n
                where[p].add(i)
        del pairs[pair]
    assert len(set(a + b for a, b in merges)) == len(merges), "two ways to one piece"
    with open(out, "w") as f:
        for a, b in merges:
            f.write((a + "\t" + b).replace("\n", "\\n").replace("\r", "\\r") + "\n")


main(sys.argv[1], sys.argv[2:])
