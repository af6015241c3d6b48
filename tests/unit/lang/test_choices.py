"""How the best choice is found, on log-probabilities written by hand."""

from __future__ import annotations

import pytest

from radixlm.lang.choices import (
    greedy_token_selection,
    token_length_normalized,
    tokens_after,
    unconditional_likelihood_normalized,
)


def tokens(*logprobs):
    return [(logprob, place, "t") for place, logprob in enumerate(logprobs)]


def decide(method, *choices, alone=None):
    names = [chr(ord("a") + place) for place in range(len(choices))]
    return method(
        choices=names,
        normalized_prompt_logprobs=[sum(t[0] for t in c) / len(c) for c in choices],
        input_token_logprobs=list(choices),
        output_token_logprobs=[[] for _ in choices],
        unconditional_token_logprobs=alone,
    )


def test_the_mean_counts_not_the_sum():
    decision = decide(token_length_normalized, tokens(-1.0), tokens(-0.5, -0.6, -0.7))
    assert decision.decision == "b"
    assert decision.meta_info["normalized_prompt_logprobs"] == pytest.approx([-1.0, -0.6])


def test_greedy_goes_token_by_token():
    first, second = tokens(-0.1, -9.0), tokens(-0.2, -0.1)
    assert decide(greedy_token_selection, first, second).decision == "a"
    assert decide(token_length_normalized, first, second).decision == "b"


def test_greedy_with_one_that_is_the_beginning_of_another():
    short, long = tokens(-0.1), tokens(-0.1, -3.0)
    decision = decide(greedy_token_selection, long, short)
    assert decision.decision == "b"
    assert decision.meta_info["greedy_logprob_matrix"] == [[-0.1, -3.0], [-0.1, -0.1]]
    assert decide(greedy_token_selection, tokens(-0.1, -0.05), short).decision == "a"


def test_what_is_likely_anyway_wins_less():
    frequent, rare = tokens(-1.0, -1.0), tokens(-2.0, -2.0)
    alone = [tokens(None, -0.5), tokens(None, -9.0)]
    method = unconditional_likelihood_normalized
    assert method.requires_unconditional_logprobs
    decision = decide(method, frequent, rare, alone=alone)
    assert decision.decision == "b"
    assert decision.meta_info["normalized_unconditional_prompt_logprobs"] == [-0.75, 2.5]
    with pytest.raises(ValueError, match="unconditional log-probabilities"):
        decide(method, frequent, rare)


def test_tokens_of_the_prompt_alone_are_left_out():
    base = [(None, 1, "a"), (-1.0, 2, " ")]
    assert tokens_after(base, [(None, 1, "a"), (-1.0, 2, " "), (-2.0, 3, "x")]) == [(-2.0, 3, "x")]
    assert tokens_after(base, [(None, 1, "a"), (-2.0, 4, " x")]) == [(-2.0, 4, " x")]
