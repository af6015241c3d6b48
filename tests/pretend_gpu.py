"""A device that pretends to be a GPU: the memory of its tensors is the CPU's, but they refuse what
a GPU's refuse, and what a GPU would be asked to do is counted.

    with on_pretend_gpu() as gpu:
        model = ...(device=gpu.device)     computes real numbers, by the code paths of GPUs
        gpu.counts                         Counts(launches=…, copies=…, waits=…)

copies     of the host's memory to the device, each of which waits for its stream where the memory
           is not pinned
waits      the host needs a number of the device: it waits until all that was launched is done
launches   operations that write memory of the device, whatever they cost

What is `recorded` is done again as a CUDA graph is: by one launch, in the same memory, with what
lies there by then; a copy or a wait in it is an error. Kernels in Triton are launched
`with_kernels`, by its interpreter.

Mixing its tensors with the CPU's, `numpy()` and addresses are errors. What is not pretended:
streams, pinned memory, limits of memory; what is taken of it is counted in `memory`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from radixlm.kernels import gpu_launch
from radixlm.kernels.gpu_launch import Launch
from radixlm.memory.transfers import Transfers

NAME = "pretended"
# Operations whose result the host, or the next allocation, waits for.
_WAITING = frozenset(
    ("_local_scalar_dense", "bincount", "equal", "is_nonzero", "item", "masked_select", "nonzero")
)
# These take a list of places that lies on the host, and copy it.
_INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_"))
_CONVERTING = ("to", "_to_copy")
_FREE = frozenset(("detach_", "empty", "empty_like", "empty_strided", "new_empty"))


@dataclass
class Counts:
    """What a GPU was asked to do. largest: numbers of the largest tensor that was made."""

    launches: int = 0
    copies: int = 0
    waits: int = 0
    largest: int = 0


class Memory:
    """Bytes of the device that tensors have, and the most that they ever had."""

    def __init__(self) -> None:
        self.nbytes = self.most = 0
        self._users: dict[int, int] = {}

    def take(self, tensor: PretendTensor) -> None:
        """A tensor has memory, its own or that of others, for as long as it is there."""
        storage = tensor.held.untyped_storage()
        at, nbytes = storage.data_ptr(), storage.nbytes()
        self._users[at] = self._users.get(at, 0) + 1
        self.nbytes += nbytes * (self._users[at] == 1)
        self.most = max(self.most, self.nbytes)
        weakref.finalize(tensor, self._give_back, at, nbytes).atexit = False

    def _give_back(self, at: int, nbytes: int) -> None:
        self._users[at] -= 1
        self.nbytes -= nbytes * (self._users[at] == 0)


class PretendTensor(Tensor):
    """Memory of the device. held: where it really lies."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> PretendTensor:
        with torch.inference_mode(False):  # those made in that mode have no views outside of it
            made = Tensor._make_wrapper_subclass(
                cls,
                held.size(),
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                device=device,
            )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func} of a pretended GPU's tensor, outside of on_pretend_gpu()")

    def __repr__(self) -> str:
        return f"PretendTensor({tuple(self.shape)}, {self.dtype})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *_: object, **__: object) -> Any:
        raise TypeError("numpy() of a GPU's tensor")

    def data_ptr(self) -> int:
        raise TypeError("the address of a GPU's tensor, which no code of the CPU can use")


