"""The workloads of SGLang's paper: their shapes, and by name with the paper's numbers. Sizes in
tokens.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from radixlm.bench.programs import (
    BenchRequest,
    Client,
    Draw,
    DryClient,
    Program,
    Search,
    WorkloadPlan,
    run_all,
    together,
)

# What a program is called with, by name.
Arguments = dict[str, Any]
# What tells the parts of one program apart (a point's number, a judgement's dimension) where the
# shape gives no length for it.
MARK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadShape:
    """A kind of workload with its numbers.

    count: of programs, at scale 1. shared, own, out: tokens that all share, that each has of its
    own, and of an answer.
    program: a coroutine function of a client and arguments; it returns its result's token ids.
    """

    count: int = 1
    shared: int = 0
    own: int = 0
    out: int = 0
    program: ClassVar[Callable[..., Coroutine[Any, Any, list[int]]]]

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        """The arguments with which each program is called: drawn content, the same for equal draws.

        scale: times as many; never fewer than one. Lengths stay.
        """
        raise NotImplementedError

    def owns(self, draw: Draw, scale: float) -> list[list[int]]:
        """The content that each program has of its own."""
        return draw.parts(scaled(self.count, scale), self.own)

    def programs(self, draw: Draw, scale: float) -> list[Program]:
        """The programs, to be run once."""
        return [partial(self.program, **call) for call in self.calls(draw, scale)]


class OneRequest(WorkloadShape):
    async def program(self, client: Client, *, prompt: list[int]) -> list[int]:
        return (await client.ask(BenchRequest(prompt=prompt, out=self.out))).token_ids


class SharedPrompt(OneRequest):
    """Requests under one prefix, all at once: examples, instructions, a schema."""

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        prefix = draw.tokens(self.shared)
        return [{"prompt": prefix + own} for own in self.owns(draw, scale)]


class SharedPromptOnly(SharedPrompt):
    """The own parts differ in their first token, so nothing but the prefix is shared."""

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        prefix, requests = draw.tokens(self.shared), scaled(self.count, scale)
        pairs = zip(draw.different(requests), draw.parts(requests, self.own - 1), strict=True)
        return [{"prompt": [*prefix, first, *own]} for first, own in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievedDocuments(OneRequest):
    """Questions, each under some documents of a collection. They stand in the order of the
    collection, so that equal first choices are equal prefixes.
    """

    documents: int
    document: int
    retrieved: int

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        prefix = draw.tokens(self.shared)
        documents = draw.parts(self.documents, self.document)
        calls = []
        for own in self.owns(draw, scale):
            found = draw.choice(self.documents, self.retrieved)
            context = [token for index in found for token in documents[index]]
            calls.append({"prompt": prefix + context + own})
        return calls


@dataclass(frozen=True, slots=True, kw_only=True)
class MultipleChoice(WorkloadShape):
    """Questions under one prefix, whose endings are scored by prompt log-probabilities: the
    likeliest is the answer. One token is generated besides, since an engine gives at least one.
    """

    endings: int
    ending: int

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        prefix = draw.tokens(self.shared)
        return [
            {"question": prefix + own, "endings": draw.parts(self.endings, self.ending)}
            for own in self.owns(draw, scale)
        ]

    async def program(
        self, client: Client, *, question: list[int], endings: list[list[int]]
    ) -> list[int]:
        asks = [BenchRequest(prompt=question + end, out=1, scored=len(end)) for end in endings]
        replies = await together(client, asks)
        best = max(range(len(endings)), key=lambda index: replies[index].logprob)
        return endings[best]


class OneAtATime(WorkloadShape):
    """Requests under one prefix, one after the other. The first one has its own program, so that it
    can warm the cache before anything is measured.
    """

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        prefix = draw.tokens(self.shared)
        owns = draw.parts(1 + scaled(self.count - 1, scale), self.own)
        first, *others = (prefix + own for own in owns)
        return [{"prompts": [first]}, {"prompts": others}]

    async def program(self, client: Client, *, prompts: list[list[int]]) -> list[int]:
        asks = [BenchRequest(prompt=prompt, out=self.out) for prompt in prompts]
        return [token for ask in asks for token in (await client.ask(ask)).token_ids]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chats(WorkloadShape):
    """Chats, or agents, of several turns. Each turn adds something new to the history and to the
    answers so far. own: of each turn.
    """

    turns: int

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        prefix = draw.tokens(self.shared)
        return [
            {"history": prefix, "turns": draw.parts(self.turns, self.own)}
            for _ in range(scaled(self.count, scale))
        ]

    async def program(
        self, client: Client, *, history: list[int], turns: list[list[int]]
    ) -> list[int]:
        for turn in turns:
            prompt = history + turn
            history = (
                prompt + (await client.ask(BenchRequest(prompt=prompt, out=self.out))).token_ids
            )
        return history


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOfThought(WorkloadShape):
    """A tree of thoughts, level by level: every leaf draws `branching` continuations at once, then
    each new thought is judged once.
    """

    root: int
    branching: int
    depth: int
    judge: int
    verdict: int

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        """levels: for each thought a seed, and the words that have it judged."""
        return [
            {
                "root": draw.tokens(self.root),
                "levels": [
                    [(draw.number(), draw.tokens(self.judge)) for _ in range(self.branching**level)]
                    for level in range(1, self.depth + 1)
                ],
            }
            for _ in range(scaled(self.count, scale))
        ]

    async def program(
        self, client: Client, *, root: list[int], levels: list[list[tuple[int, list[int]]]]
    ) -> list[int]:
        leaves, verdicts = [root], []
        for level in levels:
            parents = [leaf for leaf in leaves for _ in range(self.branching)]
            asks = [
                BenchRequest(prompt=parent, out=self.out, seed=seed)
                for parent, (seed, _) in zip(parents, level, strict=True)
            ]
            thoughts = await together(client, asks)
            leaves = [ask.prompt + new.token_ids for ask, new in zip(asks, thoughts, strict=True)]
            questions = [
                BenchRequest(prompt=leaf + question, out=self.verdict)
                for leaf, (_, question) in zip(leaves, level, strict=True)
            ]
            verdicts = [reply.token_ids for reply in await together(client, questions)]
        # A verdict is a number to compare by, as good as any that random weights could give.
        return max(zip(verdicts, leaves, strict=True))[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkeletonOfThought(WorkloadShape):
    """Questions: an outline first, then all its points at once."""

    outline: int
    points: int

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        marks = draw.parts(self.points, MARK)
        return [{"question": own, "marks": marks} for own in self.owns(draw, scale)]

    async def program(
        self, client: Client, *, question: list[int], marks: list[list[int]]
    ) -> list[int]:
        outline = await client.ask(BenchRequest(prompt=question, out=self.outline))
        context = question + outline.token_ids
        points = await together(
            client, (BenchRequest(prompt=context + m, out=self.out) for m in marks)
        )
        return [token for point in points for token in point.token_ids]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge(WorkloadShape):
    """Articles under one instruction, judged from several sides at once, then one judgement made
    of them all. retold: a judgement's tokens as they stand in that one's prompt.
    """

    judgements: int
    retold: Callable[[list[int]], list[int]] = list

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        prefix, marks = draw.tokens(self.shared), draw.parts(self.judgements, MARK)
        return [{"article": prefix + own, "marks": marks} for own in self.owns(draw, scale)]

    async def program(
        self, client: Client, *, article: list[int], marks: list[list[int]]
    ) -> list[int]:
        judged = await together(
            client, (BenchRequest(prompt=article + m, out=self.out) for m in marks)
        )
        merged = list(article)
        for mark, reply in zip(marks, judged, strict=True):
            merged += mark + self.retold(reply.token_ids)
        return (await client.ask(BenchRequest(prompt=merged, out=self.out))).token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSearch(WorkloadShape):
    """Searches, each with `expansions` below a trunk; each node adds `own` new tokens and an
    answer. A reward is a random number.
    """

    expansions: int
    trunk: int

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        count = scaled(self.expansions, scale)
        return [
            {
                "trunk": draw.tokens(self.trunk),
                "moves": draw.parts(count, self.own),
                "search": Search(draw.fractions(count)),
            }
            for _ in range(self.count)
        ]

    async def program(
        self, client: Client, *, trunk: list[int], moves: list[list[int]], search: Search
    ) -> list[int]:
        contexts = [trunk]
        for stage in search.stages():
            prompts = [contexts[parent] + moves[node - 1] for parent, node in stage]
            asks = [BenchRequest(prompt=prompt, out=self.out) for prompt in prompts]
            for prompt, reply in zip(prompts, await together(client, asks), strict=True):
                contexts.append(prompt + reply.token_ids)
        return contexts[search.best]


def scaled(count: int, scale: float) -> int:
    return max(1, round(count * scale))


@dataclass(frozen=True, slots=True)
class Workload:
    """A shape with its name.

    pool_share: KV pool over distinct tokens, whatever is asked for; None leaves it to the caller.
    unmeasured: how many of the first programs run, one after the other, before the measurement.
    """

    name: str
    shape: WorkloadShape
    pool_share: float | None = None
    unmeasured: int = 0

    def programs(self, vocab_size: int, *, seed: int, scale: float) -> list[Program]:
        """Fresh programs, to be run once. Equal arguments give equal prompts."""
        return self.shape.programs(self.draw(vocab_size, seed), scale)

    def draw(self, vocabulary: int | Sequence[int], seed: int) -> Draw:
        return Draw(vocabulary, seed, zlib.crc32(self.name.encode()))

    def plan(self, vocab_size: int, *, seed: int, scale: float) -> WorkloadPlan:
        """Run its programs without an engine. Lengths do not depend on the answers, but for those
        that are said again as text.
        """
        client = DryClient(Draw(vocab_size, seed))
        asyncio.run(run_all(client, self.programs(vocab_size, seed=seed, scale=scale)))
        return client.plan()


_ALL = (
    Workload("mmlu-few-shot", SharedPrompt(count=64, shared=600, own=120, out=2)),
    Workload(
        "hellaswag-few-shot", MultipleChoice(count=24, shared=1_800, own=60, endings=4, ending=20)
    ),
    Workload("react-agent", Chats(count=8, turns=6, shared=900, own=120, out=60)),
    Workload("generative-agents", SharedPrompt(count=32, shared=200, own=300, out=40)),
    Workload(
        "tree-of-thought",
        TreeOfThought(root=600, branching=3, depth=3, out=50, judge=30, verdict=4),
    ),
    Workload(
        "tree-search", TreeSearch(expansions=200, trunk=1_500, own=60, out=30), pool_share=0.25
    ),
    Workload(
        "skeleton-of-thought", SkeletonOfThought(count=8, own=100, outline=80, points=6, out=60)
    ),
    Workload("llm-judge", Judge(count=16, shared=200, own=700, judgements=4, out=60)),
    # Only the shape of the traffic: no grammar holds the answers to JSON.
    Workload("json-decoding", SharedPrompt(count=32, shared=300, own=60, out=120)),
    Workload("multi-turn-short", Chats(count=16, turns=8, own=128, out=8)),
    Workload("multi-turn-long", Chats(count=16, turns=4, own=128, out=128)),
    Workload(
        "rag",
        RetrievedDocuments(
            count=32, shared=300, documents=12, document=200, retrieved=3, own=40, out=40
        ),
    ),
    Workload("batch-same-prompt", SharedPrompt(count=100, shared=2_000, own=100, out=16)),
    Workload("no-sharing", SharedPrompt(count=32, shared=0, own=1_000, out=16)),
    # Not the paper's: the time to the first token once the prefix is cached.
    Workload("warm-prefix", OneAtATime(count=16, shared=1_000, own=32, out=8), unmeasured=1),
)
WORKLOADS: Mapping[str, Workload] = MappingProxyType({item.name: item for item in _ALL})
