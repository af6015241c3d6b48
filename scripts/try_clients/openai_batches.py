"""The `openai` package: embeddings, and batches from their files to their answers."""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from typing import Any

import openai

from scripts.try_clients.drivers.asked import DOCUMENTS, QUESTIONS, SYSTEM
from scripts.try_clients.outcome import Outcome, raised
from scripts.try_clients.server import KEY, MODEL, Served

_PATIENCE = 120


def use_openai_batches(server: Served) -> Outcome:
    """Raises AssertionError where something is not as it should be."""
    client = openai.OpenAI(base_url=server.v1, api_key=KEY, max_retries=0)
    vectors = _embeddings(client)
    said = [
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": each}]
        for each in QUESTIONS
    ]
    chats = [{"model": MODEL, "messages": each, "max_tokens": 20} for each in said]
    lines = _batch(client, "/v1/chat/completions", chats)
    assert all(each["choices"][0]["message"]["content"] for each in lines)
    embedded = _batch(client, "/v1/embeddings", [{"model": MODEL, "input": DOCUMENTS[0]}])
    assert len(embedded[0]["data"][0]["embedding"]) == vectors
    file = client.files.create(file=("in.jsonl", b"no line\n"), purpose="batch")
    failed = _ended(client, file.id, "/v1/embeddings")
    assert failed.status == "failed", failed
    assert failed.errors.data[0].line == 1, failed
    assert client.files.delete(file.id).deleted
    raised(openai.NotFoundError, lambda: client.files.retrieve(file.id))
    return Outcome(
        client="openai: batches",
        version=version("openai"),
        did="embeddings in floats and base64, dimensions; files up, down, listed, deleted; batches "
        "of chats and of embeddings; a broken line",
        numbers={"dimensions": vectors, "lines": len(lines) + len(embedded)},
    )


def _embeddings(client: openai.OpenAI) -> int:
    made = client.embeddings.create(model=MODEL, input=DOCUMENTS).data
    floats = client.embeddings.create(model=MODEL, input=DOCUMENTS[0], encoding_format="float")
    pairs = zip(made[0].embedding, floats.data[0].embedding, strict=True)
    assert max(abs(one - other) for one, other in pairs) < 1e-4
    cut = client.embeddings.create(model=MODEL, input="a", dimensions=8).data[0].embedding
    assert len(cut) == 8
    return len(made[0].embedding)


def _batch(client: openai.OpenAI, url: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines = [
        {"custom_id": f"{n}", "method": "POST", "url": url, "body": body}
        for n, body in enumerate(bodies)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    assert client.files.content(file.id).read() == content
    assert file.id in [each.id for each in client.files.list(limit=100)]
    batch = _ended(client, file.id, url)
    assert batch.status == "completed", batch
    assert batch.request_counts.completed == len(lines), batch
    assert batch.id in [each.id for each in client.batches.list(limit=100)]
    answers = [
        json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()
    ]
    assert {each["custom_id"] for each in answers} == {line["custom_id"] for line in lines}
    return [each["response"]["body"] for each in answers]


def _ended(client: openai.OpenAI, file: str, url: Any) -> Any:
    batch = client.batches.create(input_file_id=file, endpoint=url, completion_window="24h")
    deadline = time.monotonic() + _PATIENCE
    while batch.status in ("validating", "in_progress", "finalizing"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    return batch