class PretendGpu(TorchDispatchMode):
    """While it is entered, the device is there."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.counts, self.memory = device, Counts(), Memory()
        self._recorded: list[tuple[Callable[[], Any], list[Tensor]]] | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's compiler would be imported, which takes seconds."""
        return False

    def __enter__(self) -> PretendGpu:
        # Else torch.tensor(..., device=...) makes the tensor where no mode sees it.
        self._lifts = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(self._lifts)

    def count(self) -> Counts:
        """What was counted since the last call."""
        made, self.counts = self.counts, Counts()
        return made

    def recorded(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """A `Record`."""
        self._recorded, before = [], replace(self.counts)
        try:
            made, calls = work(), self._recorded
        finally:
            self._recorded = None
        if (before.copies, before.waits) != (self.counts.copies, self.counts.waits):
            raise RuntimeError("a copy to the host or from it, where calls are recorded")

        def again() -> Tensor:
            self.counts.launches += 1
            for call, results in calls:
                for old, new in zip(results, _tensors(call()), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)
            return made

        return again

    def launch(self, kernel: Callable[..., object], given: Sequence[Any]) -> None:
        """Have a kernel of Triton's work on the memory of what it is given."""
        work = functools.partial(kernel, *map(self._on_cpu, given))
        self.counts.launches += 1
        work()
        if self._recorded is not None:
            self._recorded.append((work, []))

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        flat, form = pytree.tree_flatten((args, kwargs or {}))
        ours = [value for value in flat if isinstance(value, PretendTensor)]
        if not ours and not any(self._is_here(value) for value in flat):
            return func(*args, **(kwargs or {}))
        held = [self._on_cpu(value) for value in flat]
        held_args, held_kwargs = pytree.tree_unflatten(held, form)
        name = func.overloadpacket.__name__
        if name in _CONVERTING:
            made = func(*held_args, **held_kwargs)
            converted = self._converted(flat, made)
            self._note(functools.partial(func, *held_args, **held_kwargs), converted)
            return converted
        self._refuse_mixing(name, flat, ours)
        if name in _WAITING:
            self.counts.waits += 1
        made = func(*held_args, **held_kwargs)
        if name == "copy_" and len(ours) == 1:  # across
            into_ours = flat[0] is ours[0]
            self.counts.copies += into_ours
            self.counts.waits += not into_ours
            return flat[0]
        wrapped = self._wrapped(name, made, ours)
        if name not in _FREE:
            self._note(functools.partial(func, *held_args, **held_kwargs), wrapped)
        return wrapped

    def _note(self, call: Callable[[], Any], made: Any) -> None:
        """Keep a call, while there is recording, and where its results are to be."""
        if self._recorded is not None:
            held = [each.held for each in _tensors(made) if isinstance(each, PretendTensor)]
            self._recorded.append((call, held))

    def _is_here(self, value: object) -> bool:
        return isinstance(value, torch.device) and value.type == NAME

    def _on_cpu(self, value: Any) -> Any:
        if isinstance(value, PretendTensor):
            return value.held
        return torch.device("cpu") if self._is_here(value) else value

    def _converted(self, flat: Sequence[Any], made: Tensor) -> Tensor:
        """What `to` gives: another type, another place, or the tensor itself. flat: its arguments,
        first the tensor, then what it is to be like: a device, another tensor, or neither.
        """
        source, *others = flat
        from_here = isinstance(source, PretendTensor)
        devices = [x if isinstance(x, torch.device) else x.device for x in others if _placed(x)]
        here = self._is_here(devices[0]) if devices else from_here
        if made is (source.held if from_here else source):
            if from_here and here:
                return source
            made = made.clone()
        self.counts.launches += from_here and here
        self.counts.copies += here and not from_here
        self.counts.waits += from_here and not here
        return self._new(made) if here else made

    def _refuse_mixing(self, name: str, flat: Sequence[Any], ours: Sequence[PretendTensor]) -> None:
        """A GPU takes numbers from the host, and lists of places; nothing else."""
        theirs = [
            value
            for value in flat
            if isinstance(value, Tensor) and not isinstance(value, PretendTensor) and value.dim()
        ]
        if not ours or not theirs:
            return
        if name in _INDEXING:
            self.counts.copies += len(theirs)
        elif name != "copy_":
            shapes = [tuple(value.shape) for value in theirs]
            raise RuntimeError(f"{name}: tensors of shapes {shapes} are on the CPU, others not")

    def _wrapped(self, name: str, made: Any, ours: Sequence[PretendTensor]) -> Any:
        """What an operation gives: its arguments where it gives these, views of them, or new."""
        known = {id(each.held): each for each in ours}
        memory = {each.held.untyped_storage().data_ptr() for each in ours}
        results = [value for value in pytree.tree_leaves(made) if isinstance(value, Tensor)]
        new = any(value.untyped_storage().data_ptr() not in memory for value in results)
        if (new or name.endswith("_")) and name not in _FREE:
            self.counts.launches += 1

        def wrap(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return known[id(value)] if id(value) in known else self._new(value)

        return pytree.tree_map(wrap, made)

    def _new(self, held: Tensor) -> PretendTensor:
        self.counts.largest = max(self.counts.largest, held.numel())
        made = PretendTensor(held, self.device)
        self.memory.take(made)
        return made


def _tensors(made: Any) -> list[Tensor]:
    return [value for value in pytree.tree_leaves(made) if isinstance(value, Tensor)]


def _placed(value: object) -> bool:
    return isinstance(value, torch.device | Tensor)


@functools.cache
def _pretended_device() -> torch.device:
    """Registered with torch once in a process; it has room for one such device."""
    _setup_privateuseone_for_python_backend(NAME)
    return torch.device(NAME, 0)


@contextmanager
def on_pretend_gpu() -> Iterator[PretendGpu]:
    """Where cuDNN's attention was switched off, as for a GPU, it is put back. Threads that copy
    beside it are on it, too; what they ask for is not counted.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    copies, device = Transfers.run, _pretended_device()

    def run(thread: Transfers[Any]) -> None:
        with PretendGpu(device):
            copies(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transfers, "run", run)
        try:
            with PretendGpu(device) as gpu:
                yield gpu
        finally:
            torch.backends.cuda.enable_cudnn_sdp(before)


def with_kernels(gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the device have kernels in Triton, as long as a test runs. TRITON_INTERPRET has
    to be set before anything imports Triton."""

    def launched(
        self: Launch,
        _key: object,
        grid: tuple[int, ...],
        given: Sequence[Any],
        constants: Any,
        **options: int,
    ) -> None:
        kernel = functools.partial(self._kernel[grid], **constants, **options)
        gpu.launch(kernel, given)

    monkeypatch.setattr(gpu_launch, "DEVICES", ("cuda", NAME))
    monkeypatch.setattr(Launch, "__call__", launched)
