"""The changes of a replica's own tree that a router must know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from radixlm.core.keys import Key
from radixlm.core.reports import NodeView
from radixlm.core.request import Namespace

_TOKEN_BYTES = 4


class ResidentPrefix(NamedTuple):
    """All tokens of `key` are resident."""

    namespace: Namespace
    key: Key


class Dropped(NamedTuple):
    """A cut: of what begins with `key` only the first `kept` tokens are resident."""

    namespace: Namespace
    key: Key
    kept: int


Change = ResidentPrefix | Dropped


@dataclass(frozen=True, slots=True)
class _LedgerNode:
    """resident: the bytes of its edge that are there."""

    parent_id: int | None
    namespace: Namespace
    resident: bytes
    whole: bool

    @property
    def first(self) -> bytes:
        return self.resident[:_TOKEN_BYTES]


class TreeMirror:
    """A mirror of a replica's tree, by its nodes' ids; splits and merges change nothing."""

    def __init__(self) -> None:
        self._nodes: dict[int, _LedgerNode] = {}
        self._children: dict[int, dict[bytes, int]] = {}
        self._roots: dict[Namespace, int] = {}

    def replace(self, views: Sequence[NodeView]) -> list[Change]:
        """All nodes there are, parents first; what to tell who knows nothing."""
        self._nodes, self._children, self._roots = {}, {}, {}
        return self.update((), views)

    def update(self, removed: Iterable[int], views: Sequence[NodeView]) -> list[Change]:
        """Translate a change. Drops come first, each with where it ended before."""
        stale = {*removed, *(view.id for view in views)} & self._nodes.keys()
        before = [(self._nodes[name].namespace, self._path(name)) for name in stale]
        for name in stale:
            self._take_out(name)
        for view in views:
            self._put(view)
        changes: list[Change] = []
        for namespace, path in before:
            kept = self._resident(namespace, path)
            if kept < len(path):
                changes.append(Dropped(namespace, _key(path), kept // _TOKEN_BYTES))
        known = {(namespace, path) for namespace, path in before}
        for view in views:
            node = self._nodes[view.id]
            if node.resident and not self._children.get(view.id):  # which would tell this one too
                path = self._path(view.id)
                if (node.namespace, path) not in known:
                    changes.append(ResidentPrefix(node.namespace, _key(path)))
        return changes

    def held(self, namespace: Namespace, key: Key) -> int:
        """How many of a prompt's tokens are resident, from the first on. O(these)."""
        return self._resident(namespace, key.tobytes()) // _TOKEN_BYTES

    def _put(self, view: NodeView) -> None:
        namespace = view.namespace if isinstance(view.namespace, Namespace) else Namespace()
        edge = view.edge[: view.resident * _TOKEN_BYTES]
        node = _LedgerNode(view.parent_id, namespace, edge, len(edge) == len(view.edge))
        self._nodes[view.id] = node
        if view.parent_id is None:
            self._roots[namespace] = view.id
        elif edge:
            self._children.setdefault(view.parent_id, {})[node.first] = view.id

    def _take_out(self, name: int) -> None:
        node = self._nodes.pop(name)
        if node.parent_id is None:
            if self._roots.get(node.namespace) == name:
                del self._roots[node.namespace]
            return
        siblings = self._children.get(node.parent_id, {})
        if siblings.get(node.first) == name:
            del siblings[node.first]
            if not siblings:
                del self._children[node.parent_id]

    def _path(self, name: int) -> bytes:
        parts = []
        at: int | None = name
        while at is not None:
            node = self._nodes[at]
            parts.append(node.resident)
            at = node.parent_id
        return b"".join(reversed(parts))

    def _resident(self, namespace: Namespace, path: bytes) -> int:
        """How many bytes of a path are there now."""
        name, at = self._roots.get(namespace), 0
        while name is not None and at < len(path):
            name = self._children.get(name, {}).get(path[at : at + _TOKEN_BYTES])
            if name is None:
                break
            node = self._nodes[name]
            end = at + len(node.resident)
            if path[at:end] != node.resident:
                return at + _common(path[at:end], node.resident)
            at = end
            if not node.whole:
                break
        return at


def _key(path: bytes) -> Key:
    return np.frombuffer(path, dtype=np.int32)


def _common(left: bytes, right: bytes) -> int:
    """Bytes of whole tokens that both begin with."""
    size = min(len(left), len(right))
    a, b = _key(left[:size]), _key(right[:size])
    different = np.flatnonzero(a != b)
    return int(different[0]) * _TOKEN_BYTES if different.size else size
