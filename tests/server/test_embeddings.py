"""/v1/embeddings: shapes, kinds of input, cached tokens, and what is refused."""

from __future__ import annotations

import base64

import numpy as np
import openai
import pytest

from tests.server_support import live, refused


def embedded(real, given, **more):
    return real.post("/v1/embeddings", input=given, **more).json()


@pytest.mark.parametrize(
    ("given", "count"),
    [("ab", 1), (["ab", "cd"], 2), ([65, 66], 1), ([[65], [66, 67], [68]], 3)],
)
def test_inputs_of_every_kind(real, given, count):
    body = embedded(real, given, model="tiny")
    assert body["object"] == "list"
    assert body["model"] == "tiny"
    assert [each["index"] for each in body["data"]] == list(range(count))
    for each in body["data"]:
        assert each["object"] == "embedding"
        assert np.linalg.norm(each["embedding"]) == pytest.approx(1.0, abs=1e-5)
    usage = body["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] > 0
    assert "completion_tokens" not in usage


def test_base64_holds_the_same_numbers(real):
    [plain] = embedded(real, "abc")["data"]
    [packed] = embedded(real, "abc", encoding_format="base64")["data"]
    numbers = np.frombuffer(base64.b64decode(packed["embedding"]), "<f4")
    assert np.allclose(numbers, plain["embedding"], atol=1e-5)


def test_a_shared_beginning_is_computed_once(real):
    inputs = [[*range(1, 50), 60 + index] for index in range(5)]
    usage = embedded(real, inputs)["usage"]
    assert usage["prompt_tokens"] == 250
    assert usage["prompt_tokens_details"]["cached_tokens"] == 4 * 49


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["ab", ""]}, "input"),
        ({"input": [[65], []]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [10**7]}, "input"),
        ({"input": [65] * 40_000}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "ab", "dimensions": 0}, "dimensions"),
        ({"input": "ab", "dimensions": 10**6}, "dimensions"),
        ({"input": "ab", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "ab", "prompt_name": "none"}, "prompt_name"),
        ({"input": "ab", "model": "other"}, "model"),
        ({}, "input"),
    ],
)
def test_what_can_not_be_is_refused_by_name(real, body, param):
    status = 404 if param == "model" else 400
    assert refused(real.post("/v1/embeddings", **body), status)["param"] == param


def test_metrics_count_them(real):
    before = real.engine.stats()
    embedded(real, ["abcdef", "ghijkl"])
    after = real.engine.stats()
    assert after.requests_finished - before.requests_finished == 2
    assert after.prompt_tokens - before.prompt_tokens == 12


@pytest.mark.parametrize("encoding", [openai.NOT_GIVEN, "float", "base64"])
def test_openai_s_client_reads_them(real, encoding):
    [known] = embedded(real, "abc")["data"]
    with live(real.engine) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="any") as client:
        name = client.models.list().data[0].id
        made = client.embeddings.create(model=name, input="abc", encoding_format=encoding)
    given = made.data[0].embedding
    if encoding == "base64":
        given = np.frombuffer(base64.b64decode(given), "<f4")
    assert np.allclose(given, known["embedding"], atol=1e-5)
    assert made.usage.prompt_tokens == 3
