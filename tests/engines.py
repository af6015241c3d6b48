"""Engines without weights, for tests: a fake runner, a byte tokenizer, every check switched on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import get_args

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from radixlm.cache import RadixCache
from radixlm.cache.components.states import StateSlots
from radixlm.cache.components.window_slots import WindowSize
from radixlm.core.batch import EMPTY, ScheduledBatch, ScheduledRow, StepResult
from radixlm.core.clock import Clock
from radixlm.core.config import SchedulePolicy
from radixlm.core.grammar import Grammar
from radixlm.core.keys import KeyLike, as_key
from radixlm.core.reports import EventSink
from radixlm.core.request import Breakpoint, GenerateRequest, Namespace, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.drafts.draft import DraftSource
from radixlm.engine import EngineCore, InputProcessor, Limits
from radixlm.scheduler import Drafting, Scheduler, WaitingRoom, make_order
from radixlm.structured_output import Compiled, Compiler, MaskFiller
from radixlm.testing.fake_runner import FakeRunner, fingerprints
from radixlm.text.tokenizer import Tokenizer
from tests.invariants import check

VOCAB = 256
ORDERS: tuple[SchedulePolicy, ...] = get_args(SchedulePolicy)
# For tests that take their time with each.
EACH_ORDER = pytest.mark.parametrize(
    "policy",
    ["lpm", *(pytest.param(name, marks=pytest.mark.slow) for name in ORDERS if name != "lpm")],
)


@cache
def byte_tokenizer() -> Tokenizer:
    """256 tokens, one for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, {})


@cache
def byte_compiler(vocab_size: int = VOCAB) -> Compiler:
    """For the byte tokenizer, or its first tokens; token 0 ends an answer."""
    return Compiler(byte_tokenizer(), vocab_size=vocab_size, eos_ids=(0,))


@cache
def constraint(grammar: Grammar, vocab_size: int = VOCAB) -> Compiled:
    """A grammar for the byte tokenizer, compiled."""
    return byte_compiler(vocab_size).compile(grammar)


def processor(capacity: int = 512) -> InputProcessor:
    """For requests to an engine over the byte tokenizer, without tokens that end an answer."""
    return InputProcessor(Limits(capacity, capacity, VOCAB), frozenset(), byte_compiler())


class ChainRunner:
    """Like FakeRunner, for runs so long that a whole prefix can not be looked at in every step: a
    slot's fingerprint follows from what the slot of the token before it holds. So a slot that is
    wrong makes all later tokens wrong.
    """

    def __init__(self, capacity: int, n_rows: int, vocab_size: int) -> None:
        self._memory = [0] * capacity
        self._tables: list[list[int]] = [[] for _ in range(n_rows)]
        self._vocab_size = vocab_size

    def execute(self, batch: ScheduledBatch) -> StepResult:
        return StepResult(tuple(self._compute(row) for row in batch.rows))

    def _compute(self, row: ScheduledRow) -> int | None:
        table = self._tables[row.row]
        for start, slots in row.remaps:
            table[start : start + slots.size] = slots.tolist()
        table[row.start :] = row.new_slots.tolist()
        before = self._memory[table[row.start - 1]] if row.start else chain_start(row.request)
        for slot, token in zip(table[row.start :], row.tokens[row.start :].tolist(), strict=True):
            self._memory[slot] = before = hash((before, token))
        return before % self._vocab_size if row.samples else None


def chain_start(request: GenerateRequest) -> int:
    return hash(request.namespace)


class CheckedStates:
    """A runner that keeps in each slot of states what the state there was computed from."""

    def __init__(self, runner: ChainRunner | FakeRunner) -> None:
        self._runner = runner
        self.memory: dict[int, tuple[object, ...]] = {}

    def execute(self, batch: ScheduledBatch) -> StepResult:
        if batch.states is not None:
            sources, slots = (each.tolist() for each in batch.states)
            there = [() if source == EMPTY else self.memory[source] for source in sources]
            self.memory |= dict(zip(slots, there, strict=True))
        for row in batch.rows:
            assert row.state is not None
            path = row.request.namespace, *row.tokens.tolist()
            found, wanted = self.memory[row.state], path[: row.start + 1] if row.start else ()
            assert found == wanted, f"a state after {len(found)} tokens, not {len(wanted)}"
            self.memory[row.state] = path
            its = *row.checkpoints, *row.spares
            assert all(row.start < end <= row.stop for end, _ in its)
            assert len(dict(its)) == len(its)
            self.memory |= {copy: path[: end + 1] for end, copy in its}
        copies = [copy for row in batch.rows for _, copy in (*row.checkpoints, *row.spares)]
        assert len({*copies, *(row.state for row in batch.rows)}) == len(batch.rows) + len(copies)
        return self._runner.execute(batch)


