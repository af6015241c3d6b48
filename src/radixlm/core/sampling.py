"""How a request's tokens are chosen and when it ends. Validated when made, never after.

A field is declared here alone: HTTP bodies, the schemas and the commands' options follow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, NamedTuple

from radixlm.core.errors import InvalidRequestError
from radixlm.core.grammar import Grammar

MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1_000
MAX_STOP_TOKENS = 1_024
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1_024
_MAX_INT = 2**31 - 1


class Range(NamedTuple):
    """Numbers that a field may hold, both ends among them; open_below leaves `low` out."""

    low: float
    high: float
    open_below: bool = False


def _number_field(default: Any, allowed: Range, text: str = "") -> Any:
    """A field that holds a number. text: the help of its option, where commands have one."""
    return field(default=default, metadata={"range": allowed, "help": text})


TOKEN_IDS = Range(0, _MAX_INT)
BIASES = Range(-100.0, 100.0)


class ThoughtMarks(NamedTuple):
    """How an answer's thoughts are marked, in which stop strings do not count.

    begin: what opens them, first or after spaces; "" where they are open from the start.
    ends: each is written after the one before; with the last one they are over.
    """

    begin: str
    ends: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's sampling, with the field's standard names and defaults.

    max_tokens: None means until the context or the pool ends. temperature: 0 is greedy. top_k: 0 or
    -1 means all tokens. seed: None draws one when the request is submitted. stop: text before the
    first of these strings is the answer; they are not part of it. min_tokens: neither stop strings
    nor stop tokens (end of sequence included) end it before. logprobs: None gives none; k >= 0
    gives the chosen token's and the k best. prompt_logprobs: the same for the prompt's own tokens
    (`echo`); they are computed, not cached. logprob_start_len: they are given from this position
    on, so that what lies before it may come from the cache.
    shown_special_ids: special tokens that are text even where skip_special_tokens leaves them out.
    thoughts: where stop strings do not count; None where they count from the answer's begin.
    grammar: what the whole answer must look like; None lets it be anything.

    Raises InvalidRequestError that names the field and the value.
    """

    max_tokens: int | None = _number_field(128, Range(1, _MAX_INT), "Longest answer, in tokens.")
    min_tokens: int = _number_field(0, Range(0, _MAX_INT))
    temperature: float = _number_field(
        1.0, Range(0.0, 100.0), "0 always takes the likeliest token; more is more varied."
    )
    top_p: float = _number_field(
        1.0,
        Range(0.0, 1.0, open_below=True),
        "Sample among the likeliest tokens that hold this much probability.",
    )
    top_k: int = _number_field(
        -1, Range(-1, _MAX_INT), "Sample among this many of the likeliest tokens; -1 takes all."
    )
    min_p: float = _number_field(
        0.0, Range(0.0, 1.0), "Leave out tokens less likely than this share of the likeliest one."
    )
    # Logits are divided by it: with a smaller one they would leave float32.
    repetition_penalty: float = _number_field(
        1.0, Range(0.01, 10.0), "More than 1 makes tokens that were there already less likely."
    )
    seed: int | None = _number_field(
        None, Range(-(2**63), 2**64 - 1), "The same seed gives the same answer."
    )
    presence_penalty: float = _number_field(0.0, Range(-2.0, 2.0))
    frequency_penalty: float = _number_field(0.0, Range(-2.0, 2.0))
    logprobs: int | None = _number_field(None, Range(0, MAX_LOGPROBS))
    prompt_logprobs: int | None = _number_field(None, Range(0, MAX_LOGPROBS))
    logprob_start_len: int = _number_field(0, Range(0, _MAX_INT))
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    shown_special_ids: frozenset[int] = frozenset()
    thoughts: ThoughtMarks | None = None
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", frozenset(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))
        self._check_numbers()
        self._check_stops()
        self._check_biases()
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise InvalidRequestError(
                f"grammar must be a Grammar, got {self.grammar!r:.80}", param="grammar"
            )

    def __reduce__(self) -> tuple[Callable[..., SamplingParams], tuple[Any, ...]]:
        """Reduce it as pickle keeps it; checked again where it is read."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return _restored, (values | {"logit_bias": dict(self.logit_bias)},)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def reads_tokens(self) -> bool:
        """Whether what may be drawn depends on which tokens came before: penalties."""
        penalties = self.presence_penalty, self.frequency_penalty, self.repetition_penalty
        return penalties != (0, 0, 1)

    @property
    def first_prompt_logprob(self) -> int:
        """Position of the first prompt token that is given one: none can predict token 0."""
        return max(self.logprob_start_len, 1)

    def _check_numbers(self) -> None:
        for name, (kind, allowed) in NUMBERS.items():
            value = getattr(self, name)
            if value is None and kind.endswith("None"):
                continue
            _check(name, value, allowed, whole=kind.startswith("int"))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}",
                param="min_tokens",
            )
        if self.logprob_start_len and self.prompt_logprobs is None:
            raise InvalidRequestError(
                f"logprob_start_len is {self.logprob_start_len}, but prompt_logprobs are not "
                "asked for",
                param="logprob_start_len",
            )

    def _check_stops(self) -> None:
        _few("stop", self.stop, "strings", MAX_STOP_STRINGS)
        for text in self.stop:
            if not isinstance(text, str) or not text or len(text) > MAX_STOP_LENGTH:
                raise InvalidRequestError(
                    f"each stop string needs 1 to {MAX_STOP_LENGTH} characters, got {text!r:.80}",
                    param="stop",
                )
        _few("stop_token_ids", self.stop_token_ids, "ids", MAX_STOP_TOKENS)
        for token in self.stop_token_ids:
            _check("stop_token_ids", token, TOKEN_IDS, whole=True)

    def _check_biases(self) -> None:
        _few("logit_bias", self.logit_bias, "tokens", MAX_LOGIT_BIAS)
        for token, bias in self.logit_bias.items():
            _check("logit_bias", token, TOKEN_IDS, whole=True)
            _check("logit_bias", bias, BIASES, whole=False)


def _restored(values: Mapping[str, Any]) -> SamplingParams:
    return SamplingParams(**values)


# The fields that hold numbers, each with its type as it is written above.
NUMBERS: Mapping[str, tuple[str, Range]] = MappingProxyType(
    {
        item.name: (str(item.type), item.metadata["range"])
        for item in fields(SamplingParams)
        if "range" in item.metadata
    }
)
RANGES: Mapping[str, Range] = MappingProxyType({name: held for name, (_, held) in NUMBERS.items()})


def _few(name: str, held: Collection[object], things: str, most: int) -> None:
    if len(held) > most:
        raise InvalidRequestError(
            f"{name} holds {len(held)} {things}, at most {most} are allowed", param=name
        )


def _check(name: str, value: object, allowed: Range, *, whole: bool) -> None:
    low, high, open_below = allowed
    if (
        isinstance(value, bool)
        or not isinstance(value, int if whole else int | float)
        or not low <= value <= high
        or (open_below and value == low)
    ):
        kind = "an integer" if whole else "a number"
        bounds = f"above {low} and at most {high}" if open_below else f"from {low} to {high}"
        raise InvalidRequestError(f"{name} must be {kind} {bounds}, got {value!r:.80}", param=name)
