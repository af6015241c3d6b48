"""Programs on an engine in this process: their states are token ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import fields, replace
from typing import Any, Protocol, Self, cast, runtime_checkable

import numpy as np

from radixlm.core.errors import EngineDeadError
from radixlm.core.grammar import Grammar
from radixlm.core.keys import Key, common_prefix
from radixlm.core.request import FinishReason, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.lang.backend import Pieces, Scores, Session, side_by_side
from radixlm.lang.choices import Token, Tokens
from radixlm.lang.ir import Params
from radixlm.lang.transcript import Answer, Roles, TemplateRoles, Transcript, habit_of
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.detokenizer import PROMPT_TAIL, Detokenizer
from radixlm.text.native_logprobs import NativeLists
from radixlm.text.tokenizer import Tokenizer

# SGLang's names of what the engine calls otherwise.
_RENAMED = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
_SAMPLING = {entry.name for entry in fields(SamplingParams)} - {"logprob_start_len"}


@runtime_checkable
class AnyEngine(Protocol):
    """An engine as radixlm.Engine and radixlm.AsyncEngine both are. limits: see engine.Limits,
    which would take programs on a server a fifth of a second to import.
    """

    info: Any
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None

    @property
    def limits(self) -> Any: ...
    def stream(
        self, prompt: Key, params: SamplingParams, /
    ) -> AsyncGenerator[RequestOutput, None]: ...

    def flush_cache(self) -> int | Coroutine[Any, Any, bool]: ...


class TokenTranscript(Transcript):
    """A transcript that is token ids, so that no text is tokenized twice.

    Texts that stand together are tokenized as one, when the model is asked next. What the model
    said stays the tokens it said. So a token may reach from one text of the program into the next,
    but never across a seam between a text and an answer:

        s += "Name" + ":"    gen("name")    "\\n"   "Age:"
        '--- one text ---'  |-- tokens --|  '- one text -'      | seam

    Where the model was asked meanwhile (a fork, a select), the last token of the text before is
    taken back and tokenized together with what follows: "do" and "g" become "dog".

    _pending: text that is not tokenized yet. _open: the last token is of a text.
    """

    def __init__(self, roles: Roles, tokenizer: Tokenizer) -> None:
        super().__init__(roles)
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._pending = ""
        self._open = False

    def write(self, text: str) -> None:
        super().write(text)
        self._pending += text

    def take(self, answer: Answer) -> None:
        super().take(answer)
        kept, length = len(answer.token_ids), len(answer.text)
        if answer.cut:
            kept, length = self._within(answer.token_ids, length)
        self._settle()
        self._ids += answer.token_ids[:kept]
        self._open = False
        self._pending = answer.text[length:]

    def copy(self) -> Self:
        self._settle()
        twin = super().copy()
        twin._ids = list(self._ids)
        return twin

    def key(self) -> Key:
        """(n,) int32 ids of everything so far."""
        self._settle()
        return np.array(self._ids, dtype=np.int32)

    def key_with(self, text: str) -> Key:
        """The key as if the program wrote this text too."""
        branch = self.copy()
        branch.write(text)
        return branch.key()

    def _settle(self) -> None:
        text, self._pending = self._pending, ""
        if not text:
            return
        if self._ids:
            text = self._taken_back() + text
            self._ids += self._tokenizer.encode_after(text).tolist()
        else:
            self._ids = self._tokenizer.encode(text).tolist()
        self._open = True

    def _taken_back(self) -> str:
        """The text of the last token, which is removed; nothing where it has to stay."""
        token = self._ids[-1]
        if not self._open or len(self._ids) == 1 or token in self._tokenizer.special_ids:
            return ""
        text = self._tokenizer.token_text(token)
        if "\ufffd" in text or self._tokenizer.encode_after(text).tolist() != [token]:
            return ""
        self._ids.pop()
        return text

    def _within(self, tokens: Sequence[int], length: int) -> tuple[int, int]:
        """How many of the tokens are within `length` characters, and how many characters they are.

        A stop may end an answer in the middle of a token: the rest of the text is text then.
        """
        decoded = Detokenizer(self._tokenizer, prompt_tail=self._ids[-PROMPT_TAIL:])
        kept = kept_length = total = 0
        for place, token in enumerate(tokens, start=1):
            total += len(decoded.push(token).text)
            if total > length:
                return kept, kept_length
            if total > kept_length:
                kept, kept_length = place, total
        return len(tokens), length


class EngineBackend:
    """Runs programs on an Engine or an AsyncEngine, which its owner closes. It is its own Session;
    transcripts are TokenTranscripts, since a session gets back what it began.
    """

    shares_in_flight = True
    answers_turns = False
    calls_cost = False

    def __init__(self, engine: AnyEngine) -> None:
        self._engine = engine
        self._roles: Roles
        if engine.chat_template is None:
            self._roles = habit_of(engine.info.name)
        else:
            tokenizer = engine.tokenizer
            given = tokenizer.decode(tokenizer.encode(""), skip_special_tokens=False)
            self._roles = TemplateRoles(engine.chat_template, given)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        yield self

    def flush_cache(self) -> bool:
        """Flush the cache, not from a coroutine on an AsyncEngine: await the engine's own there."""
        dropped = self._engine.flush_cache()
        return True if isinstance(dropped, int) else asyncio.run(dropped)

    def begin(self) -> TokenTranscript:
        return TokenTranscript(self._roles, self._engine.tokenizer)

    async def answer(self, said: Transcript, params: Params, *, stream: bool) -> Pieces:
        key = cast(TokenTranscript, said).key()
        prompt_only = params.max_new_tokens == 0
        if prompt_only:
            # As on the server, a token is sampled all the same; log-probabilities are the prompt's.
            start = params.logprob_start_len or 0
            params = replace(params, max_new_tokens=1, logprob_start_len=start)
        meta = AnswerMeta(self._engine.tokenizer, params, key)
        async for output in self._outputs(key, sampling_of(params), stream=stream):
            if prompt_only:
                output = output.without_answer()
            tokens = output.token_ids
            if isinstance(output.matched_stop, int):
                tokens = tokens[:-1]
            cut = isinstance(output.matched_stop, str)
            yield Answer(output.text, meta.after(output), tokens, cut)

    async def compute(self, said: Transcript) -> None:
        key = cast(TokenTranscript, said).key()
        async for _ in self._outputs(key, SamplingParams(max_tokens=1, temperature=0.0)):
            pass

    async def score(self, said: Transcript, choices: Sequence[str], *, alone: bool) -> Scores:
        tokens = cast(TokenTranscript, said)
        base, keys = tokens.key(), [tokens.key_with(choice) for choice in choices]
        starts = [common_prefix(base, key) for key in keys]
        scored = await side_by_side(list(map(self._score, keys, starts)))
        if not alone:
            return Scores(scored, None)
        ends = [key[start:] for key, start in zip(keys, starts, strict=True)]
        return Scores(scored, await side_by_side([self._score(end, 0) for end in ends]))

    async def _score(self, key: Key, start: int) -> Tokens:
        """Log-probabilities of the tokens from `start` on; of a first one there is none."""
        scored: list[Token] = [] if start else [self._token(int(key[0]), None)]
        if key.size > max(start, 1):
            params = SamplingParams(
                max_tokens=1, temperature=0.0, prompt_logprobs=0, logprob_start_len=max(start, 1)
            )
            async for output in self._outputs(key, params):
                scored += [self._token(each.token, each.logprob) for each in output.prompt_logprobs]
        return scored

    def _token(self, token: int, logprob: float | None) -> Token:
        return logprob, token, self._engine.tokenizer.token_text(token)

    async def _outputs(
        self, key: Key, params: SamplingParams, *, stream: bool = False
    ) -> AsyncGenerator[RequestOutput, None]:
        """The outputs as they come if `stream`, else one: what is done for each then costs once an
        answer. An answer ends where there is no more room, as a server's does.
        """
        params = self._engine.limits.fitted(key, params)
        async with aclosing(self._engine.stream(key, params)) as outputs:
            async for output in outputs if stream else _joined(outputs):
                if output.finish_reason is FinishReason.ABORT:
                    raise EngineDeadError("the request was aborted")
                yield output


