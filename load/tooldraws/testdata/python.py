# The numbers that PythonRandom must draw, printed by Python itself:
#   python3 python.py > python.json
import json
import platform
import random

out = {"python": platform.python_version(), "draws": []}
for seed in [0, 1, 42, -1, 2**32, 2**63 - 1, -(2**63)]:
    def r():
        return random.Random(seed)
    def shuffled(n):
        x = list(range(n))
        r().shuffle(x)
        return x
    mixed = r()
    out["draws"].append({
        "seed": seed,
        "random": r().random(),
        "getrandbits": [r().getrandbits(k) for k in (1, 31, 32, 33)] + [str(r().getrandbits(64))],
        "randrange": [[g.randrange(n) for _ in range(6)] for n in (1, 2, 7, 64, 151936, 2**40) for g in [r()]],
        "randint": [g.randint(-3, 3) for g in [r()] for _ in range(8)],
        "choice": [g.choice(range(10)) for g in [r()] for _ in range(8)],
        "choices": r().choices(range(151936), k=6),
        "shuffle": shuffled(20),
        "sample": [r().sample(range(n), k) for n, k in ((5, 5), (21, 3), (22, 3), (84, 6), (86, 6), (1000, 64))],
        # One stream for all of them, in this order.
        "mixed": [mixed.choice(range(10)), mixed.choices(range(100), k=1)[0], mixed.getrandbits(5), mixed.random()],
    })
print(json.dumps(out, ensure_ascii=False))
