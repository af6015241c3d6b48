"""Cohere's client: documents ranked by a query, by both versions of its API; and what is wrong."""

from __future__ import annotations

from functools import partial

import cohere
from cohere.core.api_error import ApiError

from scripts.try_clients.drivers.asked import DOCUMENTS, FOUND, arguments
from scripts.try_clients.outcome import raised


def main() -> None:
    url, key, name = arguments()
    for client in (cohere.ClientV2(key, base_url=url), cohere.Client(key, base_url=url)):
        ranked = client.rerank(
            model=name, query=DOCUMENTS[FOUND], documents=list(DOCUMENTS)
        ).results
        assert sorted(each.index for each in ranked) == list(range(len(DOCUMENTS)))
        scores = [each.relevance_score for each in ranked]
        assert scores == sorted(scores, reverse=True), scores
        assert ranked[0].index == FOUND, ranked
        best = client.rerank(model=name, query="Paris", documents=list(DOCUMENTS), top_n=1).results
        assert len(best) == 1
        ask = partial(client.rerank, model="other", query="a", documents=["b"])
        assert raised(ApiError, ask).status_code == 404


if __name__ == "__main__":
    main()