async def _joined(outputs: AsyncIterator[RequestOutput]) -> AsyncGenerator[RequestOutput, None]:
    yield RequestOutput.joined([output async for output in outputs])


class AnswerMeta:
    """SGLang's `meta_info` of one answer. params: what is asked of it. key: the prompt."""

    def __init__(self, tokenizer: Tokenizer, params: Params, key: Key) -> None:
        self._native = NativeLists(
            tokenizer,
            with_text=bool(params.return_text_in_logprobs),
            with_top=bool(params.top_logprobs_num),
        )
        # The prompt's first token is listed, too, where all of it is asked for.
        first = int(key[0]) if params.logprob_start_len == 0 and key.size else None
        self._tokens = 0
        self._lists: dict[str, list[object]] = {}
        if params.return_logprob:
            self._add("input", self._native.items((), first))
            self._add("output", self._native.items(()))

    def after(self, output: RequestOutput) -> dict[str, Any]:
        self._tokens += len(output.token_ids)
        if self._lists:
            self._add("input", self._native.items(output.prompt_logprobs))
            self._add("output", self._native.items(output.logprobs))
        return {
            "id": output.request_id,
            "prompt_tokens": output.prompt_tokens,
            "completion_tokens": self._tokens,
            "cached_tokens": output.cached_tokens,
            "finish_reason": self._finish(output),
            **self._lists,
        }

    def _add(self, side: str, items: Mapping[str, Iterable[object]]) -> None:
        for kind, found in items.items():
            self._lists.setdefault(f"{side}_{kind}_logprobs", []).extend(found)

    def _finish(self, output: RequestOutput) -> dict[str, Any] | None:
        match output.finish_reason:
            case None:
                return None
            case FinishReason.LENGTH:
                return {"type": "length", "length": self._tokens}
            case reason:
                return {"type": str(reason), "matched": output.matched_stop}


def sampling_of(params: Params) -> SamplingParams:
    """The engine's parameters. Raises InvalidRequestError that names the field."""
    named = {_RENAMED.get(name, name): value for name, value in params.given().items()}
    given: dict[str, Any] = {name: named[name] for name in _SAMPLING & named.keys()}
    if params.regex is not None:
        given["grammar"] = Grammar.regex(params.regex, param="regex")
    elif params.json_schema is not None:
        given["grammar"] = Grammar.json_schema(params.json_schema, param="json_schema")
    if params.return_logprob:
        top, start = params.top_logprobs_num or 0, params.logprob_start_len
        given["logprobs"] = top
        if start is not None and start >= 0:
            given |= {"prompt_logprobs": top, "logprob_start_len": start}
    return SamplingParams(**given)
