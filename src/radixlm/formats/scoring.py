"""The way in which a model scores texts, once its files are read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixlm.core.errors import InvalidRequestError
from radixlm.formats.classifiers import Activation


@dataclass(frozen=True, slots=True)
class Scoring:
    """labels: what a head of the model scores, one each; empty: it has none, and texts are scored
    by the cosine of their embeddings. activation: makes probabilities of scores. judges: pairs
    without a template of their own are written as Qwen3-Reranker's. answers: whether there is a
    head for tokens. refused: why there are no scores; empty: there are.
    """

    labels: tuple[str, ...] = ()
    activation: Activation = "sigmoid"
    judges: bool = False
    answers: bool = True
    refused: str = ""

    def check(self, *, labels: int | None = None) -> None:
        """Raise InvalidRequestError where there are no scores, or none of this number of labels."""
        if self.refused:
            raise InvalidRequestError(f"this model gives no scores here: {self.refused}")
        if labels is not None and self.labels and len(self.labels) != labels:
            raise InvalidRequestError(
                f"this model classifies by {len(self.labels)} labels and gives no score; "
                "/v1/classify has them all"
            )

    def check_answers(self) -> None:
        """Raise InvalidRequestError where there is no head for tokens."""
        if not self.answers:
            raise InvalidRequestError(
                "this model has a classifier's head and gives no answers; /v1/classify, /v1/score "
                "and /v1/embeddings are its"
            )

    def probabilities(
        self, scores: npt.NDArray[np.float32], *, plain: bool = False
    ) -> npt.NDArray[np.float64]:
        """The probabilities of each label. plain: the scores as they are."""
        given = scores.astype(np.float64)
        if plain or self.activation == "identity":
            return given
        if self.activation == "softmax":
            made = np.exp(given - given.max())
            return np.asarray(made / made.sum())
        return np.asarray(np.exp(-np.logaddexp(0.0, -given)))
