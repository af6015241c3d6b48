"""guidance on its backend for vLLM: a choice, an expression, free text and a schema in one chat."""

from __future__ import annotations

import json
import re

import guidance
from guidance.models.experimental import VLLMModel

from scripts.try_clients.drivers.asked import CITY, SYSTEM, arguments

_NUMBER = r"[1-9][0-9]{2}"


def main() -> None:
    url, key, name = arguments()
    lm = VLLMModel(name, base_url=f"{url}/v1", api_key=key, echo=False)
    with guidance.system():
        lm += SYSTEM
    for question, wanted in (
        ("Where would you go?", guidance.select(["Paris", "Oslo"], name="place")),
        ("How many days?", guidance.gen("days", regex=_NUMBER)),
        ("And why?", guidance.gen("why", max_tokens=20)),
        ("As JSON.", guidance.json("city", schema=CITY, max_tokens=40)),
    ):
        with guidance.user():
            lm += question
        with guidance.assistant():
            lm += wanted
    assert lm["place"] in ("Paris", "Oslo"), lm["place"]
    assert re.fullmatch(_NUMBER, lm["days"]), lm["days"]
    assert json.loads(lm["city"])["city"] in ("Paris", "Oslo"), lm["city"]
    # Each answer stands once in the conversation.
    assert str(lm).count(lm["days"]) == 1, str(lm)


if __name__ == "__main__":
    main()
