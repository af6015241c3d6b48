"""A node's text: the beginning of what its tokens spell, and no more of them looked up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import repeat

import numpy as np
import pytest

from radixlm.core.batch import Extent
from radixlm.core.reports import NodeView
from radixlm.server.pages.tree_nodes import NodeWriter
from tests.engines import byte_tokenizer

NO_SLOTS = np.array([], dtype=np.int32)


class Counted:
    """A tokenizer of bytes that tells how many it has spelled."""

    def __init__(self) -> None:
        self.count = 0

    def spelled(self, ids: Iterable[int]) -> bytes:
        found = list(ids)
        self.count += len(found)
        return byte_tokenizer().spelled(found)

    def token_bytes(self, token: int) -> bytes:
        return self.spelled([token])


def node_of(data: bytes) -> NodeView:
    spelling = [byte_tokenizer().token_bytes(token) for token in range(256)]
    ids = [spelling.index(bytes([byte])) for byte in data]
    edge = np.array(ids, dtype=np.int32).tobytes()
    return NodeView(1, 0, None, 0, edge, len(ids), 0, 0, 0, 0, 0, NO_SLOTS)


@pytest.mark.parametrize(
    ("resident", "stored", "locks", "state"),
    [
        (4, (0, 0), 0, "cached"),
        (4, (2, 4), 0, "cached"),
        (2, (0, 4), 1, "running"),
        (0, (2, 4), 0, "host"),
        (0, (0, 2), 0, "disk"),
        (0, (0, 0), 0, "ghost"),
    ],
)
def test_where_a_node_s_tokens_are(resident, stored, locks, state):
    edge = np.arange(4, dtype=np.int32).tobytes()
    view = NodeView(1, 0, None, 0, edge, resident, locks, 0, 0, 0, 0, NO_SLOTS, stored=stored)
    told = NodeWriter(byte_tokenizer()).node(view)
    assert (told["state"], told["resident"]) == (state, resident)
    assert (told["on_host"], told["on_disk"]) == stored
    assert "tombstones" not in told


def test_a_checkpoint_is_told_with_its_bytes():
    writer = NodeWriter(byte_tokenizer(), state_bytes=4_096)
    view = node_of(b"abcd")
    assert writer.node(replace(view, checkpoint=True))["checkpoint_bytes"] == 4_096
    assert "checkpoint_bytes" not in writer.node(view)


def test_tombstones_are_told_where_there_are_some():
    view = node_of(b"abcd")
    view = replace(view, tombstones=(Extent(0, 2), Extent(3, 4)))
    assert NodeWriter(byte_tokenizer()).node(view)["tombstones"] == [[0, 2], [3, 4]]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        b"exactly ten",
        b"exactly ten"[:10],
        "ünïcödé, and more of it".encode(),
        "\N{GRINNING FACE}".encode() * 10,
        "\N{GRINNING FACE}".encode() * 11,
        b"ends within " + "é".encode()[:1],
        b"123456789" + "é".encode()[:1],
        b"1234567" + "\N{GRINNING FACE}".encode()[:3],
        b"\xff" * 9 + "é".encode(),
        b"\xe2\x82" * 30,
    ],
)
def test_the_beginning_of_the_text(data):
    node = NodeWriter(byte_tokenizer(), characters=10).node(node_of(data))
    text = data.decode(errors="replace")
    assert (node["text"], node["cut"]) == (text[:10], len(text) > 10)
    assert node["tokens"] == len(data)


def test_no_more_is_spelled_than_is_shown():
    counted = Counted()
    writer = NodeWriter(counted, characters=10)
    assert writer.node(node_of(bytes(repeat(ord("x"), 10_000))))["text"] == 10 * "x"
    assert counted.count < 20
