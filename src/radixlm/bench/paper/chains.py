"""Workloads whose later prompts contain earlier answers. Sizes in tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from radixlm.bench.paper.programs import Arguments, Ask, Client, Draw, Program, scaled, together

# What tells the parts of one program apart (a point's number, a judgement's dimension) where the
# shape gives no length for it.
MARK = 8
# For each thought: a seed, and the words that have it judged.
Level = list[tuple[int, list[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chats:
    """Chats, or agents, of several turns. Each turn adds something new to the history and to the
    answers so far. shared: before every history.
    """

    chats: int
    turns: int
    own: int
    out: int
    shared: int = 0

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        prefix = draw.tokens(self.shared)
        return [
            {"history": prefix, "turns": draw.parts(self.turns, self.own), "out": self.out}
            for _ in range(scaled(self.chats, scale))
        ]

    def programs(self, draw: Draw, scale: float) -> list[Program]:
        return [partial(_chat, **call) for call in self.calls(draw, scale)]


async def _chat(
    client: Client, *, history: list[int], turns: list[list[int]], out: int
) -> list[int]:
    for turn in turns:
        prompt = history + turn
        history = prompt + (await client.ask(Ask(prompt=prompt, out=out))).token_ids
    return history


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOfThought:
    """A tree of thoughts, level by level: every leaf draws `branching` continuations at once, then
    each new thought is judged once.
    """

    trees: int = 1
    root: int
    branching: int
    depth: int
    out: int
    judge: int
    verdict: int

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        return [
            {
                "root": draw.tokens(self.root),
                "levels": self._levels(draw),
                "branching": self.branching,
                "out": self.out,
                "verdict": self.verdict,
            }
            for _ in range(scaled(self.trees, scale))
        ]

    def programs(self, draw: Draw, scale: float) -> list[Program]:
        return [partial(_think, **call) for call in self.calls(draw, scale)]

    def _levels(self, draw: Draw) -> list[Level]:
        return [
            [(draw.number(), draw.tokens(self.judge)) for _ in range(self.branching**level)]
            for level in range(1, self.depth + 1)
        ]


async def _think(
    client: Client, *, root: list[int], levels: list[Level], branching: int, out: int, verdict: int
) -> list[int]:
    leaves, verdicts = [root], []
    for level in levels:
        parents = [leaf for leaf in leaves for _ in range(branching)]
        thoughts = await together(
            client,
            (
                Ask(prompt=parent, out=out, seed=seed)
                for parent, (seed, _) in zip(parents, level, strict=True)
            ),
        )
        leaves = [
            parent + thought.token_ids for parent, thought in zip(parents, thoughts, strict=True)
        ]
        judged = await together(
            client,
            (
                Ask(prompt=leaf + question, out=verdict)
                for leaf, (_, question) in zip(leaves, level, strict=True)
            ),
        )
        verdicts = [reply.token_ids for reply in judged]
    # A verdict is a number to compare by, as good as any that random weights could give.
    return max(zip(verdicts, leaves, strict=True))[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkeletonOfThought:
    """Questions: an outline first, then all its points at once."""

    questions: int
    own: int
    outline: int
    points: int
    out: int

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        marks = draw.parts(self.points, MARK)
        return [
            {"question": question, "marks": marks, "outline": self.outline, "out": self.out}
            for question in draw.parts(scaled(self.questions, scale), self.own)
        ]

    def programs(self, draw: Draw, scale: float) -> list[Program]:
        return [partial(_fill_in, **call) for call in self.calls(draw, scale)]


async def _fill_in(
    client: Client, *, question: list[int], marks: list[list[int]], outline: int, out: int
) -> list[int]:
    context = question + (await client.ask(Ask(prompt=question, out=outline))).token_ids
    points = await together(client, (Ask(prompt=context + mark, out=out) for mark in marks))
    return [token for point in points for token in point.token_ids]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Articles under one instruction, judged from several sides at once, then one judgement made
    of them all. retold: a judgement's tokens as they stand in that one's prompt.
    """

    articles: int
    shared: int
    own: int
    judgements: int
    out: int
    retold: Callable[[list[int]], list[int]] = list

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        prefix = draw.tokens(self.shared)
        marks = draw.parts(self.judgements, MARK)
        return [
            {"article": prefix + article, "marks": marks, "out": self.out}
            for article in draw.parts(scaled(self.articles, scale), self.own)
        ]

    def programs(self, draw: Draw, scale: float) -> list[Program]:
        return [partial(self._judge, **call) for call in self.calls(draw, scale)]

    async def _judge(
        self, client: Client, *, article: list[int], marks: list[list[int]], out: int
    ) -> list[int]:
        judged = await together(client, (Ask(prompt=article + mark, out=out) for mark in marks))
        merged = article + [
            token
            for mark, reply in zip(marks, judged, strict=True)
            for token in mark + self.retold(reply.token_ids)
        ]
        return (await client.ask(Ask(prompt=merged, out=out))).token_ids
