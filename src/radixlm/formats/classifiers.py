"""The heads that score texts, as a model's config.json and sentence-transformers' files say it.

Sources: https://sbert.net/docs/package_reference/cross_encoder/modules.html;
https://docs.vllm.ai/en/latest/models/pooling_models.html.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from radixlm.core.errors import CheckpointError
from radixlm.formats.files import read_json_object

Activation = Literal["sigmoid", "softmax", "identity"]

_SUFFIX = "ForSequenceClassification"
# Folders as they were before sentence-transformers' files said it: no other file tells them from
# Qwen3 that chats.
_JUDGE = re.compile(r"qwen3-reranker", re.IGNORECASE)
_PROBLEMS: Mapping[str, Activation] = {
    "regression": "identity",
    "multi_label_classification": "sigmoid",
    "single_label_classification": "softmax",
}


def is_classifier(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of a decoder with a classifier's head, in place of one of tokens.

    >>> is_classifier({"architectures": ["Qwen3ForSequenceClassification"]})
    True
    """
    names = config.get("architectures")
    return isinstance(names, list) and any(str(each).endswith(_SUFFIX) for each in names)


@dataclass(frozen=True, slots=True)
class ScoringHead:
    """labels: their names. tokens: the one that says yes, and the one that says no, if any, by
    spelling or id: the head's rows of these, the second taken from the first, are the label's;
    empty: score.weight is the head. judges: its prompts are Qwen3-Reranker's where no template of
    its own says how pairs are written.
    """

    labels: tuple[str, ...] = ("LABEL_0",)
    activation: Activation = "sigmoid"
    tokens: tuple[str | int, ...] = ()
    judges: bool = False


def scoring_head(
    name: str, config: Mapping[str, Any], logit_score: Path | None
) -> ScoringHead | None:
    """The head that a folder has; None: it has none, and scores by embeddings.

    name: the folder's. config: all of config.json. logit_score: the config of the module LogitScore
    of sentence-transformers, if there is one. Raises CheckpointError for what can not be.
    """
    qwen3 = config.get("model_type") == "qwen3"
    if is_classifier(config):
        tokens = _given_tokens(config)
        if tokens:
            return ScoringHead(tokens=tokens, judges=bool(config.get("is_original_qwen3_reranker")))
        labels = _labels(config)
        return ScoringHead(labels, _activation(config, len(labels)))
    if logit_score is not None:
        return ScoringHead(tokens=_tokens_of(logit_score), judges=qwen3)
    if tokens := _given_tokens(config):
        return ScoringHead(tokens=tokens, judges=qwen3)
    if qwen3 and _JUDGE.search(name):
        return ScoringHead(tokens=("yes", "no"), judges=True)
    return None


def _given_tokens(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The tokens by vLLM's field, which has the one that says yes last; empty: it is not there."""
    given = config.get("classifier_from_token")
    if given is None:
        return ()
    texts = isinstance(given, list) and all(isinstance(each, str) for each in given)
    if not texts or len(given) not in (1, 2):
        raise CheckpointError(
            f"config.json: classifier_from_token must be one token, or [no, yes], got {given!r:.80}"
        )
    return tuple(reversed(given))


def _tokens_of(path: Path) -> tuple[int, ...]:
    said = read_json_object(path)
    true, false = said.get("true_token_id"), said.get("false_token_id")
    if not isinstance(true, int) or not isinstance(false, int | None):
        raise CheckpointError(f"{path}: a token id is needed, got {true!r:.80}, {false!r:.80}")
    return (true,) if false is None else (true, false)


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels by number, as transformers names those that have no names."""
    given, count = config.get("id2label"), config.get("num_labels")
    if given is None:
        count = 2 if count is None else count
        if not isinstance(count, int) or not 0 < count <= 1_000_000:
            raise CheckpointError(f"config.json: num_labels is {count!r:.80}")
        return tuple(f"LABEL_{place}" for place in range(count))
    names: Sequence[Any] = ()
    if isinstance(given, dict):
        names = [given.get(str(place)) for place in range(len(given))]
    if not names or not all(isinstance(each, str) for each in names):
        raise CheckpointError(f"config.json: id2label must name 0, 1, ..., got {given!r:.80}")
    return tuple(names)


def _activation(config: Mapping[str, Any], labels: int) -> Activation:
    """The function that makes probabilities of scores."""
    own = config.get("sentence_transformers")
    named = own.get("activation_fn") if isinstance(own, dict) else None
    named = named or config.get("sbert_ce_default_activation_function") or ""
    if str(named).endswith("Identity"):
        return "identity"
    if str(named).endswith("Sigmoid"):
        return "sigmoid"
    usual: Activation = "sigmoid" if labels == 1 else "softmax"
    problem = str(config.get("problem_type"))
    if labels == 1 and problem != "regression":
        return usual  # a softmax over one is 1 for all
    return _PROBLEMS.get(problem, usual)
