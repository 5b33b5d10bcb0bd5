"""Runs the unmodified sglang.benchmark.serving of SGLang's wheel where its engine is not installed.

    python3 sglang.py [flags of bench_serving]

SGLang's package imports its engine (torch, GPU kernels) when it is imported, and the client needs
one constant of it. So the package's own __init__ is left out here, and that constant is given;
`datasets`, which only downloads need, may be missing. The client's code is the wheel's.
"""

import os
import sys
import types

here = os.path.dirname(os.path.abspath(__file__))
sys.path = [p for p in sys.path if os.path.abspath(p or ".") != here]  # this file's name is the package's
root = next(p for p in (os.path.join(p, "sglang") for p in sys.path) if os.path.isdir(p))


def package(name, path):
    module = types.ModuleType(name)
    module.__path__ = [path]
    sys.modules[name] = module


for name in ("sglang", "sglang.srt", "sglang.srt.disaggregation", "sglang.srt.utils"):
    package(name, os.path.join(root, *name.split(".")[1:]))
constants = types.ModuleType("sglang.srt.disaggregation.utils")
constants.FAKE_BOOTSTRAP_HOST = "2.2.2.2"
sys.modules[constants.__name__] = constants
try:
    import datasets  # noqa: F401
except ImportError:
    downloads = types.ModuleType("datasets")
    downloads.load_dataset = None
    sys.modules["datasets"] = downloads

from sglang.benchmark.serving import cli_main  # noqa: E402

sys.argv[0] = "bench_serving"
cli_main()
