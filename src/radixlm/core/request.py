"""The request that comes in (GenerateRequest) and the output that goes out (RequestOutput)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radixlm.core.grammar import Constraint
from radixlm.core.keys import Key
from radixlm.core.misses import MissReport
from radixlm.core.sampling import SamplingParams


class Namespace(NamedTuple):
    """A namespace: what must match besides the tokens. Requests of different namespaces never
    share. long_rope: set where keys are turned by the factors of long requests.
    """

    adapter_id: str = ""
    cache_salt: str = ""
    extra_key: str = ""
    long_rope: str = ""

    def of_length(self, tokens: int, short_length: int | None) -> Namespace:
        """The namespace of a request that has `tokens`, prompt and answer. short_length: most of
        those whose keys turn by LongRoPE's short factors; None: all turn alike.
        """
        its = "long" if short_length is not None and tokens > short_length else ""
        return self if self.long_rope == its else self._replace(long_rope=its)

    @property
    def adapter(self) -> str:
        """The adapter's name: an id ends with a digest of its weights.

        >>> Namespace(adapter_id="fr@1f00").adapter
        'fr'
        """
        return self.adapter_id.rpartition("@")[0] or self.adapter_id

    def packed(self) -> bytes:
        """The namespace as a store on disk keeps it.

        >>> Namespace.unpacked(Namespace(cache_salt="own").packed())
        Namespace(adapter_id='', cache_salt='own', extra_key='', long_rope='')
        """
        return json.dumps(self if self.long_rope else self[:3]).encode()

    @classmethod
    def unpacked(cls, packed: bytes) -> Namespace:
        """Unpack what `packed` gave. Raises ValueError for anything else."""
        parts = json.loads(packed)
        if (
            not isinstance(parts, list)
            or len(parts) not in (3, 4)
            or any(type(part) is not str for part in parts)
        ):
            raise ValueError(f"{packed!r:.200} is no namespace")
        return cls(*parts)


class Breakpoint(NamedTuple):
    """A prefix that is to be kept: the first `tokens` of the prompt, for `ttl` seconds."""

    tokens: int
    ttl: float


class Hint(StrEnum):
    """A client's hint of what comes after a request. It binds nobody: policies that learn learn
    what it is worth.

    tool_running: the next one comes when a tool has ended. session_end, subagent_done: none comes.
    short_lived, long_lived: of no use after as long as SHORT_SECONDS, or longer. marked: what of it
    is to be kept is (see Breakpoint), for as long.
    """

    NONE = "none"
    TOOL_RUNNING = "tool_running"
    SESSION_END = "session_end"
    SUBAGENT_DONE = "subagent_done"
    SHORT_LIVED = "short_lived"
    LONG_LIVED = "long_lived"
    MARKED = "marked"

    @property
    def place(self) -> int:
        """The place of the hint among all: 0 is none."""
        return list(Hint).index(self)

    @staticmethod
    def of_seconds(seconds: float) -> Hint:
        """The hint of a time to live."""
        return Hint.SHORT_LIVED if seconds <= SHORT_SECONDS else Hint.LONG_LIVED


SHORT_SECONDS = 300.0


class Pooled(StrEnum):
    """A prompt's result that is wanted beside the first token of its answer: the state that the
    model makes of its last token or its first, the mean of all tokens' states, or the scores that a
    head makes of the last one.
    """

    NOTHING = "nothing"
    LAST = "last"
    FIRST = "first"
    MEAN = "mean"
    SCORES = "scores"

    def __bool__(self) -> bool:
        return self is not Pooled.NOTHING

    @property
    def anew(self) -> bool:
        """Whether tokens before the last are needed, so that none may come from the cache."""
        return self in (Pooled.FIRST, Pooled.MEAN)


@dataclass(frozen=True, slots=True, eq=False)
class GenerateRequest:
    """One prompt to be continued: the same value from the API to the scheduler.

    key: (prompt_tokens,) int32, at least one id. tenant: on whose behalf; they are served in turn.
    priority: higher is more important, to the schedule and the eviction policies of that name.
    breakpoints: what of the prompt is to be kept once it is computed, as far as there is room.
    hint: what is known of what comes after it. prediction: what much of its answer may be.
    trace: W3C's headers, by which the span is named that it is part of. pooled: what is
    wanted of the prompt beside the first token of the answer. rank: which of several replicas
    computes it, modulo their number; None is any.

    Set by the engine's input processor: max_tokens, within the context and the pool; seed, so that
    a retracted request draws the same numbers again; stop_token_ids, with the end-of-sequence ids
    unless they are to be ignored; constraint, the parameters' grammar, compiled.
    """

    request_id: str
    key: Key
    params: SamplingParams
    max_tokens: int = 0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    namespace: Namespace = field(default_factory=Namespace)
    priority: int = 0
    tenant: str = ""
    breakpoints: tuple[Breakpoint, ...] = ()
    hint: Hint = Hint.NONE
    prediction: Key | None = None
    constraint: Constraint | None = None
    trace: Mapping[str, str] = field(default_factory=dict)
    pooled: Pooled = Pooled.NOTHING
    rank: int | None = None


class FinishReason(StrEnum):
    """The reason why a request ended, in OpenAI's words where it has them."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """log p of one token, and of the most likely ones, best first, from the unfiltered softmax."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Piece(NamedTuple):
    """Tokens of an answer, the text that came with them, and their log-probabilities, if any."""

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


