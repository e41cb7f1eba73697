"""One GPU seen as two (agent/device/cuda/twin): what Python has to know of it.

torch sees the one GPU that there is; HyperFrames sees a second one, which can lend and cannot
compute. Bits and bytes are real with it. Times are not: both GPUs' work is done by one.
"""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = "agent/device/cuda/twin"
_LIBRARIES = {
    "HYPERFRAMES_CUDA_LIBRARY": "libtwin-cuda.so",
    "HYPERFRAMES_NVML_LIBRARY": "libtwin-nvml.so",
}
_BYTES, _MOST_BYTES = "HYPERFRAMES_TWIN_BYTES", 64 << 30  # As twin_memory.cc has it.


def environment(programs: Path) -> dict[str, str]:
    """What makes one GPU two, for programs that ``programs`` holds the libraries of."""
    return {name: str(programs / _FOLDER / file) for name, file in _LIBRARIES.items()}


def is_twin() -> bool:
    """Whether this process's second GPU is its first one again."""
    named = Path(os.environ.get("HYPERFRAMES_CUDA_LIBRARY", "")).name
    return named == _LIBRARIES["HYPERFRAMES_CUDA_LIBRARY"]


def gpus() -> int:
    """As HyperFrames counts them; the first ``torch.cuda.device_count()`` can compute."""
    import torch  # Not where only a process is to be started.

    seen = int(torch.cuda.device_count())
    return 2 if is_twin() and seen == 1 else seen


def lender_bytes(own_bytes: int) -> int:
    """Of the GPU that lends, where this process's own has so many."""
    if not is_twin():
        return own_bytes
    return min(int(os.environ.get(_BYTES, _MOST_BYTES)), own_bytes // 2)


def words() -> list[str]:
    """In front of a job's command: agents do not hand their own settings on to workers."""
    if not is_twin():
        return []
    names = [n for n in os.environ if n in _LIBRARIES or n.startswith("HYPERFRAMES_TWIN_")]
    return ["env", *(f"{name}={os.environ[name]}" for name in sorted(names))]
