"""guidellm, vLLM's load generator: conversations of three turns by each of its formats."""

from __future__ import annotations

import json
from collections.abc import Sequence

from scripts.try_clients.environments import python_of
from scripts.try_clients.place import Place
from scripts.try_clients.server import KEY, MODEL

_FORMATS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_REQUESTS = 6


def use_guidellm(place: Place) -> str:
    command = str(python_of("guidellm").with_name("guidellm"))
    for number, form in enumerate(_FORMATS):
        report = place.work / f"report-{number}.json"
        backend = {"kind": "openai_http", "target": place.url, "model": MODEL, "api_key": KEY}
        data = {"kind": "synthetic_text", "prompt_tokens": 40, "output_tokens": 16}
        place.run(
            [
                *(command, "run", "--disable-console-interactive"),
                *("--backend", json.dumps({**backend, "request_format": form})),
                *("--data", json.dumps({**data, "turns": 3, "prefix_tokens": 100})),
                *(
                    "--tokenizer",
                    json.dumps({"kind": "huggingface_auto", "model": str(place.model)}),
                ),
                *("--profile", json.dumps({"kind": "synchronous"})),
                *("--constraint", json.dumps({"kind": "max_requests", "count": _REQUESTS})),
                *("--output", json.dumps({"kind": "json", "path": str(report)})),
            ],
            place.work,
        )
        _check(json.loads(report.read_text(encoding="utf-8"))["benchmarks"])
    return f"{_REQUESTS} requests, three turns a conversation, by each of {', '.join(_FORMATS)}"


def _check(benchmarks: Sequence[dict[str, dict[str, list[object]]]]) -> None:
    for benchmark in benchmarks:
        requests = benchmark["requests"]
        bad = requests["errored"]
        assert not bad, f"{len(bad)} requests failed: {str(bad[0])[:500]}"
        assert len(requests["successful"]) > _REQUESTS // 2, len(requests["successful"])
