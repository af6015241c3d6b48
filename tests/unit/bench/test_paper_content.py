"""Content of the paper's workloads as tokens and as text: one stands for the other."""

from __future__ import annotations

import pytest

from radixlm.bench.frontend_programs import as_text, retold, round_trip_tokens
from radixlm.bench.programs import Draw
from radixlm.bench.workloads import TreeOfThought
from radixlm.core.errors import ConfigError
from radixlm.text.tokenizer import Tokenizer
from tests.engines import byte_tokenizer
from tests.text_samples import byte_level


def test_drawn_tokens_come_back_from_their_text() -> None:
    tokenizer = byte_tokenizer()
    tokens = round_trip_tokens(tokenizer, tokenizer.vocab_size)
    drawn = Draw(tokens, 3).tokens(500)
    assert len(set(drawn)) > 50
    assert tokenizer.encode(tokenizer.decode(drawn)).tolist() == drawn
    assert retold(drawn, tokenizer) == drawn


def test_tokens_that_merge_with_themselves_and_special_ones_are_left_out() -> None:
    tokenizer = Tokenizer(byte_level(), {})
    tokens = round_trip_tokens(tokenizer, tokenizer.vocab_size)
    assert not tokenizer.special_ids & set(tokens)
    for token in tokens:
        text = tokenizer.token_text(token)
        assert tokenizer.encode_after(text + text).tolist() == [token, token]


def test_a_tokenizer_without_such_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="no token that is tokenized as itself"):
        round_trip_tokens(byte_tokenizer(), 0)


def test_lists_of_tokens_become_text_however_deep() -> None:
    tokenizer = byte_tokenizer()
    shape = TreeOfThought(root=4, branching=2, depth=1, out=5, judge=3, verdict=1)
    [call] = shape.calls(Draw(round_trip_tokens(tokenizer, 256), 0), 1.0)
    said = as_text(call, tokenizer)
    assert said["root"] == tokenizer.decode(call["root"])
    assert [[seed for seed, _ in level] for level in said["levels"]] == [
        [seed for seed, _ in level] for level in call["levels"]
    ]
    assert all(len(text) == 3 for _, text in said["levels"][0])
