"""Numbers that modules ask of tensors without memory, while a model says its shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class NoNumbers(TorchFunctionMode):
    """Functions of torch for tensors on the device meta, as experts use them: nothing is found
    that is not 0, and all rows go to the first expert.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        first = args[0] if args else None
        if not (isinstance(first, Tensor) and first.is_meta):
            return func(*args, **(kwargs or {}))
        if func.__name__ == "nonzero":
            return first.new_empty(0, first.dim(), dtype=torch.int64)
        if func.__name__ == "__bool__":
            return False
        if func.__name__ == "tolist":
            return torch.zeros(first.shape, dtype=first.dtype).tolist()
        if func.__name__ == "split" and isinstance(args[1], list):
            (size, *sizes), dim = args[1], (kwargs or {}).get("dim", 0)
            size = first.shape[dim] - sum(sizes)
            args = first, [size, *sizes], *args[2:]
        return func(*args, **(kwargs or {}))
