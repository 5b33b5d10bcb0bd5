# The numbers that RandomState and NumpyGenerator must draw, printed by numpy itself:
#   python numpy.py > numpy.json
import json
import numpy as np
import pandas as pd

SEEDS = [0, 1, 42, 2**32 - 1]
# From one value to more than 32 bits; 2**32 takes whole words, and of the last two a quarter is rejected.
RANGES = [(0, 1), (1, 65), (1, 17), (0, 151936), (-5, 6), (0, 2**31), (0, 2**32), (0, 2**32 + 1), (7, 2**40), (0, 2**63 - 1), (0, 3 * 2**30), (-(2**62), 2**63 - 1)]
SHAPES = [0, 0.1, 0.25, 0.999, 1, 1.5, 4, 100]
P = [0.5, 0.1, 0.2, 0.05, 0.15]
out = {"numpy": np.__version__, "pandas": pd.__version__, "ranges": RANGES, "shapes": SHAPES, "p": P, "legacy": {}, "generator": {}}
for seed in SEEDS:
    def rs():
        return np.random.RandomState(seed)
    mixed = rs()
    out["legacy"][seed] = {
        "random_sample": rs().random_sample(4).tolist(),
        "randint": [rs().randint(a, b, size=6).tolist() for a, b in RANGES],
        "exponential": rs().exponential(0.5, 5).tolist(),
        "standard_normal": rs().standard_normal(5).tolist(),
        "gamma": [rs().gamma(s, 2.0, 6).tolist() for s in SHAPES],
        "choice": rs().choice(5, size=20, p=P).tolist(),
        "sample": pd.DataFrame({"i": range(50)}).sample(n=12, random_state=seed)["i"].tolist(),
        "permutation": rs().permutation(20).tolist(),
        # One stream for all of them, in this order.
        "mixed": [mixed.standard_normal(), mixed.randint(0, 10), float(mixed.randint(3, 4)), mixed.standard_normal(), mixed.gamma(2.5), mixed.random_sample()],
    }
for seed in SEEDS + [2**32, 123456789012345]:
    def rng():
        return np.random.default_rng(seed)
    mixed = rng()
    out["generator"][seed] = {
        "random": rng().random(4).tolist(),
        "integers": [rng().integers(a, b, size=7).tolist() for a, b in RANGES],
        "choice": rng().choice(5, size=20, p=P).tolist(),
        # Halves of outputs are kept for the next 32-bit draw, whatever comes in between.
        "mixed": [float(mixed.integers(0, 100)), mixed.random(), float(mixed.integers(3, 4)), float(mixed.integers(0, 100)), float(mixed.integers(0, 2**40)), float(mixed.integers(0, 7))],
    }
print(json.dumps(out))
