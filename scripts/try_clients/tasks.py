"""lm-eval's tasks about what the demo model learnt: their YAML and their documents.

The documents are made from the tables that the model's own text was made from, some of them with
numbers that it gets wrong, so that equal scores say something.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from scripts.demo_model.facts import CAPITALS

Document = dict[str, Any]

CHOOSE = "radixlm_choose"
COMPLETE = "radixlm_complete"
CHAT = "radixlm_chat"
_SUMS = 40
_BEYOND = 140  # the model learnt sums of numbers below 100
_SEED = 7

_DATA = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
"""
_CHOOSE = """\
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
  - metric: acc_norm
    aggregation: mean
    higher_is_better: true
"""
_GENERATE = """\
output_type: generate_until
doc_to_text: "{{context}}"
doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["\\n", "."]
  do_sample: false
  temperature: 0.0
  max_gen_toks: 24
filter_list:
  - name: strip
    filter:
      - function: remove_whitespace
      - function: take_first
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""


def write_tasks(folder: Path) -> None:
    """Write CHOOSE (log-likelihoods), COMPLETE and CHAT (generation) for lm-eval."""
    rng = random.Random(_SEED)
    sums = [(rng.randrange(_BEYOND), rng.randrange(_BEYOND)) for _ in range(_SUMS)]
    _write(folder, CHOOSE, _CHOOSE, _choices(sums, rng))
    _write(
        folder,
        COMPLETE,
        _GENERATE,
        [
            {"context": f"The capital of {place} is", "answer": city}
            for place, city in CAPITALS.items()
        ]
        + [{"context": f"{a} + {b} =", "answer": str(a + b)} for a, b in sums],
    )
    _write(
        folder,
        CHAT,
        _GENERATE,
        [
            {
                "context": f"What is the capital of {place}?",
                "answer": f"The capital of {place} is {city}",
            }
            for place, city in CAPITALS.items()
        ]
        + [{"context": f"What is {a} + {b}?", "answer": f"{a} + {b} = {a + b}"} for a, b in sums],
    )


def _choices(sums: list[tuple[int, int]], rng: random.Random) -> list[Document]:
    documents = []
    cities = sorted(set(CAPITALS.values()))
    for place, city in CAPITALS.items():
        others = rng.sample([other for other in cities if other != city], 3)
        documents.append(_document(f"The capital of {place} is", city, others, rng))
    for a, b in sums:
        near = rng.sample([step for step in range(-11, 12) if step], 3)
        others = [str(a + b + step) for step in near]
        documents.append(_document(f"{a} + {b} =", str(a + b), others, rng))
    return documents


def _document(context: str, right: str, wrong: list[str], rng: random.Random) -> Document:
    choices = [right, *wrong]
    rng.shuffle(choices)
    return {"context": context, "choices": choices, "answer": choices.index(right)}


def _write(folder: Path, name: str, rest: str, documents: list[Document]) -> None:
    file = folder / f"{name}.json"
    file.write_text("\n".join(map(json.dumps, documents)) + "\n", encoding="utf-8")
    head = _DATA.format(name=name, file=json.dumps(str(file)))
    (folder / f"{name}.yaml").write_text(head + rest, encoding="utf-8")
