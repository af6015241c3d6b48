"""What can ever fit. Asked when a request is submitted, so that it is never refused later."""

from __future__ import annotations

from dataclasses import dataclass

from radixlm.core.errors import InvalidRequestError, RequestTooLargeError
from radixlm.core.keys import Key
from radixlm.core.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes that a request must keep to.

    context_length: most tokens of prompt and answer together, by the model.
    capacity: slots of the KV pool, in whole pages. vocab_size: token ids are below it.
    """

    context_length: int
    capacity: int
    vocab_size: int

    @property
    def longest(self) -> int:
        """Most tokens that prompt and answer may have together."""
        return min(self.context_length, self.capacity)

    def check_prompt(self, key: Key, *, longest: int | None = None) -> None:
        """Raise RequestTooLargeError when there is no room for an answer, InvalidRequestError for
        token ids that the model does not have.

        longest: most tokens of prompt and answer, where it is not the usual.
        """
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

    def resolve_max_tokens(self, key: Key, params: SamplingParams) -> int:
        """How many tokens the answer may have: max_tokens, or all the room there is.

        Raises RequestTooLargeError with the numbers when it can never fit, InvalidRequestError
        for token ids that the model does not have.
        """
        longest = self._longest_of(params)
        self.check_prompt(key, longest=longest)
        self._check_id("logit_bias", max(params.logit_bias, default=0))
        self._check_id("stop_token_ids", max(params.stop_token_ids, default=0))
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
        """A prompt that is scored may fill the context: the one token after it is not computed
        on, so the model need not know its position.
        """
        scored = params.prompt_logprobs is not None and params.max_tokens == 1
        return min(self.context_length + scored, self.capacity)

    def _limit(self) -> str:
        """In OpenAI's and vLLM's words, which clients look for."""
        limit = f"This model's maximum context length is {self.longest} tokens"
        if self.capacity < self.context_length:
            return f"{limit}, all that the KV pool holds (see --kv-tokens, --max-pinned-tokens)."
        return f"{limit}."

    def _check_id(self, param: str, largest: int) -> None:
        if largest >= self.vocab_size:
            raise InvalidRequestError(
                f"{param} holds token id {largest}, the model's ids end at {self.vocab_size - 1}",
                param=param,
            )
