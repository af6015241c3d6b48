"""The `ollama` package: models, chats, streams, a tool, a form, embeddings, and what is refused."""

from __future__ import annotations

import json
from functools import partial

import ollama

from scripts.try_clients.drivers.asked import CITY, DOCUMENTS, QUESTIONS, SYSTEM, TOOL, arguments
from scripts.try_clients.outcome import raised


def main() -> None:
    url, key, name = arguments()
    client = ollama.Client(host=url, headers={"Authorization": f"Bearer {key}"})
    assert name in [each.model for each in client.list().models]
    assert name in [each.model for each in client.ps().models]
    assert "completion" in (client.show(name).capabilities or ())
    said = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTIONS[0]}]
    told = {"model": name, "messages": said, "options": {"temperature": 0, "num_predict": 40}}
    answer = client.chat(**told)
    assert answer.done, answer
    assert answer.eval_count, answer
    pieces = list(client.chat(**told, stream=True))
    assert "".join(each.message.content or "" for each in pieces) == answer.message.content
    assert len(pieces) > 3, "the stream came in one piece"
    made = client.chat(**told, format=CITY).message.content
    assert json.loads(made or "")["city"] in ("Paris", "Oslo"), made
    client.chat(**told, tools=[TOOL])
    written = client.generate(name, "The capital of Spain is", raw=True, options={"num_predict": 5})
    assert "Madrid" in written.response, written
    vectors = client.embed(name, list(DOCUMENTS)).embeddings
    assert len(vectors) == len(DOCUMENTS)
    for wrong in (partial(client.chat, "other", said), partial(client.pull, "llama3")):
        assert raised(ollama.ResponseError, wrong).status_code == 404


if __name__ == "__main__":
    main()
