"""Workloads as programs in the frontend language, measured beside the same requests without it.

They ask what the shapes' own programs ask, in the same order, and are called with the same content
as text.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

from radixlm.bench import workloads
from radixlm.bench.paper_run import Listener, Setup, warm_up
from radixlm.bench.programs import Search, best_possible, in_turns, run_all
from radixlm.core.errors import ConfigError
from radixlm.lang.api import gen
from radixlm.lang.program import Function, function
from radixlm.lang.program_state import State
from radixlm.text.tokenizer import Tokenizer

AT_ONCE = 32
# KV pool over distinct tokens: nothing is evicted, and the engine has what it reserves.
_ROOM = 1.5
# What is changed of the shapes, besides that there are AT_ONCE programs: large trees are cut back
# to end in reasonable time.
CHANGES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "mmlu-few-shot": {},
        "react-agent": {},
        "tree-of-thought": {"depth": 2},
        "tree-search": {"expansions": 16},
        "skeleton-of-thought": {},
        "llm-judge": {},
        "json-decoding": {},
    }
)


@function
def shared_prompt(s: State, shape: workloads.SharedPrompt, prompt: str) -> str:
    s += prompt + gen("answer", max_tokens=shape.out)
    return str(s["answer"])


@function
def chat(s: State, shape: workloads.Chats, history: str, turns: list[str]) -> str:
    s += history
    for turn in turns:
        s += turn + gen("answer", max_tokens=shape.out)
        s["answer"]  # an agent acts on it before it goes on
    return s.text()


@function
def tree_of_thought(
    s: State, shape: workloads.TreeOfThought, root: str, levels: list[list[tuple[int, str]]]
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
def tree_search(
    s: State, shape: workloads.TreeSearch, trunk: str, moves: list[str], search: Search
) -> str:
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
def skeleton_of_thought(
    s: State, shape: workloads.SkeletonOfThought, question: str, marks: list[str]
) -> str:
    s += question + gen("outline", max_tokens=shape.outline)
    forks = s.fork(len(marks))
    forks += [mark + gen("point", max_tokens=shape.out) for mark in marks]
    forks.join()
    return "".join(s["point"])


@function
def branch_solve_merge(s: State, shape: workloads.Judge, article: str, marks: list[str]) -> str:
    s += article
    forks = s.fork(len(marks))
    forks += [mark + gen("judgement", max_tokens=shape.out) for mark in marks]
    forks.join()
    for mark, judgement in zip(marks, s["judgement"], strict=True):
        s += mark + judgement
    s += gen("merged", max_tokens=shape.out)
    return str(s["merged"])


_FUNCTIONS: Mapping[type[workloads.WorkloadShape], Function] = MappingProxyType(
    {
        workloads.SharedPrompt: shared_prompt,
        workloads.Chats: chat,
        workloads.TreeOfThought: tree_of_thought,
        workloads.TreeSearch: tree_search,
        workloads.SkeletonOfThought: skeleton_of_thought,
        workloads.Judge: branch_solve_merge,
    }
)


@dataclass(frozen=True, slots=True)
class Twins:
    """A workload in both forms: its shape's programs on tokens, and `function` on text."""

    workload: workloads.Workload
    function: Function
    tokens: list[int]
    tokenizer: Tokenizer

    def direct(self, setup: Setup, listener: Listener) -> Callable[[], object]:
        """Runs fresh programs that ask the engine themselves."""
        drawn = self.workload.draw(self.tokens, setup.seed)
        programs = self.workload.shape.programs(drawn, setup.scale)
        return lambda: asyncio.run(run_all(listener, programs))

    def through_the_language(self, setup: Setup, listener: Listener) -> Callable[[], object]:
        """Runs the function, with what makes it ask the same."""
        calls = self.calls(setup)
        return lambda: self.function.run_batch(
            calls, backend=listener, num_threads=AT_ONCE, temperature=0.0, ignore_eos=True
        )

    def calls(self, setup: Setup) -> list[workloads.Arguments]:
        """The arguments with which the function is called."""
        shape = self.workload.shape
        drawn = shape.calls(self.workload.draw(self.tokens, setup.seed), setup.scale)
        return [{"shape": shape, **as_text(call, self.tokenizer)} for call in drawn]


