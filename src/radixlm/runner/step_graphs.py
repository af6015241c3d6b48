"""Steps of few tokens on a GPU, recorded once for each number of them: one launch each.

tokens, positions, slots, reads    what a step puts, with room for the most that one may have
fixed memory                       where recorded kernels read it: the same place each time
a recorded step                    everything from the embedding to the logits
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixlm.kernels.gpu_launch import largest_head
from radixlm.memory.pools import KVPool
from radixlm.memory.staging import NoPlaceError, Sending
from radixlm.models.decoder import CausalLM

_logger = logging.getLogger(__name__)
# Takes work, and gives what does it again where it was done, without its host's part.
Record: TypeAlias = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@runtime_checkable
class RecordableBackend(Protocol):
    """A backend whose calls are the same in all steps whose numbers lie in a `FixedMemory`."""

    def numbers(self, tokens: int) -> int:
        """How many int64 a step puts at most."""


class FixedMemory(Sending):
    """Memory of the device in which a step's numbers, int64, lie where those of the last one lay.

    tokens: see `Sending`.
    """

    def __init__(self, tokens: int, numbers: int, staging: Sending) -> None:
        """numbers: of all that is put, with room. staging: by which they are sent."""
        super().__init__(staging.device)
        self.tokens, self._staging = tokens, staging
        self._there = torch.zeros(numbers, dtype=torch.int64, device=staging.device)
        self._here = np.zeros(numbers, dtype=np.int64)
        self._used = 0

    def begin(self) -> None:
        """See `Sending`."""
        self._used = 0

    def put(self, numbers: npt.NDArray[Any], room: int = 0, fill: int = 0) -> Tensor:
        """See `Sending`. Raises NoPlaceError where there are more numbers than room."""
        first, size = self._used, numbers.size
        if size > room:
            raise NoPlaceError(f"{size} numbers, where there is room for {room}")
        self._here[first : first + size] = numbers
        self._here[first + size : first + room] = fill
        self._used += room + room % 2  # kernels know that numbers begin at multiples of 16 bytes
        return self._there[first : first + room]

    def after(self, work: Callable[[], object]) -> None:
        """See `Sending`."""
        self._staging.after(work)

    def send(self) -> None:
        """Have the numbers sent with the rest of the step."""
        sent = self._staging.put(self._here[: self._used])
        self._staging.after(partial(self._there[: self._used].copy_, sent))


class StepGraphs:
    """Recorded steps, by the number of tokens that they have room for.

    backend: its part of what a step puts. Memory for a step is taken, and it is recorded, when the
    first one of its size comes, which takes twice as long.
    """

    def __init__(self, backend: RecordableBackend, staging: Sending, record: Record) -> None:
        self._backend, self._staging, self._record = backend, staging, record
        self._memory: dict[int, FixedMemory | None] = {}
        self._steps: dict[int, Callable[[], Tensor]] = {}

    def memory(self, tokens: int) -> FixedMemory | None:
        """The memory for a step with these; None: they are too many, or could not be recorded."""
        size = next((size for size in _SIZES if size >= tokens), 0)
        if size and size not in self._memory:
            # Tokens, positions, slots, rows of logits; one more each, for places that are even.
            numbers = 4 * (size + 1) + self._backend.numbers(size)
            self._memory[size] = FixedMemory(size, numbers, self._staging)
        return self._memory.get(size)

    def run(self, memory: FixedMemory, work: Callable[[], Tensor]) -> Tensor:
        """Do the work with what lies in this memory, and nothing else that changes; its result is
        overwritten by the next step.
        """
        recorded = self._steps.get(memory.tokens)
        if recorded is not None:
            return recorded()
        made = work()  # which compiles kernels, too
        try:
            self._steps[memory.tokens] = self._record(work)
        except torch.OutOfMemoryError:
            _logger.warning("Steps of %d tokens are not recorded: no memory is left", memory.tokens)
            self._memory[memory.tokens] = None
        return made


class CudaRecorder:
    """A `Record` by CUDA graphs. They share memory: one step is done when the next begins."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        graph = torch.cuda.CUDAGraph()
        # Copies of the host tier, of other threads, go on meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            made = work()

        def again() -> Tensor:
            graph.replay()
            return made

        return again


def why_eager(model: object, pool: KVPool) -> tuple[str, ...]:
    """Name what keeps a model's steps from being recorded; empty: nothing does."""
    if not isinstance(model, CausalLM):
        return ("transformers' modules",)
    heads = {shape[:2] for shape in pool.shapes if shape.n_kv_heads}
    largest = largest_head(pool.dtype)
    ours = {  # of attention, which is torch's there
        "an index": model.config.traits.indexer is not None,
        "heads of several shapes": len(heads) > 1,
        f"heads of more than {largest}": not pool.latent
        and any(size > largest for _, size in heads),
        "no attention": not heads,
    }
    return (*model.on_host, *(name for name, there in ours.items() if there))


def record_for(model: object, pool: KVPool) -> Record | None:
    """Make what records this model's steps where its pool is; None: they can not be."""
    if pool.device.type != "cuda":
        return None
    if reasons := why_eager(model, pool):
        _logger.info("Steps are not recorded as CUDA graphs, for: %s", ", ".join(reasons))
        return None
    return CudaRecorder()
