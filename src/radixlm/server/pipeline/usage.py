"""How many tokens a request took, and how many of them were cached."""

from __future__ import annotations

from typing_extensions import TypedDict

from radixlm.core.misses import MissReport
from radixlm.core.request import Breakpoint, RequestOutput


class PromptTokensDetails(TypedDict):
    """cached_tokens: read from the cache. cache_write_tokens: computed, and in it from now on."""

    cached_tokens: int
    cache_write_tokens: int
    text_tokens: int
    audio_tokens: int
    image_tokens: int


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int
    text_tokens: int
    audio_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(TypedDict):
    """A prompt counts once however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class UsageMeter:
    """Adds up a request's outputs as they come.

    A prompt counts once however many choices it has; what counts as cached is what its first
    choice found, since the others share that one's own work.
    """

    def __init__(self, n: int, *, caches: bool = True) -> None:
        """n: choices for each prompt. caches: whether what is computed is cached.

        misses: by prompt, why no more of it was cached.
        """
        self._n = n
        self._caches = caches
        self._prompts: dict[int, tuple[int, int]] = {}
        self._kept: tuple[Breakpoint, ...] = ()
        self.misses: dict[int, MissReport] = {}
        self.completion_tokens = 0

    def add(self, choice: int, output: RequestOutput) -> None:
        """Count one output of a choice."""
        self.completion_tokens += len(output.token_ids)
        if choice % self._n == 0:
            if output.prompt_tokens:  # an end that came from elsewhere knows of none
                self._prompts[choice // self._n] = (output.prompt_tokens, output.cached_tokens)
            if output.miss is not None:
                self.misses[choice // self._n] = output.miss
        if not choice:
            self._kept += output.kept

    @property
    def prompt_tokens(self) -> int:
        return sum(tokens for tokens, _ in self._prompts.values())

    @property
    def cached_tokens(self) -> int:
        """How many of the prompts' tokens were cached."""
        return sum(tokens for _, tokens in self._prompts.values())

    def newly_kept(self) -> dict[float, int]:
        """How many of the first prompt's tokens were computed and are kept now, by seconds."""
        _, end = self._prompts.get(0, (0, 0))
        written: dict[float, int] = {}
        for tokens, ttl in sorted(self._kept):
            if tokens > end:
                written[ttl] = written.get(ttl, 0) + tokens - end
                end = tokens
        return written

    def as_json(self, reasoning_tokens: int = 0) -> Usage:
        """OpenAI's `usage`. reasoning_tokens: how many of the answers' tokens were thoughts.

        OpenAI gives the numbers of all kinds of tokens, those too that nothing here makes.
        """
        prompt, cached = self.prompt_tokens, self.cached_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt + self.completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": cached,
                "cache_write_tokens": prompt - cached if self._caches else 0,
                "text_tokens": prompt,
                "audio_tokens": 0,
                "image_tokens": 0,
            },
            "completion_tokens_details": {
                "reasoning_tokens": reasoning_tokens,
                "text_tokens": self.completion_tokens,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }
