"""How `select` finds the best of its choices.

Names and arguments are SGLang's, so that a method written for it works here. A token is
(log-probability, id, text or None); the first token of a text that nothing comes before has None
in place of its log-probability.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

Token = Sequence[Any]
Tokens = Sequence[Token]


@dataclass(frozen=True, slots=True)
class ChoicesDecision:
    """decision: one of the choices. meta_info: what it was made from."""

    decision: str
    meta_info: dict[str, Any] | None = None


class ChoicesSamplingMethod(ABC):
    """Decides from the tokens of each choice."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """Whether the choices must be scored without the prompt too, which costs as much again."""
        return False

    @abstractmethod
    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[Tokens],
        output_token_logprobs: list[Tokens],
        unconditional_token_logprobs: list[Tokens] | None = None,
    ) -> ChoicesDecision: ...


class TokenLengthNormalized(ChoicesSamplingMethod):
    """The highest mean log-probability of a token."""

    def __call__(self, *, choices: list[str], **scores: Any) -> ChoicesDecision:
        means = scores["normalized_prompt_logprobs"]
        return ChoicesDecision(choices[_best(means)], _scores_of(scores))


class GreedyTokenSelection(ChoicesSamplingMethod):
    """Token by token, those that are the most likely stay. A choice that is over stays in with the
    mean of its tokens, so that one may be the beginning of another.
    """

    def __call__(self, *, choices: list[str], **scores: Any) -> ChoicesDecision:
        rows = [_logprobs(tokens) for tokens in scores["input_token_logprobs"]]
        longest = max(map(len, rows))
        rows = [row + [fmean(row)] * (longest - len(row)) for row in rows]
        left = list(range(len(rows)))
        for place in range(longest):
            most = max(rows[choice][place] for choice in left)
            left = [choice for choice in left if rows[choice][place] == most]
        return ChoicesDecision(
            choices[left[0]], {**_scores_of(scores), "greedy_logprob_matrix": rows}
        )


class UnconditionalLikelihoodNormalized(ChoicesSamplingMethod):
    """The highest mean of how much more likely the prompt makes a token. So a choice does not win
    only because it is a frequent word.
    """

    @property
    def requires_unconditional_logprobs(self) -> bool:
        return True

    def __call__(self, *, choices: list[str], **scores: Any) -> ChoicesDecision:
        unconditional = scores["unconditional_token_logprobs"]
        if unconditional is None:
            raise ValueError("this method needs the choices' unconditional log-probabilities")
        pairs = zip(scores["input_token_logprobs"], unconditional, strict=True)
        means = [_gain(with_prompt, alone) for with_prompt, alone in pairs]
        meta = {
            **_scores_of(scores),
            "unconditional_token_logprobs": unconditional,
            "normalized_unconditional_prompt_logprobs": means,
        }
        return ChoicesDecision(choices[_best(means)], meta)


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()


def tokens_after(base: Tokens, entries: Tokens) -> Tokens:
    """The tokens of a prompt with a choice that are not as in the prompt alone."""
    pairs = enumerate(zip(base, entries, strict=False))
    shared = next((place for place, (a, b) in pairs if a[1:] != b[1:]), len(base))
    return entries[shared:]


def mean_logprob(tokens: Tokens) -> float:
    """The mean log-probability of the tokens that have one."""
    return fmean([float(token[0]) for token in tokens if token[0] is not None] or [0.0])


def _logprobs(tokens: Tokens) -> list[float]:
    return [float(token[0] or 0.0) for token in tokens]


def _gain(with_prompt: Tokens, alone: Tokens) -> float:
    pairs = zip(_logprobs(with_prompt), _logprobs(alone), strict=True)
    return fmean(likely - before for likely, before in pairs)


def _best(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _scores_of(scores: Mapping[str, Any]) -> dict[str, Any]:
    names = ("normalized_prompt_logprobs", "input_token_logprobs", "output_token_logprobs")
    return {name: scores[name] for name in names}
