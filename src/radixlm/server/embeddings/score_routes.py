"""vLLM's scores of pairs of texts, and documents ranked by a query as Jina and Cohere have it.

Sources: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html;
https://api.jina.ai/redoc; https://docs.cohere.com/reference/rerank.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field
from typing_extensions import TypedDict

from radixlm.core.errors import wrong
from radixlm.core.keys import Key
from radixlm.core.request import Pooled
from radixlm.server.bodies.protocol import MAX_CHOICES
from radixlm.server.embeddings.pooled_wire import PooledBody, PooledUsage, answering, writer_of
from radixlm.server.http.body import Body, ListOf
from radixlm.server.http.routes import Route
from radixlm.server.pipeline.answer import respond
from radixlm.server.pipeline.generation import Generation
from radixlm.server.pipeline.pooled import Hidden, pooled_generation
from radixlm.server.pipeline.service import Service, service_of, tenant_of
from radixlm.text.pairs import PairTemplate

Texts = str | ListOf[str]

_NOWHERE = "is not for this model, whose files do not say where it stands in a prompt"


class DocumentPart(Body):
    text: str


class PairsBody(PooledBody):
    """instruction: by what a document fits a query, where the model's prompts have a place for it.
    use_activation: false: scores of a model's head as they are, no probabilities.
    """

    instruction: str | None = None
    use_activation: bool | None = None


class ScoreBody(PairsBody):
    """POST /v1/score. One text against each of many, or two lists of the same length."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None

    def pairs(self) -> tuple[list[str], list[str], str]:
        """The queries and documents, as many of each, and the documents' field. Raises
        InvalidRequestError.
        """
        plain = self.queries is None and self.documents is None
        names = ("text_1", "text_2") if plain else ("queries", "documents")
        if not plain and (self.text_1 is not None or self.text_2 is not None):
            raise wrong("text_1", "is given beside queries and documents; give one of the two")
        given = []
        for name in names:
            texts: str | list[str] | None = getattr(self, name)
            if texts is None:
                raise wrong(name, "is missing")
            if not texts:
                raise wrong(name, "is empty")
            given.append([texts] if isinstance(texts, str) else texts)
        queries, documents = given
        if len(queries) == 1:
            queries = queries * len(documents)
        if len(queries) != len(documents):
            text = f"has {len(documents)} texts for {len(queries)} of {names[0]}"
            raise wrong(names[1], f"{text}; there must be one, or as many")
        return queries, documents, names[1]


class RerankBody(PairsBody):
    """POST /v1/rerank. top_n: how many to give, 0 for all."""

    query: str
    documents: ListOf[str] | ListOf[DocumentPart]
    top_n: Annotated[int, Field(ge=0)] | None = None
    return_documents: bool | None = None

    def texts(self) -> list[str]:
        """The documents. Raises InvalidRequestError where there are none."""
        if not self.documents:
            raise wrong("documents", "is empty")
        return [each if isinstance(each, str) else each.text for each in self.documents]


class ScoreItem(TypedDict):
    object: Literal["score"]
    index: int
    score: float


class ScoreList(TypedDict):
    id: str
    object: Literal["list"]
    created: int
    data: list[ScoreItem]
    model: str
    usage: PooledUsage


class RankedText(TypedDict):
    text: str


class RankedItem(TypedDict):
    """index: the document's among those given."""

    index: int
    relevance_score: float
    document: NotRequired[RankedText]


class Ranking(TypedDict):
    id: str
    results: list[RankedItem]
    model: str
    usage: PooledUsage


@dataclass(frozen=True, slots=True)
class ScoringTask:
    """Scores to be made of a generation. pairs: of what is embedded, which belong together; None:
    each prompt is a pair.
    """

    generation: Generation
    pairs: Sequence[tuple[int, int]] | None

    def scores(self, service: Service, made: Sequence[Hidden], *, plain: bool) -> list[float]:
        """The scores of each pair, made of what came of the prompts."""
        if self.pairs is None:
            scoring = service.engine.info.scoring
            return [float(scoring.probabilities(each, plain=plain)[0]) for each in made]
        rows = np.stack(made).astype(np.float64)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return [float(rows[one] @ rows[other]) for one, other in self.pairs]


