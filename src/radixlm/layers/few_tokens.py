"""Steps of few tokens: the calls of all layers in one go, see `kernels.chain`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from radixlm.kernels.chain import Chain
from radixlm.kernels.openmp import Worker, team
from radixlm.products.compiled import TensorOptions

# With more of them products take so long that starting them is nothing.
MOST_TOKENS = 64
# Each has the arguments of all calls of a step: 40 KB with 30 layers.
_MOST_CHAINS = 128


class StepBuffers(NamedTuple):
    """The memory for what a step computes, (tokens, size of it) each; None: new memory. All layers,
    one after the other, use the same.
    """

    hidden: Tensor | None = None
    rotation: Tensor | None = None
    normed: Tensor | None = None
    qkv: Tensor | None = None
    answers: Tensor | None = None
    gated: Tensor | None = None
    part: Tensor | None = None


ANYWHERE = StepBuffers()


class Attention(Protocol):
    """A step's attention: its new tokens, and the workers of a layer in the order in which they are
    called. answers: memory for its results.
    """

    answers: Tensor | None

    @property
    def tokens(self) -> int: ...

    @property
    def workers(self) -> Sequence[Worker]: ...

    def planned(self, worker: Worker, /) -> Collection[str]:
        """The arguments of one of them that are the same in all layers."""


class FewTokens:
    """The layers of steps of up to MOST_TOKENS tokens, of a model whose layers are nothing but
    calls of workers.

    A step like an earlier one (tokens, threads, kinds of reads) makes that one's calls again;
    others are computed as always, in the same places, and their calls are recorded.
    """

    def __init__(self, sizes: Sequence[int], options: TensorOptions) -> None:
        """sizes: of a token in each of the `StepBuffers`."""
        self._places = [options.empty(MOST_TOKENS, size) for size in sizes]
        self._chains: dict[tuple[object, ...], Chain] = {}

    def places(self, tokens: int) -> StepBuffers:
        return StepBuffers(*(place[:tokens] for place in self._places))

    def run(
        self,
        attend: Attention,
        at: StepBuffers,
        through: Callable[[], Tensor | None],
        chains: dict[tuple[object, ...], Chain] | None = None,
    ) -> Tensor | None:
        """Run `through`, or its recorded calls, over all layers, in these places. chains: of steps
        that make other calls than usual, but all of them the same; its own are of the usual ones.
        """
        chains = self._chains if chains is None else chains
        workers = attend.workers
        key = (attend.tokens, team().size, *(worker.code for worker in workers))
        chain = chains.get(key)
        if chain is not None:
            chain(workers)
            return at.part
        attend.answers = at.answers
        with team().recorded() as made:
            part = through()
        if len(chains) >= _MOST_CHAINS:
            del chains[next(iter(chains))]
        chains[key] = Chain(made, [(each, attend.planned(each)) for each in workers])
        return part
