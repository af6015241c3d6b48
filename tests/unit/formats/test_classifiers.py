"""Heads that score, as files say it: labels, functions, tokens, and what is broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixlm.core.errors import CheckpointError, InvalidRequestError
from radixlm.formats.classifiers import ScoringHead, scoring_head
from radixlm.formats.scoring import Scoring

CLASSIFIER = {"architectures": ["Qwen3ForSequenceClassification"], "model_type": "qwen3"}
CAUSAL = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}


@pytest.mark.parametrize(
    ("fields", "labels", "activation"),
    [
        ({}, ("LABEL_0", "LABEL_1"), "softmax"),
        ({"num_labels": 1}, ("LABEL_0",), "sigmoid"),
        ({"id2label": {"1": "bad", "0": "good"}}, ("good", "bad"), "softmax"),
        ({"id2label": {"0": "fit"}, "problem_type": "regression"}, ("fit",), "identity"),
        ({"problem_type": "multi_label_classification"}, ("LABEL_0", "LABEL_1"), "sigmoid"),
        ({"num_labels": 1, "problem_type": "single_label_classification"}, ("LABEL_0",), "sigmoid"),
        (
            {"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.Identity"}},
            ("LABEL_0",),
            "identity",
        ),
        (
            {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"},
            ("LABEL_0", "LABEL_1"),
            "sigmoid",
        ),
    ],
)
def test_classifiers_have_labels_and_a_function(
    fields: dict[str, Any], labels: tuple[str, ...], activation: str
) -> None:
    assert scoring_head("m", CLASSIFIER | fields, None) == ScoringHead(labels, activation)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "config", "tokens", "judges"),
    [
        ("Qwen/Qwen3-Reranker-0.6B", CAUSAL, ("yes", "no"), True),
        ("mine", CAUSAL | {"classifier_from_token": ["no", "yes"]}, ("yes", "no"), True),
        ("mine", CAUSAL | {"classifier_from_token": ["Yes"]}, ("Yes",), True),
        (
            "mine",
            CLASSIFIER
            | {"classifier_from_token": ["no", "yes"], "is_original_qwen3_reranker": True},
            ("yes", "no"),
            True,
        ),
    ],
)
def test_tokens_that_say_yes_and_no(
    name: str, config: dict[str, Any], tokens: tuple[str, ...], judges: bool
) -> None:
    assert scoring_head(name, config, None) == ScoringHead(tokens=tokens, judges=judges)


def test_sentence_transformers_say_it_by_ids(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"true_token_id": 9693, "false_token_id": 2152}))
    assert scoring_head("m", CAUSAL, path) == ScoringHead(tokens=(9693, 2152), judges=True)
    path.write_text(json.dumps({"true_token_id": 9454, "false_token_id": None}))
    other = {"model_type": "llama"}
    assert scoring_head("m", other, path) == ScoringHead(tokens=(9454,), judges=False)
    path.write_text(json.dumps({"true_token_id": "yes"}))
    with pytest.raises(CheckpointError, match="a token id is needed, got 'yes'"):
        scoring_head("m", CAUSAL, path)


@pytest.mark.parametrize("name", ["Qwen3-0.6B", "Qwen3-Embedding-0.6B"])
def test_others_have_none(name: str) -> None:
    assert scoring_head(name, CAUSAL, None) is None
    assert scoring_head("Qwen3-Reranker", {"model_type": "llama"}, None) is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"num_labels": 0}, "num_labels is 0"),
        ({"num_labels": "two"}, "num_labels is 'two'"),
        ({"id2label": {}}, "id2label must name"),
        ({"id2label": {"1": "a"}}, "id2label must name"),
        ({"id2label": ["a"]}, "id2label must name"),
        ({"classifier_from_token": "yes"}, "classifier_from_token must be"),
        ({"classifier_from_token": ["a", "b", "c"]}, "classifier_from_token must be"),
    ],
)
def test_broken_configs_are_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        scoring_head("m", CLASSIFIER | fields, None)


def test_functions_make_probabilities() -> None:
    given = np.array([1000.0, 0.0, -1000.0], dtype=np.float32)
    assert Scoring(activation="sigmoid").probabilities(given).tolist() == [1.0, 0.5, 0.0]
    assert Scoring(activation="softmax").probabilities(given).tolist() == [1.0, 0.0, 0.0]
    assert Scoring(activation="identity").probabilities(given).tolist() == given.tolist()
    assert Scoring().probabilities(given, plain=True).tolist() == given.tolist()


def test_scores_that_there_are_not_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no scores here: because"):
        Scoring(refused="because").check()
    with pytest.raises(InvalidRequestError, match="classifies by 2 labels"):
        Scoring(("a", "b")).check(labels=1)
    Scoring(("a",)).check(labels=1)
    Scoring().check(labels=1)
