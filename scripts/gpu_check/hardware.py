"""What is there, and how fast it is without us."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import torch
from torch.nn.attention import SDPBackend

from scripts.gpu_check.place import Finding, Place, rounded


def hardware(place: Place) -> Iterator[Finding]:
    yield {"what": "versions", **_versions(place)}
    yield {
        "what": "attention kernels of torch",
        "order": " ".join(SDPBackend(each).name for each in torch._C._get_sdp_priority_order()),
        "cudnn_before_us": torch.backends.cuda.cudnn_sdp_enabled(),
    }
    count = 1 << (20 if place.small else 30)
    x = torch.zeros(count, dtype=torch.bfloat16, device=place.device)
    into = torch.empty_like(x)
    seconds = place.seconds(lambda: into.copy_(x))
    yield {"what": "copy", "gb": x.nbytes / 1e9, "tb_per_s": rounded(2 * x.nbytes / seconds / 1e12)}
    size = 256 if place.small else 8192
    a, b = torch.randn(2, size, size, device=place.device).bfloat16()
    seconds = place.seconds(lambda: torch.mm(a, b))
    yield {"what": "product", "size": size, "tflop_per_s": rounded(2 * size**3 / seconds / 1e12)}


def _versions(place: Place) -> dict[str, object]:
    found: dict[str, object] = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for name in ("torch", "triton", "numpy", "numba", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    if place.on_gpu:
        free, total = torch.cuda.mem_get_info(place.device)
        found |= {
            "gpu": torch.cuda.get_device_name(place.device),
            "free_gb": rounded(free / 1e9),
            "total_gb": rounded(total / 1e9),
            "cudnn": torch.backends.cudnn.version(),
        }
    return found
