"""Measured costs are kept by model, flags and machine."""

from __future__ import annotations

import pytest

from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError
from radixlm.sim.costs import costs_path, keep_costs, kept_costs, made_up

CONFIG = EngineConfig(model="models/some")


def test_what_was_kept_is_found(tmp_path):
    path = keep_costs(made_up("node"), CONFIG, tmp_path / "costs")
    assert path == costs_path(CONFIG, tmp_path / "costs")
    assert path.name.startswith("some-")
    assert kept_costs(CONFIG, tmp_path / "costs") == made_up("node")
    assert [path] == list((tmp_path / "costs").iterdir())


@pytest.mark.parametrize(
    "flags",
    [{"dtype": "float32"}, {"quantization": "int8"}, {"threads": 1}, {"model": "other/some"}],
)
def test_other_ways_of_running_have_their_own(flags, tmp_path):
    keep_costs(made_up("node"), CONFIG, tmp_path)
    other = EngineConfig(**{"model": "models/some", **flags})
    with pytest.raises(ConfigError, match=r"nobody has measured what steps of .*some take"):
        kept_costs(other, tmp_path)


def test_sizes_of_the_cache_make_no_difference(tmp_path):
    keep_costs(made_up("node"), CONFIG, tmp_path)
    other = EngineConfig(model="models/some", kv_tokens=5_000, page_size=16)
    assert kept_costs(other, tmp_path) == made_up("node")


def test_what_is_damaged_is_refused(tmp_path):
    keep_costs(made_up("node"), CONFIG, tmp_path).write_text("{")
    with pytest.raises(ConfigError, match="holds no costs"):
        kept_costs(CONFIG, tmp_path)


def test_a_folder_that_can_not_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write"):
        keep_costs(made_up("node"), CONFIG, tmp_path / "file")
