"""Which package index has the PyTorch that this machine needs: prints its address, or nothing for pip's own.

    python scripts/torch_index.py [ADDRESS]

Without an NVIDIA device that is PyTorch's CPU index, where it can be reached: on Linux the build that PyPI hands out
brings CUDA's libraries. With a device, on other systems, or where the index cannot be reached, it is pip's own index.
ADDRESS settles it. What will be downloaded is said on stderr. Always exits 0, within eight seconds.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
WAIT_S = 8.0
# Of torch 2.13.0 for Linux on x86-64: the CPU wheel; the CUDA wheel with the libraries that it requires, unpacked.
CPU_BUILD = "its CPU build (about 190 MB)"
CUDA_BUILD = "its CUDA build (about 2.7 GB to download, 4.4 GB unpacked)"


def has_gpu() -> bool:
    """Whether an NVIDIA device is seen: its device file, or what nvidia-smi lists (WSL has no such file)."""
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return True
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    try:
        return subprocess.run([program, "-L"], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def reachable(index: str, wait_s: float = WAIT_S) -> bool:
    """Whether the index answers for torch in time. A name service that never answers does not hold this up."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            request = urllib.request.Request(f"{index}/torch/", headers={"User-Agent": "cosmos3-serve"})
            with urllib.request.urlopen(request, timeout=wait_s) as answer:
                answers.append(answer.status == 200)
        except (OSError, ValueError):
            answers.append(False)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(wait_s)
    return answers == [True]


def choose(
    given: str = "", *, platform: str = sys.platform, gpu: bool | None = None, index: str = CPU_INDEX,
    wait_s: float = WAIT_S,
) -> tuple[str, str]:  # fmt: skip
    """(address of the index, what to say of it). An empty address is pip's own index."""
    if given:
        return given, f"PyTorch from {given}"
    if platform != "linux":
        return "", "PyTorch from pip's own index"
    if has_gpu() if gpu is None else gpu:
        return "", f"an NVIDIA device is here: PyTorch from pip's own index, {CUDA_BUILD}"
    if reachable(index, wait_s):
        return index, f"no NVIDIA device is here: PyTorch from {index}, {CPU_BUILD}"
    said = f"no NVIDIA device is here, and {index} cannot be reached: PyTorch from pip's own index"
    return "", f"{said}, which may be {CUDA_BUILD}"


if __name__ == "__main__":
    address, said = choose(*sys.argv[1:2])
    print(said, file=sys.stderr)
    if address:
        print(address)
