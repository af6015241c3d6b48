"""Workloads as programs in the frontend language: they ask what the shapes' own programs ask, in
the same order, and are called with the same content as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from radixlm.bench.programs import Program
from radixlm.bench.tree_search import Search
from radixlm.bench.workloads import (
    WORKLOADS,
    Arguments,
    Chats,
    Judge,
    Shape,
    SharedPrompt,
    SkeletonOfThought,
    TreeOfThought,
    TreeSearch,
    Workload,
)
from radixlm.core.errors import ConfigError
from radixlm.lang.api import gen
from radixlm.lang.program import Function, function
from radixlm.lang.program_state import State
from radixlm.text.tokenizer import Tokenizer

AT_ONCE = 32
# What is changed of the shapes, so that there are AT_ONCE programs. Large trees are cut back to end
# in reasonable time.
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


@function
def shared_prompt(s: State, shape: SharedPrompt, prompt: str) -> str:
    s += prompt + gen("answer", max_tokens=shape.out)
    return str(s["answer"])


@function
def chat(s: State, shape: Chats, history: str, turns: list[str]) -> str:
    s += history
    for turn in turns:
        s += turn + gen("answer", max_tokens=shape.out)
        s["answer"]  # an agent acts on it before it goes on
    return s.text()


@function
def tree_of_thought(
    s: State, shape: TreeOfThought, root: str, levels: list[list[tuple[int, str]]]
) -> str:
    s += root
    leaves = [s]
    for level in levels:
        leaves = [child for leaf in leaves for child in leaf.fork(shape.branching)]
        for leaf in leaves:
            leaf += gen("thought", max_tokens=shape.out, temperature=1.0)
        thoughts = [leaf["thought"] for leaf in leaves]
        judges = [leaf.fork()[0] for leaf in leaves]
        for judge, (_, question) in zip(judges, level, strict=True):
            judge += question + gen("verdict", max_tokens=shape.verdict)
        verdicts = [judge["verdict"] for judge in judges]
    return str(max(zip(verdicts, thoughts, strict=True))[1])


@function
def tree_search(s: State, shape: TreeSearch, trunk: str, moves: list[str], search: Search) -> str:
    s += trunk
    states = [s]
    for stage in search.stages():
        for parent, node in stage:
            child = states[parent].fork()[0]
            child += moves[node - 1] + gen("answer", max_tokens=shape.out)
            states.append(child)
        for _, node in stage:
            states[node]["answer"]
    return states[search.best].text()


@function
def skeleton_of_thought(s: State, shape: SkeletonOfThought, question: str, marks: list[str]) -> str:
    s += question + gen("outline", max_tokens=shape.outline)
    forks = s.fork(len(marks))
    forks += [mark + gen("point", max_tokens=shape.out) for mark in marks]
    forks.join()
    return "".join(s["point"])


@function
def branch_solve_merge(s: State, shape: Judge, article: str, marks: list[str]) -> str:
    s += article
    forks = s.fork(len(marks))
    forks += [mark + gen("judgement", max_tokens=shape.out) for mark in marks]
    forks.join()
    for mark, judgement in zip(marks, s["judgement"], strict=True):
        s += mark + judgement
    s += gen("merged", max_tokens=shape.out)
    return str(s["merged"])


_FUNCTIONS: Mapping[type[Shape], Function] = MappingProxyType(
    {
        SharedPrompt: shared_prompt,
        Chats: chat,
        TreeOfThought: tree_of_thought,
        TreeSearch: tree_search,
        SkeletonOfThought: skeleton_of_thought,
        Judge: branch_solve_merge,
    }
)


@dataclass(frozen=True, slots=True)
class Twins:
    """A workload in both forms: its shape's programs on tokens, and `function` on text."""

    workload: Workload
    function: Function
    tokens: list[int]
    tokenizer: Tokenizer

    def direct(self, *, seed: int, scale: float) -> list[Program]:
        """Fresh programs that ask the engine themselves."""
        return self.workload.shape.programs(self.workload.draw(self.tokens, seed), scale)

    def calls(self, *, seed: int, scale: float) -> list[Arguments]:
        """What the function is called with: equal arguments give what `direct` asks."""
        shape = self.workload.shape
        drawn = shape.calls(self.workload.draw(self.tokens, seed), scale)
        return [{"shape": shape, **as_text(call, self.tokenizer)} for call in drawn]


def make_twins(names: Iterable[str], tokenizer: Tokenizer, vocab_size: int) -> list[Twins]:
    """Raises ConfigError for a tokenizer in which no text stands for given tokens."""
    tokens = round_trip_tokens(tokenizer, vocab_size)
    made = []
    for name in names:
        shape: Any = replace(WORKLOADS[name].shape, **CHANGES[name])  # type: ignore[type-var]
        if isinstance(shape, Judge):
            shape = replace(shape, retold=partial(retold, tokenizer=tokenizer))
        made.append(Twins(Workload(name, shape), _FUNCTIONS[type(shape)], tokens, tokenizer))
    return made


def round_trip_tokens(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """Tokens that come out of tokenizing what they say, also when they stand side by side: words
    with a space before them, where there are any. Raises ConfigError where there are none.
    """
    usual = set(range(vocab_size)) - tokenizer.special_ids
    texts = {token: tokenizer.token_text(token) for token in usual}
    alone = [
        token
        for token, text in texts.items()
        if text.isascii()
        and text.isprintable()
        and tokenizer.encode_after(text + text).tolist() == [token, token]
    ]
    words = [token for token in alone if len(texts[token]) > 1 and texts[token][0] == " "]
    if not alone:
        raise ConfigError("this tokenizer has no token that is tokenized as itself")
    return words or alone


def as_text(content: Arguments, tokenizer: Tokenizer) -> Arguments:
    """With text in place of each list of tokens, however deep."""
    return {name: _as_text(value, tokenizer) for name, value in content.items()}


def _as_text(value: Any, tokenizer: Tokenizer) -> Any:
    if isinstance(value, list) and all(isinstance(entry, int) for entry in value):
        return tokenizer.decode(value)
    if isinstance(value, list | tuple):
        return type(value)(_as_text(entry, tokenizer) for entry in value)
    return value


def retold(token_ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """An answer's tokens once a program has read it as text and said it again."""
    said: list[int] = tokenizer.encode_after(tokenizer.decode(token_ids)).tolist()
    return said