def scoring_task(
    service: Service,
    body: PairsBody,
    texts: tuple[Sequence[str], Sequence[str], str],
    tenant: str,
    kind: str,
) -> ScoringTask:
    """Tokenize; call it off the event loop. texts: queries and documents, as many of each, and the
    documents' field. Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    _, documents, param = texts
    scoring = service.engine.info.scoring
    scoring.check(labels=1)
    if len(documents) > MAX_CHOICES:  # before they are tokenized
        raise wrong(param, f"holds {len(documents)} texts, at most {MAX_CHOICES} are allowed")
    pairs, pooled = None, Pooled.SCORES
    if scoring.labels:
        keys = _pair_keys(service, body.instruction or "", texts)
    else:
        if body.instruction:
            raise wrong("instruction", _NOWHERE)
        keys, pairs = _embedded(service, texts)
        pooled = service.engine.info.pooling.pooled
    generation = pooled_generation(service, body, keys, pooled, tenant, kind=kind, param=param)
    return ScoringTask(generation, pairs)


def _pair_keys(
    service: Service, instruction: str, texts: tuple[Sequence[str], Sequence[str], str]
) -> list[Key]:
    """A prompt for each pair."""
    queries, documents, param = texts
    engine, mark = service.engine, service.memory.mark
    tokenizer, info = engine.tokenizer, engine.info
    template = PairTemplate.of(engine.chat_template, judges=info.scoring.judges)
    if template is None and instruction:
        raise wrong("instruction", _NOWHERE)
    instruction = instruction or info.pooling.prompt(None)
    keys = []
    for query, document in zip(queries, documents, strict=True):
        if template is None:
            service.check_text(len(query) + len(document), param=param)
            keys.append(tokenizer.encode_pair(query, document))
            continue
        text = template.render(tokenizer, mark, query, document, instruction)
        keys.append(service.encode(text, add_special_tokens=False, param=param, break_mark=mark))
    return keys


def _embedded(
    service: Service, texts: tuple[Sequence[str], Sequence[str], str]
) -> tuple[list[Key], list[tuple[int, int]]]:
    """A prompt for each text that is to be embedded, each once, and the pairs among them."""
    queries, documents, param = texts
    pooling = service.engine.info.pooling
    pooling.check()
    asked = pooling.first_prompt("query")
    answered = pooling.first_prompt("document", "passage", "corpus")
    placed: dict[str, int] = {}
    pairs = [
        (
            placed.setdefault(asked + query, len(placed)),
            placed.setdefault(answered + document, len(placed)),
        )
        for query, document in zip(queries, documents, strict=True)
    ]
    return [service.key(each, add_special_tokens=True, param=param) for each in placed], pairs


router = APIRouter(route_class=Route)
_PAIR = {"text_1": "What is the capital of France?", "text_2": "The capital of France is Paris."}
_QUERY = {"query": "the capital of France", "documents": ["Paris is.", "Berlin is in Germany."]}


@answering(router, "/v1/score", ScoreList, _PAIR)
@answering(router, "/score", ScoreList, _PAIR)
async def score(request: Request, body: ScoreBody) -> Response:
    """vLLM's scores: by the model's head, or the cosine of two embeddings."""
    service = service_of(request)
    task = await asyncio.to_thread(
        scoring_task, service, body, body.pairs(), tenant_of(request), "score"
    )

    def answer(made: Sequence[Hidden]) -> Mapping[str, Any]:
        scores = task.scores(service, made, plain=body.use_activation is False)
        data: list[ScoreItem] = [
            {"object": "score", "index": index, "score": each} for index, each in enumerate(scores)
        ]
        return {"object": "list", "created": int(time.time()), "data": data}

    writer = writer_of(service, task.generation, body, answer)
    return await respond(request, task.generation, writer, stream=False)


@answering(router, "/v2/rerank", Ranking, _QUERY)
@answering(router, "/v1/rerank", Ranking, _QUERY)
@answering(router, "/rerank", Ranking, _QUERY)
async def rerank(request: Request, body: RerankBody) -> Response:
    """Jina's and Cohere's ranking: the documents that fit the query best, best first."""
    service = service_of(request)
    documents = body.texts()
    texts = [body.query] * len(documents), documents, "documents"
    task = await asyncio.to_thread(scoring_task, service, body, texts, tenant_of(request), "rerank")

    def answer(made: Sequence[Hidden]) -> Mapping[str, Any]:
        scores = task.scores(service, made, plain=body.use_activation is False)
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        results: list[RankedItem] = []
        for index in order[: body.top_n or None]:
            ranked: RankedItem = {"index": index, "relevance_score": scores[index]}
            if body.return_documents is not False:
                ranked["document"] = {"text": documents[index]}
            results.append(ranked)
        return {"results": results}

    writer = writer_of(service, task.generation, body, answer)
    return await respond(request, task.generation, writer, stream=False)
