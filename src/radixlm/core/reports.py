"""Reports that people see: the tree, what runs, what changed, and what happened to requests."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

from radixlm.core.batch import Extent
from radixlm.core.keys import Slots
from radixlm.core.moves import NOWHERE, ByPlace
from radixlm.core.request import Namespace

# How many changes may wait for a slow viewer: about three seconds of them.
MAX_WAITING = 32


class Tally(NamedTuple):
    """A histogram at one moment: by_bits[n] values had n binary digits; total is their sum."""

    by_bits: tuple[int, ...]
    total: int

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        pairs = zip_longest(self.by_bits, other.by_bits, fillvalue=0)
        return Tally(tuple(here + there for here, there in pairs), self.total + other.total)


class Exported(NamedTuple):
    """A field's metric: its name, after the prefix, and what it says."""

    kind: Literal["gauge", "counter", "histogram"]
    name: str
    text: str


def gauge(name: str, text: str) -> Any:
    return field(default=0, metadata={"metric": Exported("gauge", name, text)})


def counter(name: str, text: str) -> Any:
    return field(default=0, metadata={"metric": Exported("counter", name, text)})


def histogram(name: str, text: str) -> Any:
    return field(default=Tally((), 0), metadata={"metric": Exported("histogram", name, text)})


def exported(stats: Any) -> Iterator[tuple[Exported, Any]]:
    """The fields of a dataclass that are metrics, with their values."""
    for item in fields(stats):
        if "metric" in item.metadata:
            yield item.metadata["metric"], getattr(stats, item.name)


@dataclass(frozen=True, slots=True)
class TreeQuery:
    """The part of the tree to show.

    max_depth: edges below the top. min_tokens: nodes with fewer in them and below are left out.
    node: only that one and the nodes below it. max_nodes: keep this many, the heaviest by tokens in
    them and below; of very many children only the newest are looked at, twice as many in all.
    within: only namespaces whose cache_salt begins with this. salted: also where it goes on.
    replica: whose tree, where there are several; None: the first one's.
    """

    max_depth: int | None = None
    min_tokens: int = 0
    node: int | None = None
    max_nodes: int | None = None
    within: str | None = None
    salted: bool = True
    replica: str | None = None

    def admits(self, namespace: Hashable) -> bool:
        """Whether a namespace may be seen."""
        salt = namespace.cache_salt if isinstance(namespace, Namespace) else ""
        own = self.within or ""
        return salt.startswith(own) if self.salted else salt == own


@dataclass(slots=True)
class NodeView:
    """One node of a snapshot: a value, not changed once it is made. Sizes in tokens.

    edge: the bytes of the int32 ids of its tokens. stored: how many of them, from the first on, are
    in host memory and on disk, by Place. slots: (resident,) of those that have keys and values.
    last_used: the tree's counter.
    hidden, hidden_tokens: nodes below that were left out, and their tokens. tombstones: runs of the
    resident tokens that have nothing in layers with a window any more. checkpoint: whether a state
    is kept at its end.
    """

    id: int
    parent_id: int | None
    namespace: Hashable
    start: int
    edge: bytes
    resident: int
    lock_ref: int
    pins: int
    hits: int
    priority: int
    last_used: int
    slots: Slots = field(compare=False, repr=False)
    hidden: int = 0
    hidden_tokens: int = 0
    stored: ByPlace = NOWHERE
    tombstones: tuple[Extent, ...] = ()
    checkpoint: bool = False

    @property
    def tokens(self) -> tuple[int, ...]:
        """The edge's token ids. O(length)."""
        return tuple(self.ids)

    @property
    def ids(self) -> memoryview[int]:
        """The same, where they lie."""
        return memoryview(self.edge).cast("i")


@dataclass(frozen=True, slots=True)
class TreeSnapshot:
    """The tree at one version, parents first. path: above a snapshot's one node, root first."""

    version: int
    page_size: int
    nodes: tuple[NodeView, ...]
    uses: int = 0
    path: tuple[NodeView, ...] = ()


@dataclass(frozen=True, slots=True)
class TreeChange:
    """A change from one picture to a later one: `removed` go, then `nodes` come or change, parents
    first.
    """

    version: int
    uses: int
    removed: tuple[int, ...]
    nodes: tuple[NodeView, ...]


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request that runs. node_id: the deepest shown of its path. computed_tokens: with KV."""

    id: str
    node_id: int | None
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Arrived:
    request_id: str
    prompt_tokens: int
    namespace: Hashable


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A request was admitted: it starts at token `start`; `again` after a retraction."""

    request_id: str
    start: int
    prompt_tokens: int
    again: bool
    namespace: Hashable


@dataclass(frozen=True, slots=True)
class Retracted:
    request_id: str
    computed: int
    namespace: Hashable


@dataclass(frozen=True, slots=True)
class Finished:
    request_id: str
    reason: str
    output_tokens: int
    namespace: Hashable


Event = Arrived | Scheduled | Retracted | Finished
EventSink = Callable[[Event], None]
