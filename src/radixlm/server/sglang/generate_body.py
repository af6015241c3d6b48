"""The bodies of SGLang's native routes, and what they mean to the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from radixlm.core.errors import InvalidRequestError, wrong
from radixlm.core.keys import Key
from radixlm.core.sampling import SamplingParams
from radixlm.server.bodies import protocol
from radixlm.server.http.body import Body, ListOf, renamed

DEFAULT_NEW_TOKENS = 128
MAX_RID_LENGTH = 256

# What the engine calls otherwise.
_NAMES: Mapping[str, str] = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "logprobs": "top_logprobs_num",
    "prompt_logprobs": "top_logprobs_num",
}

T = TypeVar("T")


class NativeParams(protocol.SamplingFields):
    """`sampling_params` of /generate.

    Source: https://docs.sglang.ai/basic_usage/sampling_params.html. Null for max_new_tokens is as
    much as fits; 0 computes the prompt and no more. sampling_seed: another name of seed.
    """

    max_new_tokens: int | None = DEFAULT_NEW_TOKENS
    min_new_tokens: int | None = None
    seed: int | None = None
    sampling_seed: int | None = None

    @property
    def prompt_only(self) -> bool:
        return self.max_new_tokens == 0

    def to_params(self, room: int, *, top: int | None, start: int) -> SamplingParams:
        """The engine's parameters. Raises InvalidRequestError that names the engine's field.

        room: tokens that fit after the prompt; the default shrinks to it.
        top: how many of the best to give with each log-probability, None for no
        log-probabilities. start: where in the prompt they begin, -1 for the answer's only.
        """
        limit, least = self.max_new_tokens, self.min_new_tokens or 0
        if "max_new_tokens" not in self.model_fields_set:
            limit = min(DEFAULT_NEW_TOKENS, max(room, 1))
        if self.prompt_only:
            limit = protocol.sampled_for_nothing(least)
        of_prompt = top is not None and start >= 0
        return self.sampling(
            max_tokens=limit,
            min_tokens=least,
            seed=self.seed if self.sampling_seed is None else self.sampling_seed,
            logprobs=top,
            prompt_logprobs=top if of_prompt else None,
            logprob_start_len=start if of_prompt else 0,
        )


class OfPrompt(NamedTuple):
    """The request for one of the prompts.

    start: where its log-probabilities begin, -1 for the answer's only.
    prompt_only: nothing is to be generated.
    """

    params: SamplingParams
    n: int
    start: int
    prompt_only: bool


class GenerateBody(protocol.CacheParams):
    """POST /generate. Source: https://docs.sglang.ai/basic_usage/native_api.html."""

    model: str | None = None
    text: str | ListOf[str] | None = None
    input_ids: ListOf[int] | ListOf[ListOf[int]] | None = None
    sampling_params: NativeParams | ListOf[NativeParams] | None = None
    stream: bool | None = None
    return_logprob: bool | ListOf[bool] | None = None
    logprob_start_len: int | ListOf[int] | None = None
    top_logprobs_num: int | ListOf[int] | None = None
    return_text_in_logprobs: bool | None = None
    rid: str | ListOf[str] | None = None

    @property
    def prompt_field(self) -> str:
        return "input_ids" if self.text is None else "text"

    @property
    def batched(self) -> bool:
        """Whether prompts came as a list, so that answers go as one."""
        if self.text is not None:
            return not isinstance(self.text, str)
        return isinstance(self.input_ids, list) and not isinstance(self.input_ids[0], int)

    def to_prompts(self) -> list[str | list[int]]:
        """One entry per prompt. Raises InvalidRequestError unless there is one."""
        if self.text is not None and self.input_ids is not None:
            raise InvalidRequestError("give text or input_ids, not both", param="input_ids")
        prompt = self.input_ids if self.text is None else self.text
        if prompt is None:
            raise InvalidRequestError("give text or input_ids", param="text")
        return protocol.to_prompts(prompt, self.prompt_field)

    def each_prompt(self, keys: Sequence[Key], longest: int) -> list[OfPrompt]:
        """The request for each prompt. Raises InvalidRequestError.

        longest: most tokens of prompt and answer.
        """
        count = len(keys)
        each = spread(self.sampling_params, count, NativeParams(), "sampling_params")
        for place, own in enumerate(each):
            if (own.n or 1) != (each[0].n or 1):
                raise wrong(f"sampling_params[{place}].n", "must be that of the others")
        wanted = spread(self.return_logprob, count, False, "return_logprob")
        starts = self._starts(keys, each, wanted)
        tops = spread(self.top_logprobs_num, count, 0, "top_logprobs_num")
        if self.return_logprob is None and any(tops):
            raise wrong("top_logprobs_num", "needs return_logprob to be true")
        made = []
        for place, own in enumerate(each):
            top = tops[place] if wanted[place] else None
            where = f"[{place}]" if isinstance(self.sampling_params, list) else ""
            if own.seed is not None and own.sampling_seed not in (None, own.seed):
                raise InvalidRequestError(
                    f"sampling_seed is {own.sampling_seed}, but seed is {own.seed}",
                    param=f"sampling_params{where}.sampling_seed",
                )
            seed = "seed" if own.sampling_seed is None else "sampling_seed"
            try:
                params = own.to_params(longest - keys[place].size, top=top, start=starts[place])
            except InvalidRequestError as error:
                raise renamed(error, self.names(where, seed)) from None
            made.append(OfPrompt(params, own.n or 1, starts[place], own.prompt_only))
        return made

    def _starts(
        self, keys: Sequence[Key], each: Sequence[NativeParams], wanted: Sequence[bool]
    ) -> list[int]:
        """The positions where each prompt's log-probabilities begin, -1 for the answer's only.

        Unless it is given, that is the prompt's beginning where there is no answer: SGLang's
        frontend asks in this way for the choices without the prompt.
        """
        if self.logprob_start_len is None:
            pairs = zip(wanted, each, strict=True)
            return [0 if scored and own.prompt_only else -1 for scored, own in pairs]
        name = "logprob_start_len"
        starts = spread(self.logprob_start_len, len(keys), -1, name)
        for start, key in zip(starts, keys, strict=True):
            if not -1 <= start <= key.size:
                places = f"a place in the prompt of {key.size} tokens or its end"
                raise wrong(name, f"is -1 or {places}, got {start}")
        if self.return_logprob is None and any(start >= 0 for start in starts):
            raise wrong(name, "needs return_logprob to be true")
        return starts

    def rids(self, count: int) -> str | list[str] | None:
        """The client's names. Raises InvalidRequestError."""
        given = [self.rid] if isinstance(self.rid, str) else self.rid or []
        for rid in given:
            if not 1 <= len(rid) <= MAX_RID_LENGTH:
                raise InvalidRequestError(
                    f"a rid needs 1 to {MAX_RID_LENGTH} characters, got {rid!r:.80}", param="rid"
                )
        if len(set(given)) < len(given):
            raise wrong("rid", "names two requests alike")
        if self.rid is None or isinstance(self.rid, str):
            return self.rid
        return spread(self.rid, count, "", "rid")

    def names(self, place: str = "", seed: str = "seed") -> Mapping[str, str]:
        """The request's fields, by what the pipeline and the engine call them.

        place: of the prompt's parameters among all, where there are several. seed: its field.
        """
        own = {**{name: name for name in NativeParams.model_fields}, **_NAMES, "seed": seed}
        inside = {
            name: f"sampling_params{place}.{field}" if field in NativeParams.model_fields else field
            for name, field in own.items()
        }
        return {**inside, "prompt": self.prompt_field}


class AbortBody(Body):
    """POST /abort_request."""

    rid: str | None = None
    abort_all: bool | None = None

    def check(self) -> None:
        """Raise InvalidRequestError unless it says what to abort."""
        if self.abort_all and self.rid:
            raise InvalidRequestError("give rid or abort_all, not both", param="rid")
        if not self.abort_all and not self.rid:
            raise InvalidRequestError("give rid, or abort_all as true", param="rid")


def spread(value: T | list[T] | None, count: int, default: T, param: str) -> list[T]:
    """One value for each of `count` prompts. Raises InvalidRequestError for any other number."""
    if not isinstance(value, list):
        return [default if value is None else value] * count
    if len(value) != count:
        raise wrong(param, f"holds {len(value)} of {count} entries, one for each prompt")
    return value
