"""SGLang's own /generate, as its clients call it: a prompt that grows, whole and streamed."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from scripts.try_clients.drivers.asked import QUESTIONS, SYSTEM, arguments, check


def main() -> None:
    url, key, _ = arguments()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def ask(text: str, stream: bool) -> Any:
        body = {"text": text, "sampling_params": {"max_new_tokens": 20}, "stream": stream}
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{url}/generate", data, headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
            told = answer.read().decode()
        if not stream:
            return json.loads(told)
        events = [line for line in told.split("\n") if line.startswith("data: ")]
        return json.loads(events[-2].removeprefix("data: "))

    cached: list[int] = []
    text = SYSTEM
    for question in QUESTIONS:
        text += f"\n{question}"
        answer = ask(text, stream=question is QUESTIONS[-1])
        text += answer["text"]
        cached.append(answer["meta_info"]["cached_tokens"])
    check(cached)


if __name__ == "__main__":
    main()
