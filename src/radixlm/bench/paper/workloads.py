"""The workloads by name, with the numbers of the paper's shapes. Sizes in tokens."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from radixlm.bench.paper.batches import (
    MultipleChoice,
    OneAtATime,
    RetrievedDocuments,
    SharedPrompt,
)
from radixlm.bench.paper.chains import Chats, Judge, SkeletonOfThought, TreeOfThought
from radixlm.bench.paper.programs import Draw, Program, Shape
from radixlm.bench.paper.tree_search import TreeSearch


@dataclass(frozen=True, slots=True)
class Workload:
    """A shape with its name.

    pool_share: KV pool over distinct tokens, whatever is asked for; None leaves it to the caller.
    unmeasured: so many of the first programs run, one after the other, before the measurement.
    """

    name: str
    shape: Shape
    pool_share: float | None = None
    unmeasured: int = 0

    def programs(self, vocab_size: int, *, seed: int, scale: float) -> list[Program]:
        """Fresh programs, to be run once. Equal arguments give equal prompts."""
        return self.shape.programs(self.draw(vocab_size, seed), scale)

    def draw(self, vocabulary: int | Sequence[int], seed: int) -> Draw:
        """What its content is drawn from."""
        return Draw(vocabulary, seed, zlib.crc32(self.name.encode()))


_ALL = (
    Workload("mmlu-few-shot", SharedPrompt(requests=64, shared=600, own=120, out=2)),
    Workload(
        "hellaswag-few-shot",
        MultipleChoice(questions=24, shared=1_800, own=60, endings=4, ending=20),
    ),
    Workload("react-agent", Chats(chats=8, turns=6, shared=900, own=120, out=60)),
    Workload("generative-agents", SharedPrompt(requests=32, shared=200, own=300, out=40)),
    Workload(
        "tree-of-thought",
        TreeOfThought(root=600, branching=3, depth=3, out=50, judge=30, verdict=4),
    ),
    Workload(
        "tree-search", TreeSearch(expansions=200, trunk=1_500, own=60, out=30), pool_share=0.25
    ),
    Workload(
        "skeleton-of-thought",
        SkeletonOfThought(questions=8, own=100, outline=80, points=6, out=60),
    ),
    Workload("llm-judge", Judge(articles=16, shared=200, own=700, judgements=4, out=60)),
    # Only the shape of the traffic: no grammar holds the answers to JSON.
    Workload("json-decoding", SharedPrompt(requests=32, shared=300, own=60, out=120)),
    Workload("multi-turn-short", Chats(chats=16, turns=8, own=128, out=8)),
    Workload("multi-turn-long", Chats(chats=16, turns=4, own=128, out=128)),
    Workload(
        "rag",
        RetrievedDocuments(
            questions=32, shared=300, documents=12, document=200, retrieved=3, own=40, out=40
        ),
    ),
    Workload("batch-same-prompt", SharedPrompt(requests=100, shared=2_000, own=100, out=16)),
    Workload("no-sharing", SharedPrompt(requests=32, shared=0, own=1_000, out=16)),
    # Not the paper's: the time to the first token once the prefix is cached.
    Workload("warm-prefix", OneAtATime(requests=16, shared=1_000, own=32, out=8), unmeasured=1),
)
WORKLOADS: Mapping[str, Workload] = MappingProxyType({item.name: item for item in _ALL})
