"""Measures one engine with drafts and without, in turns, on the same calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from radixlm.assembly import AsyncEngine, load
from radixlm.bench.agent_traces import RecordedCall
from radixlm.bench.draft_workloads import DraftWorkload, HeardText, PlayedPart
from radixlm.core.batch import ScheduledRow
from radixlm.core.config import EngineConfig
from radixlm.core.keys import Key
from radixlm.core.request import GenerateRequest, Namespace
from radixlm.core.sampling import SamplingParams
from radixlm.engine import EngineCore
from radixlm.scheduler import Drafting

T = TypeVar("T")
_OFF = Drafting((), 0)


class Replayed:
    """Gives recorded tokens in place of those that were drawn, where a request has some. Of each
    row of each step yields, the tokens that count, and drafted ones.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Key] = {}
        self.yields: list[int] = []
        self.drafted: list[int] = []

    def __call__(
        self, rows: Sequence[ScheduledRow], drawn: Sequence[int | None]
    ) -> list[int | None]:
        drawn = [
            token if token is None else self._recorded(row, token)
            for row, token in zip(rows, drawn, strict=True)
        ]
        known, asked, right = 0, None, list[int | None]()
        for row, token in zip(rows, drawn, strict=True):
            name = row.request.request_id
            if name != asked:
                self.yields.append(0)
                self.drafted.append(-1)
                known, asked, right = row.stop, name, []
            self.drafted[-1] += 1
            if row.tokens[known:].tolist() == right:
                self.yields[-1] += 1
                right.append(token)
        return drawn

    def _recorded(self, row: ScheduledRow, token: int) -> int:
        answer, place = self.answers.get(row.request.request_id), row.stop - row.prompt_length
        # A draft may reach beyond what was recorded, and after it nothing counts.
        return token if answer is None or place >= answer.size else int(answer[place])


class Played(NamedTuple):
    """Results of some calls. seconds: while all streams were busy, or of all where prompts arrive;
    cpu: of all threads; tokens: that came meanwhile. yields, drafted: see Replayed. answers: the
    tokens of each call.
    """

    tokens: int
    seconds: float
    cpu: float
    yields: tuple[int, ...]
    drafted: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]

    @classmethod
    def joined(cls, parts: Sequence[Played]) -> Played:
        """All of them as one."""
        return cls(
            sum(each.tokens for each in parts),
            sum(each.seconds for each in parts),
            sum(each.cpu for each in parts),
            tuple(count for each in parts for count in each.yields),
            tuple(count for each in parts for count in each.drafted),
            tuple(answer for each in parts for answer in each.answers),
        )

    def right_by_place(self) -> list[float]:
        """How often a drafted token was right, in percent, where all before it in a draft were."""
        made = []
        for place in range(max(self.drafted, default=0)):
            turns = [
                count > place + 1
                for count, drafted in zip(self.yields, self.drafted, strict=True)
                if drafted > place and count > place
            ]
            if turns:
                made.append(round(100 * sum(turns) / len(turns), 1))
        return made


class DraftBench(AbstractContextManager["DraftBench"]):
    """An engine whose drafts can be switched on and off. With and without them each workload has a
    namespace of its own, so that nothing is known of what it is to answer.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._replayed = Replayed()
        self.engine = AsyncEngine(load(config, progress=False, swap=self._replayed))
        self._drafting = self._ask(lambda core: core.scheduler.drafting)
        self._count = 0

    def __exit__(self, *_: object) -> None:
        self.engine.client.close()

    def in_turns(
        self, workload: DraftWorkload, out: int, rounds: int
    ) -> Iterator[tuple[Played, Played]]:
        """Play a workload with drafts and without, each first in turn: one stream call by call,
        several all at once, in rounds of which each knows nothing of those before. out: most tokens
        of an answer.
        """
        lanes = workload.lanes
        alone = len(lanes) == 1
        for number, its in enumerate(
            [[[each]] for each in lanes[0]] if alone else [lanes] * rounds
        ):
            turns = {}
            for drafts in (True, False) if number % 2 else (False, True):
                round_ = 0 if alone else number
                own = Namespace(cache_salt=f"{workload.name}, {len(lanes)}, {drafts}, {round_}")
                turns[drafts] = self._play(its, out, own, drafts=drafts, cached=workload.cached)
            yield turns[True], turns[False]

    def _play(
        self,
        lanes: Sequence[Sequence[PlayedPart]],
        out: int,
        namespace: Namespace,
        *,
        drafts: bool,
        cached: bool,
    ) -> Played:
        if cached:
            calls = [part.call for lane in lanes for part in lane]
            firsts = [self._request(call, 1, namespace) for call in calls]
            asyncio.run(self._run([[(request, ()) for request in firsts]]))
        requests = [
            [
                (self._request(part.call, out, namespace), part.heard if drafts else ())
                for part in lane
            ]
            for lane in lanes
        ]
        self._switch(drafts=drafts)
        self._replayed.yields, self._replayed.drafted = [], []
        began, cpu = time.perf_counter(), time.process_time()
        ends, answers = asyncio.run(self._run(requests))
        # Who ends soon after prompts have come leaves these in the time, and few tokens.
        tokens, ended, cpu_ended = ends[0 if cached else -1]
        self._switch(drafts=False)
        return Played(
            tokens,
            ended - began,
            cpu_ended - cpu,
            tuple(self._replayed.yields),
            tuple(self._replayed.drafted),
            tuple(tuple(answer) for answer in answers.values()),
        )

    async def _run(
        self, lanes: Sequence[Sequence[tuple[GenerateRequest, Sequence[HeardText]]]]
    ) -> tuple[list[tuple[int, float, float]], dict[str, list[int]]]:
        """Tokens and times whenever a stream had nothing more to do, and the answers."""
        ends: list[tuple[int, float, float]] = []
        answers = {request.request_id: list[int]() for lane in lanes for request, _ in lane}

        async def stream(lane: Sequence[tuple[GenerateRequest, Sequence[HeardText]]]) -> None:
            for request, heard in lane:
                hear = partial(self._hear, request.namespace, heard)
                await asyncio.wrap_future(self.engine.client.ask(hear))
                async for output in self.engine.stream_all([request]):
                    answers[request.request_id] += output.token_ids
            ends.append((sum(map(len, answers.values())), time.perf_counter(), time.process_time()))

        await asyncio.gather(*map(stream, lanes))
        return ends, answers

    def _request(self, call: RecordedCall, out: int, namespace: Namespace) -> GenerateRequest:
        self._count += 1
        name = f"call-{self._count}"
        if call.answer is not None:
            self._replayed.answers[name] = call.answer
            out = min(out, call.answer.size)
        params = SamplingParams(max_tokens=out, temperature=0, ignore_eos=call.answer is not None)
        request = self.engine.request(call.prompt, params, request_id=name, namespace=namespace)
        return request if call.prediction is None else replace(request, prediction=call.prediction)

    def _hear(self, where: Namespace, heard: Sequence[HeardText], _core: EngineCore) -> None:
        for tokens, new in heard:
            self._drafting.wrote(where, tokens.data, new)

    def _switch(self, *, drafts: bool) -> None:
        def switch(core: EngineCore) -> None:
            core.scheduler.drafting = self._drafting if drafts else _OFF

        self._ask(switch)

    def _ask(self, what: Callable[[EngineCore], T]) -> T:
        return self.engine.client.ask(what).result()
