"""Lets the datasets of vLLM and SGLang be imported from their wheels without torch and the
rest: of the packages themselves only the benchmarks are real, anything else is empty."""
import argparse
import importlib.abc
import importlib.machinery
import sys
import types

REAL = {"vllm": "vllm.benchmarks", "sglang": "sglang.benchmark"}
MISSING = {"soundfile", "torch", "datasets", "librosa", "pybase64", "aiohttp", "orjson", "openai_harmony"}


class Empty(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Thing


class Thing(metaclass=Empty):
    def __init__(self, *args, **kwargs):
        pass


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return {"FlexibleArgumentParser": argparse.ArgumentParser, "is_mistral_tokenizer": lambda t: False}.get(name, Thing)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, folders):
        self.folders = folders

    def find_spec(self, name, path, target=None):
        top = name.split(".")[0]
        real = REAL.get(top)
        if top in self.folders and not name.startswith(real) or top in MISSING:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = Module(spec.name)
        module.__path__ = [self.folders[spec.name]] if spec.name in self.folders else []
        return module

    def exec_module(self, module):
        pass


def install(**folders):
    """folders are where the packages lie: vllm="site-packages/vllm"."""
    sys.meta_path.insert(0, Finder(folders))


def use(**folders):
    """Has other versions of the packages take the place of those that were imported."""
    for name in list(sys.modules):
        if name.split(".")[0] in folders:
            del sys.modules[name]
    sys.meta_path[0].folders.update(folders)
