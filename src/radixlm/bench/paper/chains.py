"""Workloads whose later prompts contain earlier answers. Sizes in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from radixlm.bench.paper.programs import Ask, Client, Draw, Program, scaled, together

# What tells the parts of one program apart (a point's number, a judgement's dimension) where the
# shape gives no length for it.
MARK = 8


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

    def programs(self, draw: Draw, scale: float) -> list[Program]:
        prefix = draw.tokens(self.shared)
        return [
            partial(_chat, prefix, draw.parts(self.turns, self.own), self.out)
            for _ in range(scaled(self.chats, scale))
        ]


async def _chat(history: list[int], turns: list[list[int]], out: int, client: Client) -> list[int]:
    for turn in turns:
        prompt = history + turn
        history = prompt + (await client.ask(Ask(prompt=prompt, out=out))).token_ids
    return history


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOfThought:
    """A tree of thoughts, level by level: every leaf draws `branching` continuations at once, then
    each new thought is judged once.
    """

    root: int
    branching: int
    depth: int
    out: int
    judge: int
    verdict: int

    def programs(self, draw: Draw, scale: float) -> list[Program]:
        trees = scaled(1, scale)
        return [
            partial(self._think, draw.tokens(self.root), self._levels(draw)) for _ in range(trees)
        ]

    def _levels(self, draw: Draw) -> list[list[tuple[int, list[int]]]]:
        """For each level, for each thought: a seed, and the words that have it judged."""
        return [
            [(draw.number(), draw.tokens(self.judge)) for _ in range(self.branching**level)]
            for level in range(1, self.depth + 1)
        ]

    async def _think(
        self, root: list[int], levels: list[list[tuple[int, list[int]]]], client: Client
    ) -> list[int]:
        leaves, verdicts = [root], []
        for level in levels:
            parents = [leaf for leaf in leaves for _ in range(self.branching)]
            thoughts = await together(
                client,
                (
                    Ask(prompt=parent, out=self.out, seed=seed)
                    for parent, (seed, _) in zip(parents, level, strict=True)
                ),
            )
            leaves = [
                parent + thought.token_ids
                for parent, thought in zip(parents, thoughts, strict=True)
            ]
            judged = await together(
                client,
                (
                    Ask(prompt=leaf + question, out=self.verdict)
                    for leaf, (_, question) in zip(leaves, level, strict=True)
                ),
            )
            verdicts = [verdict.token_ids for verdict in judged]
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

    def programs(self, draw: Draw, scale: float) -> list[Program]:
        marks = draw.parts(self.points, MARK)
        return [
            partial(self._answer, question, marks)
            for question in draw.parts(scaled(self.questions, scale), self.own)
        ]

    async def _answer(
        self, question: list[int], marks: list[list[int]], client: Client
    ) -> list[int]:
        outline = await client.ask(Ask(prompt=question, out=self.outline))
        context = question + outline.token_ids
        points = await together(
            client, (Ask(prompt=context + mark, out=self.out) for mark in marks)
        )
        return [token for point in points for token in point.token_ids]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Articles under one instruction, judged from several sides at once, then one judgement made
    of them all.
    """

    articles: int
    shared: int
    own: int
    judgements: int
    out: int

    def programs(self, draw: Draw, scale: float) -> list[Program]:
        prefix = draw.tokens(self.shared)
        marks = draw.parts(self.judgements, MARK)
        return [
            partial(self._judge, prefix + article, marks)
            for article in draw.parts(scaled(self.articles, scale), self.own)
        ]

    async def _judge(self, article: list[int], marks: list[list[int]], client: Client) -> list[int]:
        judged = await together(
            client, (Ask(prompt=article + mark, out=self.out) for mark in marks)
        )
        merged = article + [
            token
            for mark, reply in zip(marks, judged, strict=True)
            for token in mark + reply.token_ids
        ]
        return (await client.ask(Ask(prompt=merged, out=self.out))).token_ids
