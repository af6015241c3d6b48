"""What a process needs before its first answer."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from radixlm import Engine, SamplingParams

with Engine(kv_tokens=1_000) as engine:
    engine.generate("Once", SamplingParams(max_tokens=2))
print(*{"torch._dynamo", "sympy", "transformers"} & sys.modules.keys())
"""


@pytest.mark.slow
def test_an_engine_starts_without_what_it_does_not_use() -> None:
    """Torch imports its compiler for arithmetic on shapes alone: a third of the time to start."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
