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

    def check_prompt(self, key: Key) -> None:
        """Raise RequestTooLargeError when there is no room for an answer, InvalidRequestError for
        token ids that the model does not have.
        """
        self._check_id("prompt", int(key.max()))
        if key.size >= self.longest:
            raise RequestTooLargeError(
                f"the prompt has {key.size} tokens, but {self._limit()}; "
                f"shorten the prompt to at most {self.longest - 1}",
                param="prompt",
            )

    def resolve_max_tokens(self, key: Key, params: SamplingParams) -> int:
        """How many tokens the answer may have: max_tokens, or all the room there is.

        Raises RequestTooLargeError with the numbers when it can never fit, InvalidRequestError
        for token ids that the model does not have.
        """
        self.check_prompt(key)
        self._check_id("logit_bias", max(params.logit_bias, default=0))
        self._check_id("stop_token_ids", max(params.stop_token_ids, default=0))
        room = self.longest - key.size
        if params.max_tokens is None:
            return room
        if params.max_tokens > room:
            raise RequestTooLargeError(
                f"the prompt's {key.size} tokens and max_tokens {params.max_tokens} make "
                f"{key.size + params.max_tokens}, but {self._limit()}; "
                f"set max_tokens to at most {room} or shorten the prompt",
                param="max_tokens",
            )
        return params.max_tokens

    def _limit(self) -> str:
        if self.capacity < self.context_length:
            return f"the KV pool holds {self.capacity} (see --kv-tokens, --max-pinned-tokens)"
        return f"the model's context is {self.context_length}"

    def _check_id(self, param: str, largest: int) -> None:
        if largest >= self.vocab_size:
            raise InvalidRequestError(
                f"{param} holds token id {largest}, the model's ids end at {self.vocab_size - 1}",
                param=param,
            )
