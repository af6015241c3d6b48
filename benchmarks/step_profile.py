"""Where a step's time goes, by what the product's own functions are for.

Every public function and method of the tensor floors is wrapped in a timer that counts its own
time, without what it calls, and without what the timers around that take: a step of a small model
has hundreds. Names are then gathered under headings; those that no rule knows stand under their
module's name, so that nothing is lost when code moves.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from radixlm.bench.machine import clock
from radixlm.layers import few_tokens
from radixlm.products import gemm_choice, panel_products

_FLOORS = tuple(
    f"radixlm.{floor}"
    for floor in ("memory", "attention", "products", "layers", "models", "runner")
)
_TIMED_CALLS = 20_000
_LINEAR = "layers.linear.Linear.__call__"
_BY_FIRST_PART = {
    "q_proj": "qkv",
    "o_proj": "o",
    "gate_proj": "gate-up",
    "down_proj": "down",
    "lm_head": "head",
}
# The first that a function's name begins with.
_HEADINGS = (
    ("runner.model_runner.ModelRunner.execute", "rest"),
    ("runner.model_runner.ForwardBatch", "batch"),
    ("runner", "sampling"),
    ("memory.pools.ReqToTokenPool", "batch"),
    ("attention.plan", "plan"),
    ("attention.backends.CpuBackend.prepare", "plan"),
    ("attention.torch_backend.TorchBackend.prepare", "plan"),
    ("attention.torch_backend.TorchAttention.__init__", "plan"),
    ("attention.backends.CpuAttention.__init__", "plan"),
    ("attention.reads", "plan"),
    ("attention.torch_backend.Sources.__init__", "plan"),
    ("attention.torch_backend.grouped", "plan"),
    ("attention.torch_backend.view_of", "plan"),
    ("attention", "attention"),
    ("products.compiled.Gate", "activation"),
    ("layers.mlps", "activation"),
    ("layers.linear.RMSNorm", "norms"),
    ("layers.linear.QueryKeyNorm", "norms"),
    ("layers.rotary", "rotary"),
    ("layers.linear.TokenEmbedding", "embedding"),
    ("models.decoder", "loop over layers"),
)


class StepProfile:
    """Seconds of each heading, without what was called from there."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner: list[float] = []
        self._of_a_timer = 0.0
        self._of_a_timer = self._cost_of_a_timer()

    def _cost_of_a_timer(self) -> float:
        """Seconds that a timed call costs its caller, beside those that it counts."""

        def nothing() -> None: ...

        def many() -> None:
            for _ in range(_TIMED_CALLS):
                inner()

        inner, outer, plain = self._timed(nothing), self._timed(many), clock()
        for _ in range(_TIMED_CALLS):
            nothing()
        plain = clock() - plain
        outer()
        least = self.seconds.pop(heading_of(many) or "") - plain
        self.seconds.clear()
        return least / _TIMED_CALLS

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Timers are in place until the end of the block. Layers are computed call by call: those
        that `FewTokens` makes in one go have no names.
        """
        undo: list[tuple[Any, str, Any]] = [(few_tokens.FewTokens, "run", few_tokens.FewTokens.run)]
        setattr(few_tokens.FewTokens, "run", _call_by_call)  # noqa: B010
        wrapped: dict[Any, Any] = {}
        modules = [m for name, m in list(sys.modules.items()) if name.startswith(_FLOORS)]
        for callee in (
            few_tokens,
            panel_products,
            gemm_choice,
        ):  # what they do counts to what calls them
            modules.remove(callee)
        for module in modules:
            for owner, name, member in list(_members(module)):
                function = member.__func__ if isinstance(member, classmethod) else member
                if function not in wrapped:
                    wrapped[function] = self._timed(function)
                made = wrapped[function]
                setattr(owner, name, classmethod(made) if function is not member else made)
                undo.append((owner, name, member))
        try:
            yield
        finally:
            for owner, name, member in undo:
                setattr(owner, name, member)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        heading = heading_of(function)

        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            self._inner.append(0.0)
            started = clock()
            try:
                return function(*args, **options)
            finally:
                seconds = clock() - started
                self.seconds[heading or _linear(args[0])] += seconds - self._inner.pop()
                if self._inner:
                    self._inner[-1] += seconds + self._of_a_timer

        return timed


def heading_of(function: Callable[..., Any]) -> str | None:
    """None for a Linear's call: which one it is, its parts say."""
    path = f"{function.__module__}.{function.__qualname__}".removeprefix("radixlm.")
    if path == _LINEAR:
        return None
    found = (heading for start, heading in _HEADINGS if path.startswith(start))
    return next(found, function.__module__.removeprefix("radixlm."))


def _call_by_call(
    _few: object, attend: Any, at: Any, through: Callable[[], Any], _chains: object = None
) -> Any:
    attend.answers = at.answers
    return through()


def _linear(linear: Any) -> str:
    first: str = next(iter(linear.parts), "lm_head")  # a tied one has no weight of its own
    return _BY_FIRST_PART.get(first, first)


def _members(module: ModuleType) -> Iterator[tuple[Any, str, Any]]:
    """(where it is found, name, function): public functions, wherever they were imported, and the
    public methods of the module's own classes with `__call__` and `__init__`.
    """
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__.startswith(_FLOORS):
            if not value.__name__.startswith("_"):
                yield module, name, value
        elif inspect.isclass(value) and value.__module__ == module.__name__:
            for method, member in vars(value).items():
                public = not method.startswith("_") or method in ("__call__", "__init__")
                if public and (inspect.isfunction(member) or isinstance(member, classmethod)):
                    yield value, method, member
