"""The model_types that transformers knows, and what computes each: a table that is made by `python
-m scripts.model_types`. Read before torch is imported.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

TABLE_PATH = Path(__file__).with_name("model_types.json")
NATIVE, FOREIGN = "radixlm", "transformers"


class ModelType(NamedTuple):
    """by: what computes it; empty: it is refused, and `why` says it.

    text: the model_type of its text, where it has one of another name. tied: whether its head is
    the embedding, where no config says it.
    """

    by: str = ""
    why: str = ""
    text: str = ""
    tied: bool = False


def _read() -> tuple[str, dict[str, ModelType]]:
    table: dict[str, Any] = json.loads(TABLE_PATH.read_text(encoding="utf-8"))
    return table["made_with"], {name: ModelType(**row) for name, row in table["types"].items()}


# The version of transformers that the table is of, and the table.
VERSION, MODEL_TYPES = _read()
