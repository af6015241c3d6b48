"""Grammars to constraints: on a thread of their own, once each, and bounded."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from llguidance import LLMatcher, LLTokenizer

from radixlm.core.errors import EngineStoppedError, InvalidRequestError, QueueFullError
from radixlm.core.futures import fail, settle
from radixlm.core.grammar import Grammar
from radixlm.structured_output.grammar_source import GrammarError
from radixlm.structured_output.matcher import Matcher, Table, Vocabulary, compile_source, cutter
from radixlm.structured_output.trial import Trial

MAX_KEPT = 256
MAX_KEPT_CHARACTERS = 4_000_000
# One `multipleOf` may take 23 MB.
MAX_KEPT_BYTES = 256 << 20
MAX_WAITING = 256
MAX_WAITING_OF_TENANT = 128


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A grammar's Constraint, which any number of answers follow. size: bytes that it holds."""

    start: LLMatcher
    size: int

    def matcher(self) -> Matcher:
        """A matcher for a new answer. O(size of the grammar), some microseconds."""
        return Matcher(self.start.deep_copy())


class Compiler:
    """Compiles grammars for one tokenizer. Every method may be called from any thread.

    A thread of its own does it, one grammar after the other, tenants in turn, each tried in another
    process first (see Trial). The latest are kept, up to MAX_KEPT grammars and MAX_KEPT_BYTES of
    memory. The tokenizer's table, the thread and the process are made when the first grammar comes.

    vocab_size: the model's. eos_ids: each ends an answer where the grammar lets it.
    """

    def __init__(self, vocabulary: Vocabulary, *, vocab_size: int, eos_ids: Iterable[int]) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._eos_ids = frozenset(eos_ids)
        self._lock = threading.Lock()
        self._kept: OrderedDict[Grammar, Compiled] = OrderedDict()
        self._characters = 0
        self._bytes = 0
        self._waiting: Counter[str] = Counter()  # by tenant
        # The tenant whose turn is next comes first.
        self._lines: OrderedDict[str, deque[tuple[Grammar, Future[Compiled]]]] = OrderedDict()
        self._closed = False
        self._thread: ThreadPoolExecutor | None = None
        self._tokenizer: LLTokenizer | None = None
        self._trial: Trial | None = None

    def compile(self, grammar: Grammar) -> Compiled:
        """Blocks; never for long. Raises InvalidRequestError that names the grammar's field,
        QueueFullError, NoTrialError, EngineDeadError.
        """
        return self.submit(grammar).result()

    def submit(self, grammar: Grammar, tenant: str = "") -> Future[Compiled]:
        """The same without waiting. Itself it raises QueueFullError, EngineDeadError.

        tenant: who asks; no tenant fills the queue alone.
        """
        future: Future[Compiled] = Future()
        with self._lock:
            if self._closed:
                raise EngineStoppedError("the engine is shut down, so no grammar is compiled")
            known = self._known(grammar)
            if known is not None:
                settle(future, known)
                return future
            self._check_room(tenant)
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "radixlm-grammars")
            self._waiting[tenant] += 1
            self._lines.setdefault(tenant, deque()).append((grammar, future))
            self._thread.submit(self._take_turn)
        future.add_done_callback(partial(self._one_less, tenant))
        return future

    def close(self) -> None:
        """End the thread and the process; grammars that wait are given up, new ones refused."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
            given_up = [future for line in self._lines.values() for _, future in line]
            self._lines.clear()
        for future in given_up:
            future.cancel()
        if thread is not None:
            thread.shutdown(cancel_futures=True)
        if self._trial is not None:
            self._trial.close()

    def _check_room(self, tenant: str) -> None:
        waiting, own = self._waiting.total(), self._waiting[tenant]
        if waiting >= MAX_WAITING or own >= MAX_WAITING_OF_TENANT:
            raise QueueFullError(
                f"{waiting} grammars wait to be compiled, {own} of them yours; try again later"
            )

    def _one_less(self, tenant: str, _future: Future[Compiled]) -> None:
        with self._lock:
            self._waiting -= Counter([tenant])  # drops what is 0

    def _take_turn(self) -> None:
        """Compile the grammar that is next, one of each tenant's at a time."""
        with self._lock:
            if not self._lines:
                return  # closed
            tenant, line = self._lines.popitem(last=False)
            grammar, future = line.popleft()
            if line:
                self._lines[tenant] = line
        if not future.set_running_or_notify_cancel():
            return
        try:
            settle(future, self._compile(grammar))
        except BaseException as error:  # raised to the caller that waits
            fail(future, error)

    def _known(self, grammar: Grammar) -> Compiled | None:
        found = self._kept.get(grammar)
        if found is not None:
            self._kept.move_to_end(grammar)
        return found

    def _compile(self, grammar: Grammar) -> Compiled:
        with self._lock:
            known = self._known(grammar)
        if known is not None:  # it came twice at the same time
            return known
        try:
            tokenizer, trial = self._tools()
            tried = trial.check(grammar)
            made = Compiled(compile_source(tried.source, tokenizer), tried.size)
        except GrammarError as error:
            raise InvalidRequestError(
                f"{grammar.param} can not be followed: {error}", param=grammar.param
            ) from None
        self._keep(grammar, made)
        return made

    def _tools(self) -> tuple[LLTokenizer, Trial]:
        if self._tokenizer is None or self._trial is None:
            table = Table.of(self._vocabulary, self._vocab_size, self._eos_ids)
            self._tokenizer = table.tokenizer(cutter(self._vocabulary))
            self._trial = Trial(table)
        return self._tokenizer, self._trial

    def _keep(self, grammar: Grammar, made: Compiled) -> None:
        with self._lock:
            self._kept[grammar] = made
            self._characters += len(grammar.text)
            self._bytes += made.size
            while (
                len(self._kept) > MAX_KEPT
                or self._characters > MAX_KEPT_CHARACTERS
                or self._bytes > MAX_KEPT_BYTES
            ):
                gone, compiled = self._kept.popitem(last=False)
                self._characters -= len(gone.text)
                self._bytes -= compiled.size
