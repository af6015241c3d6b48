"""How ranks add up and gather what each has computed: torch.distributed, gloo or NCCL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_distributed
from torch import Tensor

# Between two meetings a rank computes a part of a layer: this long at most. That it has died or
# stands still is noticed long before, see `ranks`.
_SECONDS_TO_MEET = 600
# All have loaded their parts when they join.
_SECONDS_TO_JOIN = 60
_LOOPBACK = "127.0.0.1"
_STORE = "ranks"
# Its names are documented, and not all of them are in its types.
dist: Any = torch_distributed


class RankGroup:
    """The ranks of one model, of which this process is one. A group of its own, not torch's default
    one: a process may have several engines.

    calls, nbytes: how often ranks met since they joined, and what this one gave, in bytes.
    """

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size = rank, size
        self.calls = self.nbytes = 0
        self._device = device
        self._group: Any = None

    def join(self, folder: Path) -> None:
        """Returns when all ranks have. folder: private to the user. Raises RuntimeError."""
        store = dist.FileStore(os.fspath(folder / _STORE), self.size)
        store.set_timeout(timedelta(seconds=_SECONDS_TO_JOIN))
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            options = dist.ProcessGroupNCCL.Options()
            self._group = dist.ProcessGroupNCCL(store, self.rank, self.size, options)
            return
        options = dist.ProcessGroupGloo._Options()
        # By default gloo takes whatever address the machine's name has.
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
        options._timeout = timedelta(seconds=_SECONDS_TO_MEET)
        options._threads = 1
        self._group = dist.ProcessGroupGloo(store, self.rank, self.size, options)

    def reduce(self, tensor: Tensor) -> None:
        """The sum of all ranks' tensors, in place. Raises RuntimeError where one is gone."""
        self._counted(tensor)
        self._group.allreduce([tensor]).wait()

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        """See `Split`: (rows, own width) -> (rows, all widths) in rank 0. Raises RuntimeError."""
        if not part.numel():
            return part
        if self.rank:
            self._counted(part)
            self._group.send([part.contiguous()], 0, 0).wait()
            return part
        parts = [part]
        for rank, width in enumerate(widths[1:], 1):
            parts.append(part.new_empty(part.shape[0], width))
            self._group.recv([parts[-1]], rank, 0).wait()
        return torch.cat(parts, 1)

    def abort(self) -> None:
        """Let a call that waits for other ranks fail; from another thread."""
        if self._group is not None and self._device.type == "cuda":
            self._group.abort()

    def _counted(self, tensor: Tensor) -> None:
        self.calls += 1
        self.nbytes += tensor.nbytes
