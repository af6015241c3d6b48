"""What the language asks of whatever runs the model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from radixlm.lang.choices import Tokens
from radixlm.lang.params import Params
from radixlm.lang.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Piece:
    """New text and tokens of an answer. meta: what is known of the answer so far. cut: a stop ended
    the text, so the tokens may go on behind it.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    meta: Mapping[str, Any] | None = None
    cut: bool = False


class Scores(NamedTuple):
    """Each choice's tokens behind the prompt, and on their own if that was asked for. A token that
    the choice shares with the prompt's last text is the choice's.
    """

    tokens: list[Tokens]
    alone: list[Tokens] | None


class Session(Protocol):
    """A backend in use, on one event loop. Whatever is closed or cancelled half way is ended at the
    backend too. Methods raise InvalidRequestError for what the program asks wrongly, and other
    RadixLMErrors.

    shares_in_flight: requests that come together compute what they share once by themselves.
    answers_turns: it answers the messages before an assistant's, not a text. Then nothing can be
        scored, and several answers in one message need speculation.
    calls_cost: each call takes long or is paid for, so several answers may be had from one.
    """

    shares_in_flight: bool
    answers_turns: bool
    calls_cost: bool

    def begin(self) -> Transcript:
        """A transcript that says nothing yet."""
        ...

    def answer(
        self, said: Transcript, params: Params, *, stream: bool
    ) -> AsyncGenerator[Piece, None]:
        """One answer, as it comes if `stream`, else in few pieces. `params.n` is for the caller."""
        ...

    async def compute(self, said: Transcript) -> None:
        """Have this in the cache."""
        ...

    async def score(self, said: Transcript, choices: Sequence[str], *, alone: bool) -> Scores:
        """Log-probabilities of each choice as the text that comes next."""
        ...


class Backend(Protocol):
    """Where programs run. Used from any thread."""

    def session(self) -> AbstractAsyncContextManager[Session]:
        """For one run of a program, or of a batch: open connections end with it."""
        ...

    def flush_cache(self) -> bool:
        """Drop what is cached; whether all of it went."""
        ...
