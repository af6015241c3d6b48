"""A server with a disk cache to which things happen, beside one that computes everything: whether
the answers are right, and what is left.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.disk_servers import Model
from benchmarks.peer_client import Reply
from benchmarks.peer_workloads import Ask, Draw
from benchmarks.served import Served

GROUPS, IN_GROUP, SHARED, OWN, OUT = 8, 3, 640, 50, 8
KV_TOKENS = 30_000
GIGABYTES = "0.03"
AT_ONCE = 8
# Of the server that is right.
ALONE = ("--deterministic", "--disable-radix-cache")


@dataclass(slots=True)
class Score:
    """What came of the answers. lost: requests without one."""

    right: int = 0
    wrong: int = 0
    lost: int = 0

    def add(self, replies: Sequence[Reply], expected: Sequence[Reply], asked: int) -> None:
        """expected: of all that were asked, or more."""
        known = {tuple(reply.prompt): reply.token_ids for reply in expected}
        right = sum(reply.token_ids == known[tuple(reply.prompt)] for reply in replies)
        self.right += right
        self.wrong += len(replies) - right
        self.lost += asked - len(replies)


class Lab:
    """The model, a server that computes everything, and the folder of the one under test."""

    def __init__(self, model: Model, right: Served, folder: Path, seed: int) -> None:
        self.model = model
        self.folder = folder
        self.score = Score()
        self._right = right
        self._draw = Draw(model.vocab, seed)

    def fresh(self) -> tuple[list[Ask], list[Reply]]:
        """Groups of prompts with one beginning, the groups' first ones in front; their answers."""
        asks = []
        shared = [self._draw.tokens(SHARED) for _ in range(GROUPS)]
        for _ in range(IN_GROUP):
            asks += [Ask(beginning + self._draw.tokens(OWN), OUT) for beginning in shared]
        return asks, self.model.ask(self._right, asks)

    def flags(self) -> list[str]:
        more = ("--deterministic", "--disk-block-tokens", "32", "--disk-cache-gb", GIGABYTES)
        return self.model.flags(KV_TOKENS, self.folder, *more)

    def check(self, served: Served, asks: Sequence[Ask], expected: Sequence[Reply]) -> list[Reply]:
        replies = self.model.ask_some(served, asks, 1)
        self.score.add(replies, expected, len(asks))
        return replies


def balanced(served: Served, patience: float = 30.0) -> float | None:
    """Seconds until each slot is in one place and none is held, by a request or for a copy; None
    where that is not so in time.
    """
    began = time.monotonic()
    while (waited := time.monotonic() - began) < patience:
        state = served.idle_state(patience)
        parts = [state[f"kv_{name}"] for name in ("free", "private", "locked", "evictable")]
        held = state["kv_private"] or state["kv_locked"] != state["kv_pinned"] or state["leaks"]
        if sum(parts) == state["kv_capacity"] and not held:
            return round(waited, 1)
        time.sleep(0.1)
    return None
