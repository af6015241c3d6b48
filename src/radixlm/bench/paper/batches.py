"""Workloads in which no prompt depends on an answer. Sizes in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from radixlm.bench.paper.programs import (
    Arguments,
    Ask,
    Client,
    Draw,
    Program,
    scaled,
    single,
    together,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrompt:
    """Requests under one prefix, all at once: examples, instructions, a schema."""

    requests: int
    shared: int
    own: int
    out: int

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        prefix = draw.tokens(self.shared)
        return [
            {"prompt": prefix + own, "out": self.out}
            for own in draw.parts(scaled(self.requests, scale), self.own)
        ]

    def programs(self, draw: Draw, scale: float) -> list[Program]:
        return [single(Ask(**call)) for call in self.calls(draw, scale)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MultipleChoice:
    """Questions under one prefix, whose endings are scored by prompt log-probabilities: the
    likeliest is the answer. One token is generated beside, since an engine gives at least one.
    """

    questions: int
    shared: int
    own: int
    endings: int
    ending: int

    def programs(self, draw: Draw, scale: float) -> list[Program]:
        prefix = draw.tokens(self.shared)
        return [
            partial(_choose, prefix + own, draw.parts(self.endings, self.ending))
            for own in draw.parts(scaled(self.questions, scale), self.own)
        ]


async def _choose(question: list[int], endings: list[list[int]], client: Client) -> list[int]:
    replies = await together(
        client, (Ask(prompt=question + ending, out=1, scored=len(ending)) for ending in endings)
    )
    best = max(range(len(endings)), key=lambda index: replies[index].logprob)
    return endings[best]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievedDocuments:
    """Questions, each under some documents of a collection. They stand in the order of the
    collection, so that equal first choices are equal prefixes.
    """

    questions: int
    shared: int
    documents: int
    document: int
    retrieved: int
    own: int
    out: int

    def programs(self, draw: Draw, scale: float) -> list[Program]:
        prefix = draw.tokens(self.shared)
        documents = draw.parts(self.documents, self.document)
        programs = []
        for own in draw.parts(scaled(self.questions, scale), self.own):
            found = draw.choice(self.documents, self.retrieved)
            context = [token for index in found for token in documents[index]]
            programs.append(single(Ask(prompt=prefix + context + own, out=self.out)))
        return programs


@dataclass(frozen=True, slots=True, kw_only=True)
class OneAtATime:
    """Requests under one prefix, one after the other; the first one is a program of its own, so
    that it can warm the cache before anything is measured.
    """

    requests: int
    shared: int
    own: int
    out: int

    def programs(self, draw: Draw, scale: float) -> list[Program]:
        prefix = draw.tokens(self.shared)
        first, *others = (
            Ask(prompt=prefix + own, out=self.out)
            for own in draw.parts(1 + scaled(self.requests - 1, scale), self.own)
        )
        return [single(first), partial(_one_by_one, others)]


async def _one_by_one(asks: list[Ask], client: Client) -> list[int]:
    return [token for ask in asks for token in (await client.ask(ask)).token_ids]
