"""What the processor has that compiled code may use."""

from __future__ import annotations

from llvmlite import ir
from numba.core import config
from numba.core.codegen import get_host_cpu_features


class BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


def processor_has(feature: str) -> bool:
    """Whether numba compiles for an extension of x86, by LLVM's name for it."""
    told = config.CPU_FEATURES
    features = get_host_cpu_features() if told is None else told
    return f"+{feature}" in features.split(",")


def has_bfloat16() -> bool:
    """Whether it rounds to bfloat16, and multiplies pairs of such numbers, by itself."""
    return processor_has("avx512bf16")
