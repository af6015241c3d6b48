"""outlines on its backend for vLLM: a choice, a schema, an expression, a grammar in one chat."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import openai
import outlines
from outlines.inputs import Chat
from outlines.types import CFG, JsonSchema, Regex

from scripts.try_clients.drivers.asked import CITY, SYSTEM, arguments

_NUMBER = r"[1-9][0-9]{2}"
_GRAMMAR = 'start: GREETING " " NAME\nGREETING: "Hello" | "Goodbye"\nNAME: "Paris" | "Oslo"\n'


def main() -> None:
    url, key, name = arguments()
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=120)
    model = outlines.from_vllm(client, name)
    chat = Chat([{"role": "system", "content": SYSTEM}])

    def ask(question: str, kind: Any = None) -> str:
        chat.add_user_message(question)
        answer: str = model(chat, kind, max_tokens=40)
        chat.add_assistant_message(answer)
        return answer

    ask("What is the capital of France?")
    assert ask("Where would you go?", Literal["Paris", "Oslo"]) in ("Paris", "Oslo")
    assert json.loads(ask("As JSON.", JsonSchema(CITY)))["city"] in ("Paris", "Oslo")
    assert re.fullmatch(_NUMBER, ask("How many days?", Regex(_NUMBER)))
    assert ask("Say hello.", CFG(_GRAMMAR)).split()[1] in ("Paris", "Oslo")
    chat.add_user_message("And once more, please.")
    streamed = "".join(model.stream(chat, Literal["Paris", "Oslo"], max_tokens=40))
    assert streamed in ("Paris", "Oslo"), streamed


if __name__ == "__main__":
    main()
