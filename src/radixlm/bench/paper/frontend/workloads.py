"""Which workloads are written in the frontend language too: AT_ONCE programs of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from radixlm.bench.paper.batches import SharedPrompt
from radixlm.bench.paper.chains import Chats, Judge, SkeletonOfThought, TreeOfThought
from radixlm.bench.paper.frontend import programs
from radixlm.bench.paper.frontend.content import as_text, retold, round_trip_tokens
from radixlm.bench.paper.programs import DrawnShape, Program
from radixlm.bench.paper.tree_search import TreeSearch
from radixlm.bench.paper.workloads import WORKLOADS, Workload
from radixlm.lang.program import Function
from radixlm.text.tokenizer import Tokenizer

AT_ONCE = 32
# What is changed of the shapes. Large trees are cut back, so that so many end in reasonable time.
CHANGES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "mmlu-few-shot": {"requests": AT_ONCE},
        "react-agent": {"chats": AT_ONCE},
        "tree-of-thought": {"trees": AT_ONCE, "depth": 2},
        "tree-search": {"searches": AT_ONCE, "expansions": 16},
        "skeleton-of-thought": {"questions": AT_ONCE},
        "llm-judge": {"articles": AT_ONCE},
        "json-decoding": {"requests": AT_ONCE},
    }
)
_FUNCTIONS: Mapping[type[DrawnShape], Function] = MappingProxyType(
    {
        SharedPrompt: programs.shared_prompt,
        Chats: programs.chat,
        TreeOfThought: programs.tree_of_thought,
        TreeSearch: programs.tree_search,
        SkeletonOfThought: programs.skeleton_of_thought,
        Judge: programs.branch_solve_merge,
    }
)


@dataclass(frozen=True, slots=True)
class Twins:
    """A workload in both forms: its shape's programs on tokens, and `function` on text."""

    workload: Workload
    function: Function
    shape: DrawnShape
    tokens: list[int]
    tokenizer: Tokenizer

    def direct(self, *, seed: int, scale: float) -> list[Program]:
        """Fresh programs that ask the engine themselves."""
        return self.shape.programs(self.workload.draw(self.tokens, seed), scale)

    def calls(self, *, seed: int, scale: float) -> list[dict[str, Any]]:
        """What the function is called with: equal arguments give what `direct` asks."""
        drawn = self.shape.calls(self.workload.draw(self.tokens, seed), scale)
        return [as_text(call, self.tokenizer) for call in drawn]


def make_twins(names: Iterable[str], tokenizer: Tokenizer, vocab_size: int) -> list[Twins]:
    """Raises ConfigError for a tokenizer in which no text stands for given tokens."""
    tokens = round_trip_tokens(tokenizer, vocab_size)
    made = []
    for name in names:
        shape: Any = replace(WORKLOADS[name].shape, **CHANGES[name])  # type: ignore[type-var]
        if isinstance(shape, Judge):
            shape = replace(shape, retold=partial(retold, tokenizer=tokenizer))
        made.append(Twins(Workload(name, shape), _FUNCTIONS[type(shape)], shape, tokens, tokenizer))
    return made
