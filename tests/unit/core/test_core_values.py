"""Values check themselves when they are made."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import numpy as np
import pytest

from radixlm.core.config import EngineConfig
from radixlm.core.errors import (
    ConfigError,
    InvalidKeyError,
    InvalidRequestError,
    RequestTooLargeError,
)
from radixlm.core.grammar import MAX_GRAMMAR_LENGTH, Grammar
from radixlm.core.keys import as_key, common_prefix
from radixlm.core.request import FinishReason, GenerateRequest, Namespace, Piece, RequestOutput
from radixlm.core.sampling import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "1"),
        ("temperature", 10**400),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("min_tokens", -1),
        ("min_tokens", 999),
        ("presence_penalty", 2.5),
        ("frequency_penalty", math.nan),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-40),  # logits / 1e-40 leaves float32, which ended the engine
        ("logprobs", 21),
        ("prompt_logprobs", -1),
        ("seed", 2**64),
        ("stop", ("",)),
        ("stop", tuple("x" for _ in range(65))),
        ("stop", ("x" * 1_001,)),
        ("stop_token_ids", frozenset({-1})),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", dict.fromkeys(range(1_025), 0.0)),
        ("grammar", "[0-9]+"),
    ],
)
def test_a_bad_parameter_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize("text", ["", "x" * (MAX_GRAMMAR_LENGTH + 1), 7])
def test_a_grammar_is_bounded_and_names_its_field(text: Any) -> None:
    with pytest.raises(InvalidRequestError, match="ebnf") as caught:
        Grammar.lark(text, param="ebnf")
    assert caught.value.param == "ebnf"


def test_a_schema_keeps_the_order_of_its_properties() -> None:
    schema = {"properties": {"b": {}, "a": {}}, "type": "object"}
    assert Grammar.json_schema(schema).text == '{"properties":{"b":{},"a":{}},"type":"object"}'


def test_a_schema_that_is_no_json_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no JSON"):
        Grammar.json_schema({"const": math.nan})


def test_stop_may_be_one_string() -> None:
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "at least one token"),
        ([1, -2], "got -2"),
        ([2**31], "2147483648 does not fit"),
        ([1.5], "float64"),
        ([[1, 2]], "shape"),
        (["a"], "integers"),
        ([[1], [2, 3]], "one row"),
    ],
)
def test_a_bad_key_is_refused(tokens: Any, message: str) -> None:
    with pytest.raises(InvalidKeyError, match=message):
        as_key(tokens)


def test_a_key_is_not_copied() -> None:
    key = np.arange(5, dtype=np.int32)
    assert np.shares_memory(as_key(key), key)
    assert as_key(key[::2]).tolist() == [0, 2, 4]


def test_common_prefix() -> None:
    assert common_prefix(as_key([1, 2, 3]), as_key([1, 2, 3, 4])) == 3
    assert common_prefix(as_key([5]), as_key([6])) == 0


@pytest.mark.parametrize(
    "flags",
    [
        {"page_size": 3},
        {"page_size": 0},
        {"kv_tokens": 1},
        {"chunked_prefill_size": 0},
        {"dtype": "int8"},
        {"kv_cache_dtype": "int4"},
        {"schedule_policy": "best"},
        {"schedule_conservativeness": -1.0},
        {"pagesize": 4},
    ],
)
def test_a_bad_flag_is_refused(flags: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EngineConfig.from_flags(**flags)


def test_outputs_join() -> None:
    first = RequestOutput("r", "ab", (1, 2), prompt_tokens=3, cached_tokens=1)
    last = RequestOutput("r", "c", (3,), 3, 1, FinishReason.LENGTH)
    joined = RequestOutput.joined([first, last])
    assert (joined.text, joined.token_ids, joined.finished) == ("abc", (1, 2, 3), True)
    again = RequestOutput.joined([joined, last])
    assert list(first.as_it_came()) == [Piece(first.token_ids, first.text)]
    assert list(again.as_it_came()) == [
        Piece(part.token_ids, part.text) for part in (first, last, last)
    ]


def test_requests_and_errors_survive_pickling() -> None:
    params = SamplingParams(temperature=0.5, logit_bias={3: 1.5}, stop_token_ids=frozenset({7}))
    request = GenerateRequest("1", as_key([1, 2]), params, namespace=Namespace(cache_salt="s"))
    again = pickle.loads(pickle.dumps(request))  # noqa: S301 - its own
    assert again.params == params
    assert again.key.tolist() == [1, 2]
    assert again.namespace == request.namespace
    error = RequestTooLargeError("long", param="prompt", prompt_tokens=9, longest_prompt=5)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (str(again), again.param, again.longest_prompt) == ("long", "prompt", 5)


def test_long_requests_have_a_namespace_of_their_own():
    own = Namespace("fr@1f", "salt", "more")
    assert own.of_length(96, 96) == own.of_length(97, None) == own
    long = own.of_length(97, 96)
    assert long != own
    assert long.of_length(96, 96) == own, "a retracted one may be short again"
    assert Namespace.unpacked(long.packed()) == long
    assert json.loads(own.packed()) == [*own[:3]], "as in stores of before"
    for wrong in (["a"], [1, "", ""], [""] * 5, {}):
        with pytest.raises(ValueError, match="no namespace"):
            Namespace.unpacked(json.dumps(wrong).encode())