class Bench:
    """An engine core over a FakeRunner or a ChainRunner, with its parts in reach."""

    def __init__(
        self,
        capacity: int = 64,
        *,
        page_size: int = 1,
        policy: SchedulePolicy = "lpm",
        budget: int = 16,
        max_running: int = 8,
        conservativeness: float = 0.0,
        enabled: bool = True,
        vocab_size: int = VOCAB,
        max_wait_admissions: int = 1_000,
        preemption_threshold: int = 1,
        seed: int = 0,
        chain: bool = False,
        reserve: int = 0,
        sink: EventSink = lambda _: None,
        clock: Clock | None = None,
        jump_forward: bool = True,
        pin_budget: int = 0,
        windows: WindowSize | None = None,
        states: int = 0,
        checkpoint_interval: int = 0,
        drafts: Sequence[DraftSource] = (),
        overlap: bool = False,
    ) -> None:
        self.cache = RadixCache(
            capacity,
            page_size,
            enabled=enabled,
            pin_budget=pin_budget,
            reserve=reserve,
            windows=windows,
            components=[partial(StateSlots, states)] if states else (),
        )
        self.scheduler = Scheduler(
            WaitingRoom(self.cache, make_order(policy, seed), max_wait_admissions),
            chunked_prefill_size=budget,
            max_running_requests=max_running,
            schedule_conservativeness=conservativeness,
            preemption_threshold=preemption_threshold,
            sink=sink,
            clock=clock,
            checkpoint_interval=checkpoint_interval,
            drafting=Drafting(drafts, 8) if drafts else None,
        )
        sizes = capacity, max_running, vocab_size
        self.runner: ChainRunner | FakeRunner = FakeRunner(*sizes)
        if chain:
            self.runner = ChainRunner(*sizes)
        elif windows is not None:
            self.runner = FakeRunner(
                *sizes, window=windows.window, window_capacity=windows.capacity
            )
        self.chain = chain
        self.checked = CheckedStates(self.runner) if states else self.runner
        self.core = EngineCore(
            self.scheduler,
            self.cache,
            self.checked,
            byte_tokenizer(),
            masks=MaskFiller(vocab_size),
            jump_forward=jump_forward,
            launch=self.launches if overlap else None,
        )
        self.launched = self.ahead = 0
        self.flat: Callable[[ScheduledRow], bool] = lambda _: False
        self.vocab_size = vocab_size

    def launches(self, batch: ScheduledBatch) -> Callable[[], StepResult]:
        """Launch a step. flat: which rows have no token if another is launched behind them."""
        assert isinstance(self.runner, FakeRunner)
        self.launched += 1
        number, pending = self.launched, self.runner.launch(batch)

        def result() -> StepResult:
            found = pending()
            if number == self.launched:
                return found
            self.ahead += 1
            flat = [row.samples and self.flat(row) for row in batch.rows]
            tokens = [None if a else t for t, a in zip(found.tokens, flat, strict=True)]
            return replace(found, tokens=tuple(tokens), flat=frozenset(np.flatnonzero(flat)))

        return result

    def step(self) -> list[RequestOutput]:
        outputs = self.core.step()
        check(self.cache)
        return outputs

    def run(self, limit: int = 10_000) -> dict[str, RequestOutput]:
        """Step until nothing is left; a request's outputs joined, by id."""
        parts: dict[str, list[RequestOutput]] = {}
        while self.core.has_work:
            assert limit > 0, "the engine does not come to an end"
            limit -= 1
            for output in self.step():
                parts.setdefault(output.request_id, []).append(output)
        return {name: RequestOutput.joined(items) for name, items in parts.items()}

    def expected(self, request: GenerateRequest) -> list[int]:
        """The tokens the runner must give, computed without an engine."""
        if self.chain:
            return self._expected_of_chain(request)
        tokens = request.key.tolist()
        answer: list[int] = []
        while len(answer) < request.max_tokens:
            prints = fingerprints(np.array(tokens, dtype=np.int32), request.namespace)
            token = int(prints[-1]) % self.vocab_size
            tokens.append(token)
            answer.append(token)
            if token in request.stop_token_ids:
                break
        return answer

    def _expected_of_chain(self, request: GenerateRequest) -> list[int]:
        before = chain_start(request)
        for token in request.key.tolist():
            before = hash((before, token))
        answer: list[int] = []
        while len(answer) < request.max_tokens:
            answer.append(before % self.vocab_size)
            if answer[-1] in request.stop_token_ids:
                break
            before = hash((before, answer[-1]))
        return answer


def make_request(
    name: str,
    key: KeyLike,
    max_tokens: int = 4,
    *,
    params: SamplingParams | None = None,
    stop_token_ids: frozenset[int] = frozenset(),
    namespace: Namespace | None = None,
    priority: int = 0,
    tenant: str = "",
    breakpoints: tuple[Breakpoint, ...] = (),
    grammar: Grammar | None = None,
) -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        key=as_key(key),
        params=params or SamplingParams(max_tokens=max_tokens, temperature=0),
        max_tokens=max_tokens,
        seed=0,
        stop_token_ids=stop_token_ids,
        namespace=namespace or Namespace(),
        priority=priority,
        tenant=tenant,
        breakpoints=breakpoints,
        constraint=None if grammar is None else constraint(grammar),
    )
