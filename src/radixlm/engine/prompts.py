"""What callers may give as prompts, put into order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from radixlm.core.errors import ConfigError, InvalidKeyError, InvalidRequestError
from radixlm.core.keys import Key, KeyLike, as_key
from radixlm.core.sampling import SamplingParams
from radixlm.core.wording import counted

Prompt = str | KeyLike
Prompts = Prompt | Sequence[Prompt]


def as_list(prompts: Prompts) -> list[Prompt]:
    """One prompt becomes a list of one; a list of ints is one prompt."""
    if isinstance(prompts, str | np.ndarray):
        return [prompts]
    ids = [item for item in prompts if isinstance(item, int | np.integer)]
    if ids and len(ids) == len(prompts):
        return [[int(item) for item in ids]]
    return [_as_prompt(item) for item in prompts]


def _as_prompt(item: Prompt | int) -> Prompt:
    if isinstance(item, int | np.integer):
        raise InvalidRequestError(
            "a list of prompts holds text or lists of token ids, not both ids and prompts",
            param="prompt",
        )
    return item


def params_for(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """One for each prompt: the one given for all, or the list. Raises ConfigError."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if isinstance(params, Mapping):
        raise ConfigError(
            "sampling parameters are a SamplingParams, not a dict: SamplingParams(**params)"
        )
    if len(params) != count:
        raise ConfigError(
            f"{counted(count, 'prompt')} but {counted(len(params), 'sampling parameter')}"
        )
    return list(params)


def prompt_key(prompt: KeyLike) -> Key:
    """A prompt's ids as a key. Raises InvalidRequestError: it is the caller's input."""
    if len(prompt) == 0:
        raise InvalidRequestError("the prompt is empty; give at least one token", param="prompt")
    try:
        return as_key(prompt)
    except InvalidKeyError as error:
        raise InvalidRequestError(f"prompt: {error}", param="prompt") from None
