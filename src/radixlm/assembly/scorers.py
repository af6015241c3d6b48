"""The head that scores texts, read from the model's files beside its decoder."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radixlm.assembly.model_impl import by_transformers
from radixlm.core.config import EngineConfig
from radixlm.core.errors import CheckpointError
from radixlm.formats.classifiers import ScoringHead, is_classifier, scoring_head
from radixlm.formats.model_files import ModelFile, ModelFiles
from radixlm.formats.pooling import module_folders
from radixlm.formats.scoring import Scoring
from radixlm.models.decoder import EMBEDDING, HEAD
from radixlm.models.model_config import ModelConfig
from radixlm.models.safetensors_files import FLOATS, StoredTensor, surveyed
from radixlm.text.tokenizer import Tokenizer

_WEIGHT = "score.weight"


def read_scorer(
    config: EngineConfig, files: ModelFiles, model: ModelConfig, tokenizer: Tokenizer
) -> tuple[Scoring, npt.NDArray[np.float32] | None]:
    """The model's way to score, and the head, (labels, width), that makes scores, if it has one.
    Raises CheckpointError.
    """
    if isinstance(files, ModelFile):
        return Scoring(), None
    said = files.whole_config()
    scores = [folder / "config.json" for folder in module_folders(files, "LogitScore")]
    head = scoring_head(files.name, said, scores[0] if scores else None)
    if head is None:
        return Scoring(), None
    answers = not is_classifier(said)
    if by_transformers(config, files):
        refused = "heads of models that transformers computes are not supported"
        return Scoring(answers=answers, refused=refused), None
    if head.tokens and model.traits.logits_cap:
        return Scoring(refused="its head bounds logits, of which no score is made"), None
    stored, _ = surveyed(files.path, beside=("score.",))
    weight = _of_tokens(head, stored, model, tokenizer) if head.tokens else _own(stored)
    if weight.shape != (len(head.labels), model.hidden_size):
        raise CheckpointError(
            f"{_WEIGHT} is {weight.shape}; {len(head.labels)} labels of a model of "
            f"{model.hidden_size} are {(len(head.labels), model.hidden_size)}"
        )
    scoring = Scoring(head.labels, head.activation, judges=head.judges, answers=answers)
    return scoring, weight


def _own(stored: dict[str, StoredTensor]) -> npt.NDArray[np.float32]:
    if (tensor := stored.get(_WEIGHT)) is None:
        raise CheckpointError(f"the classifier's head, {_WEIGHT}, is not in the model's files")
    _check_floats(tensor)
    return tensor.read().float().numpy()


def _of_tokens(
    head: ScoringHead, stored: dict[str, StoredTensor], model: ModelConfig, tokenizer: Tokenizer
) -> npt.NDArray[np.float32]:
    """The rows that the tokens have in the head of tokens, or in the embedding it is tied to."""
    places = [_token(each, model, tokenizer) for each in head.tokens]
    names = [f"{EMBEDDING}.weight"] if model.tie_word_embeddings else []
    tensor = next((stored[n] for n in (f"{HEAD}.weight", *names) if n in stored), None)
    if tensor is None:
        raise CheckpointError("its scores are those of tokens, whose head is not in its files")
    _check_floats(tensor)
    rows = [tensor.read_part(place).float().numpy() for place in places]
    made = rows[0] - rows[1] if len(rows) > 1 else rows[0]
    return np.asarray(made * model.traits.logits, dtype=np.float32)[None]


def _token(token: str | int, model: ModelConfig, tokenizer: Tokenizer) -> int:
    place = tokenizer.token_id(token) if isinstance(token, str) else token
    if place is None or not 0 <= place < model.vocab_size:
        raise CheckpointError(f"its scores are those of a token that it does not have: {token!r}")
    return place


def _check_floats(tensor: StoredTensor) -> None:
    if tensor.dtype not in FLOATS:
        raise CheckpointError(
            f"scores are made of {tensor.name}, which is of type {tensor.dtype}; supported: "
            f"{', '.join(FLOATS)}"
        )
