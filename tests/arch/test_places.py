"""What is declared once stays declared once: where a name stands is counted."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from radixlm.core.request import RequestOutput
from scripts.code_size import ROOT

SOURCES = sorted((ROOT / "src/radixlm").rglob("*.py"))


def places(name: str) -> list[str]:
    """The source files that hold a name."""
    word = re.compile(rf"\b{name}\b")
    return [
        str(path.relative_to(ROOT / "src/radixlm"))
        for path in SOURCES
        if word.search(path.read_text())
    ]


@pytest.mark.parametrize("name", ["min_p", "repetition_penalty"])
def test_a_sampling_parameter_is_declared_once(name: str) -> None:
    """core/sampling.py declares it, the sampler uses it, a model's generation_config.json may
    recommend it, and programs, whose functions spell out their keywords, pass it on. Bodies,
    schemas and commands follow; Ollama has another name for one.
    """
    own = [place for place in places(name) if not place.startswith("lang/")]
    allowed = {"core/sampling.py", "formats/gguf_tokens.py", "models/model_config.py"}
    allowed |= {"runner/sampler.py", "runner/logits_processors.py"}
    if name == "repetition_penalty":
        allowed.add("server/ollama/ollama_body.py")
    assert set(own) <= allowed
    assert "core/sampling.py" in own


def test_an_answer_s_field_reaches_its_writers_uncopied() -> None:
    """core/request.py declares it, the scheduler sets it; on the server's side only what decides by
    it and the writers that show it read it.
    """
    assert "matched_stop" in {item.name for item in fields(RequestOutput)}
    read = [place for place in places("matched_stop") if place.startswith("server/")]
    assert len(read) <= 4, read
