"""Types and formats that an engine computes with: answers do not depend on the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radixlm import Engine, SamplingParams
from radixlm.testing.reference import make_checkpoint

PROMPTS = [[*range(2, 40)], [*range(2, 30), 50, 51], [7, 8, 9]]
FORMATS: list[dict[str, Any]] = [
    {"quantization": "int8", "dtype": "float32"},
    {"quantization": "int8", "dtype": "bfloat16", "deterministic": True},
    {"quantization": "int4", "dtype": "float32"},
    {"quantization": "int4", "dtype": "bfloat16", "deterministic": True},
    {"quantization": "fp8", "dtype": "bfloat16", "deterministic": True},
]


def answers(folder: Path, **flags: Any) -> list[list[int]]:
    """Of the prompts, twice."""
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    with Engine(str(folder), kv_tokens=1_000, **flags) as engine:
        return [list(o.token_ids) for _ in range(2) for o in engine.generate(PROMPTS, params)]


@pytest.mark.parametrize("architecture", ["llama", pytest.param("qwen3", marks=pytest.mark.slow)])
@pytest.mark.parametrize("flags", FORMATS, ids=lambda flags: "-".join(map(str, flags.values())))
def test_the_cache_changes_nothing(
    tmp_path: Path, flags: dict[str, Any], architecture: str
) -> None:
    folder = make_checkpoint(tmp_path, architecture)
    cold = answers(folder, disable_radix_cache=True, **flags)
    assert cold[:3] == cold[3:]
    assert answers(folder, **flags) == cold
    assert answers(folder, chunked_prefill_size=16, max_running_requests=1, **flags) == cold


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_float16_on_request(tmp_path: Path, quantization: str | None) -> None:
    """Where the processor has none of it, bfloat16, which is coarser. Bytes are for other types'
    rows, so weights are taken out of their codes there.
    """
    folder = make_checkpoint(tmp_path, "llama")
    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, logprobs=5)
    found = []
    for dtype in ("float16", "float32"):
        flags = {"dtype": dtype, "quantization": quantization}
        with Engine(str(folder), kv_tokens=1_000, **flags) as engine:
            [output] = engine.generate(PROMPTS[:1], params)
        assert output.logprobs is not None
        found.append(output.logprobs[0].top[0][1])
    assert found[0] == pytest.approx(found[1], abs=0.1 if quantization is None else 0.3)
