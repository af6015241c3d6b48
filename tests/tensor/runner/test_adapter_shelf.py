"""Which rows of a step have which adapter, and how long that is remembered."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import torch

from radixlm.core.batch import ScheduledRow
from radixlm.core.request import Namespace
from radixlm.models import CausalLM, PlainCheckpoint, load_config, load_model
from radixlm.runner.adapter_shelf import AdapterShelf
from radixlm.testing.peft_adapters import make_adapter
from radixlm.testing.reference import make_checkpoint
from tests.tensor.rows import make_row


def load(folder: Path) -> CausalLM:
    return load_model(
        PlainCheckpoint(folder),
        load_config(folder),
        dtype=torch.float32,
        device=torch.device("cpu"),
        progress=False,
    )


def row(adapter_id: str, n_new: int = 1) -> ScheduledRow:
    made = make_row(range(8), start=8 - n_new)
    namespace = Namespace(adapter_id=adapter_id)
    return replace(made, request=replace(made.request, namespace=namespace))


def test_steps_with_the_same_rows_are_made_once_until_an_adapter_goes(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base", "llama")
    shelf = AdapterShelf(load(base))

    def put(name: str, seed: int) -> str:
        adapter_id, additions = shelf.read(name, make_adapter(tmp_path / name, base, seed=seed))
        shelf.put(adapter_id, additions)
        return adapter_id

    one, two = put("one", 0), put("two", 1)
    rows = [row(""), row(one), row(one), row(two)]
    made = shelf.of_step(rows)
    assert shelf.of_step(rows) is made
    assert shelf.of_step([row(""), row(two), row(two), row(one)]) is not made
    assert shelf.of_step([row("", 2), row(one), row(one), row(two)]) is not made
    assert shelf.of_step([*rows, row("")]) is not made, "its calls are of other rows"
    assert shelf.of_step([row("")]) is None
    prompt = [row(one, 8)] * 9
    assert shelf.of_step(prompt) is not shelf.of_step(prompt), "such a step seldom comes again"
    for length in range(1, 40):
        shelf.of_step([row(one)] * length)
    assert shelf.of_step(rows) is not made, "few of them are kept"
    kept = weakref.ref(shelf.of_step([row(two)]))
    shelf.drop(two)
    gc.collect()
    assert kept() is None, "an adapter that went keeps no memory"