def make_twins(names: Iterable[str], tokenizer: Tokenizer, vocab_size: int) -> list[Twins]:
    """Raises ConfigError for a tokenizer in which no text stands for given tokens."""
    tokens = round_trip_tokens(tokenizer, vocab_size)
    made = []
    for name in names:
        shape = replace(workloads.WORKLOADS[name].shape, count=AT_ONCE, **CHANGES[name])
        if isinstance(shape, workloads.Judge):
            shape = replace(shape, retold=partial(retold, tokenizer=tokenizer))
        made.append(
            Twins(workloads.Workload(name, shape), _FUNCTIONS[type(shape)], tokens, tokenizer)
        )
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


def as_text(content: workloads.Arguments, tokenizer: Tokenizer) -> workloads.Arguments:
    """Put text in place of each list of tokens, however deep."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendRow:
    """One workload. Rates are of the language's requests, in all rounds.

    best_hit_rate: what no order can beat. wall_s, direct_wall_s: medians with and without the
    language, from the first program's start to the last one's end. overhead: median, over the
    rounds, of how much longer it takes with the language, as a share.
    """

    workload: str
    programs: int
    requests: int
    direct_requests: int
    prompt_tokens: int
    direct_prompt_tokens: int
    cached_tokens: int
    hit_rate: float
    best_hit_rate: float
    direct_hit_rate: float
    wall_s: float
    direct_wall_s: float
    overhead: float
    rounds: int
    pool_tokens: int
    seed: int
    shape: str
    dtype: str


class _Round(NamedTuple):
    """One round, one way. prompt, best, cached: tokens; wall: seconds."""

    requests: int
    prompt: int
    best: int
    cached: int
    wall: float


def run(
    twins: Iterable[Twins],
    setup: Setup,
    rounds: int,
    *,
    started: Callable[[str], object] = lambda _workload: None,
    done: Callable[[], object] = lambda: None,
) -> Iterator[FrontendRow]:
    """Measure each workload with and without the language, in turns; a row comes as soon as it is
    known.

    started: called with the name of the workload. done: called after each request.
    """
    for each in twins:
        started(each.workload.name)
        yield _measure(each, setup, rounds, done)


def _measure(twins: Twins, setup: Setup, rounds: int, done: Callable[[], object]) -> FrontendRow:
    engine = setup.engine(setup.plan(twins.workload).pool_tokens(setup.pool or _ROOM))
    ways = (Twins.direct, Twins.through_the_language)
    measured: dict[Callable[..., object], list[_Round]] = {way: [] for way in ways}
    try:
        asyncio.run(warm_up(engine))
        for way in in_turns(ways, rounds):
            asyncio.run(engine.flush_cache())
            gc.collect()
            listener = Listener(engine, done)
            work = way(twins, setup, listener)
            started = time.perf_counter()
            work()
            wall = time.perf_counter() - started
            bound = best_possible(item.finished for item in listener.measured)
            cached = sum(item.cached_tokens for item in listener.measured)
            requests = len(listener.measured)
            measured[way].append(_Round(requests, bound.prompt, bound.cached, cached, wall))
    finally:
        asyncio.run(engine.close())
    direct, through = measured.values()
    return _row(twins, setup, direct, through, engine.info.kv_tokens)


def _row(
    twins: Twins, setup: Setup, direct: list[_Round], through: list[_Round], pool_tokens: int
) -> FrontendRow:
    ratios = [ours.wall / theirs.wall for ours, theirs in zip(through, direct, strict=True)]
    ours, theirs = (_Round(*map(sum, zip(*rounds, strict=True))) for rounds in (through, direct))
    return FrontendRow(
        workload=twins.workload.name,
        programs=len(twins.calls(setup)),
        requests=ours.requests,
        direct_requests=theirs.requests,
        prompt_tokens=ours.prompt,
        direct_prompt_tokens=theirs.prompt,
        cached_tokens=ours.cached,
        hit_rate=round(ours.cached / ours.prompt, 6),
        best_hit_rate=round(ours.best / ours.prompt, 6),
        direct_hit_rate=round(theirs.cached / theirs.prompt, 6),
        wall_s=round(median(one.wall for one in through), 4),
        direct_wall_s=round(median(one.wall for one in direct), 4),
        overhead=round(median(ratios) - 1, 4),
        rounds=len(through),
        pool_tokens=pool_tokens,
        seed=setup.seed,
        shape=setup.shape,
        dtype=setup.dtype,
    )
