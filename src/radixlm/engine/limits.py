"""How long requests may be, and their answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from radixlm.core.errors import ConfigError, InvalidRequestError, RequestTooLargeError
from radixlm.core.keys import Key
from radixlm.core.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes that a request must keep to. context_length: of prompt and answer together.
    capacity: slots of the KV pool that one request can have, in whole pages: those that may be
    pinned are not among them. vocab_size: token ids are below it. short_length: see
    `Namespace.of_length`. Raises ConfigError where no request could keep to them.
    """

    context_length: int
    capacity: int
    vocab_size: int
    short_length: int | None = None

    def __post_init__(self) -> None:
        if self.longest < 2:
            raise ConfigError(
                f"no request fits into {self.longest} tokens, all that --context-length, "
                "--kv-tokens and --max-pinned-tokens leave for one"
            )

    @property
    def longest(self) -> int:
        """Most tokens that prompt and answer may have together."""
        return min(self.context_length, self.capacity)

    def fitted(self, key: Key, params: SamplingParams) -> SamplingParams:
        """The same with max_tokens reduced to what fits after a prompt, where anything does and
        min_tokens lets it.
        """
        room = self._longest_of(params) - key.size
        if params.max_tokens is None or not max(params.min_tokens, 1) <= room < params.max_tokens:
            return params
        return replace(params, max_tokens=room)

    def check_prompt(self, key: Key, *, longest: int | None = None) -> None:
        """Raise RequestTooLargeError without room for an answer, InvalidRequestError for an id."""
        self._check_id("prompt", int(key.max()))
        most = longest or self.longest
        if key.size >= most:
            raise RequestTooLargeError(
                f"{self._limit()} However, you requested {key.size + 1} tokens: {key.size} in the "
                "prompt and 1, at least, in the answer. Please reduce the length of the prompt to "
                f"at most {most - 1}.",
                param="prompt",
                prompt_tokens=key.size,
                longest_prompt=most - 1,
            )

    def check_text(self, characters: int, least: int, *, param: str) -> None:
        """Raise RequestTooLargeError for a text that is `least` tokens or more, where these can not
        fit: it need not be tokenized.
        """
        if least > self.longest:
            what = "prediction" if param == "prediction" else "prompt"
            raise RequestTooLargeError(
                f"{self._limit()} However, you requested {least} tokens or more: the {what} has "
                f"{characters} characters. Please reduce the length of the {what}.",
                param=param,
                prompt_tokens=least,
                longest_prompt=self.longest - 1,
            )

    def resolve_max_tokens(self, key: Key, params: SamplingParams) -> int:
        """How many tokens the answer may have: max_tokens, or all the room. Raises
        RequestTooLargeError with the numbers, InvalidRequestError for token ids that the model does
        not have.
        """
        longest = self._longest_of(params)
        self.check_prompt(key, longest=longest)
        self.check_ids(params)
        room = longest - key.size
        if params.max_tokens is None:
            return room
        if params.max_tokens > room:
            raise RequestTooLargeError(
                f"{self._limit()} However, you requested {key.size + params.max_tokens} tokens: "
                f"{key.size} in the prompt and max_tokens {params.max_tokens} in the answer. "
                f"Please reduce max_tokens to at most {room}, or the length of the prompt.",
                param="max_tokens",
            )
        return params.max_tokens

    def _longest_of(self, params: SamplingParams) -> int:
        """A scored prompt may fill the context: the token after it is not computed on."""
        scored = params.prompt_logprobs is not None and params.max_tokens == 1
        return min(self.context_length + scored, self.capacity)

    def _limit(self) -> str:
        """The error in OpenAI's and vLLM's words, which clients look for."""
        limit = f"This model's maximum context length is {self.longest} tokens"
        if self.capacity < self.context_length:
            return f"{limit}, all that the KV pool holds (see --kv-tokens, --max-pinned-tokens)."
        return f"{limit}."

    def check_prediction(self, key: Key) -> None:
        """Raise InvalidRequestError for an id that the model does not have."""
        self._check_id("prediction", int(key.max(initial=0)))

    def check_ids(self, params: SamplingParams) -> None:
        """Raise InvalidRequestError for a parameter's token ids that the model does not have."""
        self._check_id("logit_bias", max(params.logit_bias, default=0))
        self._check_id("stop_token_ids", max(params.stop_token_ids, default=0))

    def _check_id(self, param: str, largest: int) -> None:
        if largest >= self.vocab_size:
            raise InvalidRequestError(
                f"{param} holds token id {largest}, the model's ids end at {self.vocab_size - 1}",
                param=param,
            )
