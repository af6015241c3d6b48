"""The model folder that a measurement runs on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import click

from radixlm.testing.checkpoints import SHAPES, write_random_checkpoint

Dtype = Literal["bfloat16", "float32"]
Command = Callable[..., Any]


def shape_option(default: str) -> Callable[[Command], Command]:
    """`--shape`, for commands that take a model folder or make one."""
    return click.option(
        "--shape",
        type=click.Choice(list(SHAPES)),
        default=default,
        show_default=True,
        help="Random model to measure with, when no MODEL folder is given.",
    )


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
