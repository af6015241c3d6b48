"""Which models are served is said by config.json alone, by name and with a reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto import modeling_auto

from radixlm.core.errors import UnsupportedModelError
from radixlm.formats.model_types import FOREIGN, MODEL_TYPES, NATIVE
from radixlm.formats.served import served_by
from radixlm.models.families import ARCHITECTURES
from scripts.model_types import MAPPED

_TRIED = """
import sys
from radixlm.core.errors import ModelError
from radixlm.text.model_folder import loadable
try:
    loadable(sys.argv[1])
except ModelError as error:
    print(error)
print("torch" in sys.modules, "transformers" in sys.modules)
"""


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(UnsupportedModelError) as caught:
        served_by(config)
    return caught.value.message


@pytest.mark.parametrize("name", MAPPED)
def test_every_type_of_transformers_is_served_or_refused_by_name(name: str) -> None:
    row = MODEL_TYPES[name]
    if row.by:
        assert served_by({"model_type": name}) == row.by
    else:
        said = refusal({"model_type": name})
        assert name in said
        assert row.why in said
        assert "docs/model-types.md" in said


def test_the_table_is_of_the_mappings_and_of_our_families() -> None:
    mappings = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT")
    names = [getattr(modeling_auto, f"MODEL_FOR_{each}_MAPPING_NAMES") for each in mappings]
    assert set(MAPPED) == set().union(*names)
    native = {row.text or name for name, row in MODEL_TYPES.items() if row.by == NATIVE}
    assert native == set(ARCHITECTURES)
    assert sum(bool(MODEL_TYPES[name].by) for name in MAPPED) >= 134


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "'model_type' is None"),
        ({"model_type": 5}, "'model_type' is 5"),
        ({"model_type": "llava", "text_config": {"model_type": 5}}, "of the text is 5"),
        ({"model_type": "unheard_of"}, "'unheard_of'.* has no causal language model"),
        ({"model_type": "own", "auto_map": {"AutoConfig": "x.Y"}}, "'own'.*auto_map.* not run"),
        ({"model_type": "llava", "text_config": {"model_type": "zaya"}}, "llava .*zaya.*layers"),
    ],
)
def test_others_are_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModelError, match=said):
        served_by(config)


def test_the_text_decides() -> None:
    assert served_by({"model_type": "llava", "text_config": {"model_type": "qwen3"}}) == NATIVE
    assert served_by({"model_type": "llava", "text_config": {"model_type": "opt"}}) == FOREIGN
    # Of a model that has code of its own, which is not run.
    outer = {"model_type": "internvl_chat", "auto_map": {"AutoConfig": "x.Y"}}
    assert served_by({**outer, "llm_config": {"model_type": "qwen2"}}) == NATIVE


def test_without_transformers_what_it_computes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixlm.formats.served.find_spec", lambda name: None)
    with pytest.raises(UnsupportedModelError, match="not installed") as caught:
        served_by({"model_type": "opt"})
    assert caught.value.commands == ("pip install 'radixlm[transformers]'",)
    assert served_by({"model_type": "llama"}) == NATIVE


def test_a_refusal_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "zaya"}))
    run = [sys.executable, "-c", _TRIED, str(tmp_path)]
    said = subprocess.run(run, capture_output=True, text=True, check=True).stdout  # noqa: S603
    assert "'zaya', which is not served" in said
    assert said.splitlines()[-1] == "False False"