NOTHING = Piece((), "")


@dataclass(slots=True)  # frozen ones take 1 us more to make, each row of each step
class RequestOutput:
    """The new part of one request since its last output; `joined` puts a request's outputs
    together.

    token_ids: a stop token that ended the request is the last of them. logprobs: one per new token
    when asked for, else empty. prompt_logprobs: on the first output only, one per prompt token
    after the first, or from the parameters' logprob_start_len on. matched_stop: the stop string or
    stop token id that ended it. drafts: by source, the tokens that were drafted for it so far, and
    those that were right. cached_tokens: prompt tokens that came from the cache when the request
    was first admitted.
    On the output with the first token only: kept, its breakpoints that are kept now; miss, why no
    more of the prompt was cached; queued, seconds from its arrival until it was first admitted.
    Where another replica goes on with the answer, its first output has a miss of that one.
    hidden: (width,) float32, what a pooled request asked for: a state after the last norm, scores.
    pieces: of a joined one, the tokens and the characters of each output that is in it.
    """

    request_id: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    matched_stop: str | int | None = None
    drafts: Mapping[str, tuple[int, int]] = field(default_factory=dict, compare=False)
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None
    kept: tuple[Breakpoint, ...] = ()
    miss: MissReport | None = None
    queued: float | None = field(default=None, compare=False)
    hidden: npt.NDArray[np.float32] | None = field(default=None, repr=False, compare=False)
    pieces: tuple[tuple[int, int], ...] = field(default=(), repr=False, compare=False)

    def as_it_came(self) -> Iterator[Piece]:
        """Each output that was joined to this one."""
        first = begin = 0
        for tokens, characters in self._pieces():
            last, end = first + tokens, begin + characters
            yield Piece(self.token_ids[first:last], self.text[begin:end], self.logprobs[first:last])
            first, begin = last, end

    def _pieces(self) -> tuple[tuple[int, int], ...]:
        return self.pieces or ((len(self.token_ids), len(self.text)),)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def without_answer(self) -> RequestOutput:
        """The output that is left when only the prompt was wanted: it had to sample a token to
        end.
        """
        stopped = self.finish_reason is FinishReason.STOP
        return replace(
            self,
            text="",
            token_ids=(),
            logprobs=(),
            finish_reason=FinishReason.LENGTH if stopped else self.finish_reason,
            matched_stop=None,
            pieces=(),
        )

    @staticmethod
    def joined(outputs: Iterable[RequestOutput]) -> RequestOutput:
        """Join one request's outputs, in order, into one that holds everything."""
        parts = list(outputs)
        if not parts:
            raise ValueError("no outputs to join")
        return replace(
            parts[-1],
            text="".join(part.text for part in parts),
            token_ids=tuple(token for part in parts for token in part.token_ids),
            logprobs=tuple(entry for part in parts for entry in part.logprobs),
            prompt_logprobs=parts[0].prompt_logprobs,
            kept=tuple(entry for part in parts for entry in part.kept),
            miss=next((part.miss for part in reversed(parts) if part.miss is not None), None),
            queued=next((part.queued for part in parts if part.queued is not None), None),
            hidden=next((part.hidden for part in parts if part.hidden is not None), None),
            pieces=tuple(piece for part in parts for piece in part._pieces()),
        )
