"""What the processor has that compiled code may use."""

from __future__ import annotations

from llvmlite import binding, ir
from numba.core import config


class BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


def processor_has(feature: str) -> bool:
    """Whether compiled code may use an extension of x86, by LLVM's name for it."""
    if config.CPU_NAME or config.CPU_FEATURES:  # numba was told to compile for something else
        return f"+{feature}" in (config.CPU_FEATURES or "").split(",")
    return bool(binding.get_host_cpu_features().get(feature, False))


def has_bfloat16() -> bool:
    """Whether it rounds to bfloat16, and multiplies pairs of such numbers, by itself."""
    return processor_has("avx512bf16")
