"""Writes the small files that the datasets are read from: all made up, but for the sonnets.
    python samples.py"""
import json
import os
import random

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

lines = [l for l in open("sonnets.txt").read().splitlines() if l]
r = random.Random(2026)


def said(n):
    """n words, and now and then a character that has several bytes."""
    words = r.choices(" ".join(lines).split(), k=n)
    return " ".join(words) + r.choice(["", ".", "!\n", " größer 東京", " 🙂"])


def talk(key, value, turns):
    return {"id": str(r.random()), key: [{"from": "human" if i % 2 == 0 else "gpt", value: said(n)} for i, n in enumerate(turns)]}


sizes = lambda: (r.choice([1, 3, 8, 20, 60]), r.choice([1, 2, 5, 20, 40]))
talks = [talk("conversations", "value", sizes()) for _ in range(40)]
talks += [talk("conversations", "value", t) for t in ([5], [], [600, 10], [10, 1500], [300, 300, 4])]
talks += [talk("conversation", "value", (9, 9)), {"items": []}]
talks[3]["conversations"][0]["value"] = ""
talks[7]["conversations"][0]["value"] = "Say it again. Assistant:"
r.shuffle(talks)
json.dump(talks, open("sharegpt.json", "w"), ensure_ascii=False, indent=0)
with open("custom.jsonl", "w") as f:
    for i in range(12):
        f.write(json.dumps({"prompt": said(r.randint(3, 20)), "output_tokens": i + 5}) + "\n")
with open("conversations.jsonl", "w") as f:
    for i in range(12):
        f.write(json.dumps(talk(r.choice(["conversation", "conversations"]), r.choice(["content", "value"]), sizes()), ensure_ascii=False) + "\n\n")
    f.write(json.dumps({"conversations": [{"content": "one turn alone"}]}) + "\n")
with open("burstgpt.csv", "w") as f:
    f.write("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n")
    for i in range(40):
        a, b = r.randint(1, 400), r.choice([0, 1, 17, 230])
        f.write(f"{i * 7},{r.choice(['GPT-4', 'ChatGPT'])},{a},{b},{a + b},Conversation log\n")

# A byte-level BPE whose pieces may have spaces inside, so that what is decoded and encoded
# again often has another length.
t = Tokenizer(models.BPE())
t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
t.decoder = decoders.ByteLevel()
t.train_from_iterator(lines, trainers.BpeTrainer(
    vocab_size=420, special_tokens=["<|bos|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
t.add_special_tokens([AddedToken(s, special=True) for s in ("<|im_start|>", "<|im_end|>")])
t.save("tokenizer.json", pretty=False)

# Requests of chats, and questions.
r = random.Random(2027)
tools = [{"type": "function", "function": {"name": "lookup", "description": "A poem's lines, größer \u2028 \"or\" not\n", "parameters": {"type": "object", "properties": {"line": {"type": "integer", "minimum": -0.0, "maximum": 1e16}, "share": {"enum": [0.5, 1.0, 1e-5, 12345.678, None, True, "🙂"]}}}}}]
with open("openai.jsonl", "w") as f:
    for i in range(12):
        messages = [{"role": "user", "content": said(r.randint(1, 30))}]
        if i % 3 == 0:
            messages.insert(0, {"role": "system", "content": said(6)})
        if i % 4 == 1:
            messages += [{"role": "assistant", "content": said(5)}, {"role": "user", "content": said(3)}]
        line = {"model": "m", "messages": messages, "max_tokens": 10 + i, "temperature": 0.5, "ignore_eos": i % 2 == 0}
        if i == 5:
            del line["max_tokens"]
        if i == 7:
            line["messages"] = []
        if i % 5 == 2:
            line["tools"] = tools
        f.write(json.dumps(line, ensure_ascii=i % 2 == 0) + "\n")
with open("spec_bench.jsonl", "w") as f:
    for i in range(12):
        f.write(json.dumps({"question_id": i, "category": r.choice(["writing", "math"]), "turns": [said(r.randint(2, 40)), said(3)]}) + "\n")
# vLLM reads messages of the file in the folder, SGLang turns of the file.
os.makedirs("speed_bench", exist_ok=True)
with open("speed_bench/throughput_1k.jsonl", "w") as f:
    for i in range(30):
        text = said(r.randint(2, 40))
        f.write(json.dumps({"category": r.choice(["low_entropy", "mixed", "high_entropy"]), "turns": [text], "messages": [{"role": "user", "content": text}]}) + "\n")
with open("longbench.jsonl", "w") as f:
    for i in range(8):
        f.write(json.dumps({"context": said(r.randint(20, 200)), "question": said(8), **{"choice_" + c: said(3) for c in "ABCD"}, "answer": "A"}) + "\n")
