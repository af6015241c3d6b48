"""The model folder that a measurement runs on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from radixlm.bench.checkpoints import write_random_checkpoint

Dtype = Literal["bfloat16", "float32"]


@contextmanager
def model_folder(model: str | None, shape: str, dtype: Dtype) -> Iterator[str]:
    """The folder given, or a random checkpoint that lives as long as the measurement."""
    if model is not None:
        yield model
        return
    with tempfile.TemporaryDirectory(prefix="radixlm-bench-") as scratch:
        folder = Path(scratch) / shape
        write_random_checkpoint(shape, folder, dtype=dtype)
        yield str(folder)
