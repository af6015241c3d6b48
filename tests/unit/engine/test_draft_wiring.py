"""Where an engine's drafts come from, by its flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError
from radixlm.engine.limits import Limits
from radixlm.engine.wiring import make_core
from tests.engines import Bench, byte_tokenizer, make_request

# All tokens that are drawn.
TEXT = "".join(map(chr, range(ord("!"), ord("~"))))


def drafted(states: int = 0, **flags: Any) -> dict[str, tuple[int, int]]:
    """What is drafted for an answer, by source."""
    bench = Bench(256, states=states, budget=64, vocab_size=90)
    limits, parts = Limits(256, 256, 256), (bench.cache, bench.checked, byte_tokenizer())
    core = make_core(EngineConfig(**flags), *parts, limits=limits)
    bench.core, bench.scheduler = core, core.scheduler
    core.add(make_request("a", [1, 2, 3], 8))
    bench.run()
    return dict(core.stats().accepted_of)


def test_a_corpus_is_drafted_from(tmp_path: Path) -> None:
    """A file, or all files of a folder."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text(TEXT, encoding="utf-8")
    for path in (tmp_path / "texts", tmp_path / "texts" / "one.txt"):
        flags = {"speculative_algorithm": "tree", "draft_corpus": str(path)}
        assert drafted(**flags).keys() >= {"corpus"}
    assert "corpus" not in drafted(speculative_algorithm="tree")
    assert drafted() == {}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"draft_corpus": "texts"}, "--draft-corpus has no use"),
        ({"draft_corpus": "nowhere", "speculative_algorithm": "tree"}, "can not be read"),
        (
            {"speculative_algorithm": "tree", "speculative_draft_model_path": "head"},
            "--speculative-draft-model-path has no use",
        ),
        ({"speculative_algorithm": "medusa"}, "--speculative-algorithm"),
        ({"speculative_num_draft_tokens": 0}, "--speculative-num-draft-tokens"),
        ({"speculative_num_draft_tokens": 65}, "--speculative-num-draft-tokens"),
    ],
)
def test_what_can_not_be_drafted_from_is_refused(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        drafted(**flags)


def test_models_with_states_draft_if_they_are_asked_to(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT, encoding="utf-8")
    corpus = {"draft_corpus": str(tmp_path / "text")}
    assert "corpus" in drafted(states=32, speculative_algorithm="tree", **corpus)
    assert drafted(states=32, speculative_algorithm="auto", **corpus) == {}
