"""What identifies stored keys and values is all that computed them, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from radixlm.assembly.chosen import reached_of
from radixlm.assembly.store_facts import EngineFacts, shape_of
from radixlm.core.config import EngineConfig
from radixlm.formats.model_files import ModelFolder
from radixlm.formats.weight_files import stamped
from radixlm.layers.expansion import LatentSizes
from radixlm.layers.grouped_router import GroupedRouting
from radixlm.layers.mlps import Clamped
from radixlm.layers.rotary import (
    FactorScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeConfig,
    Scaling,
    YarnScaling,
)
from radixlm.memory.packing import PoolBlocks
from radixlm.memory.pools import KVPool
from radixlm.memory.store_identity import digest_of
from radixlm.memory.weight_sums import WeightSums
from radixlm.models.model_config import ModelConfig
from radixlm.models.traits import Experts, QueryKeyNorms, Traits

HF: dict[str, Any] = {
    "model_type": "phi3",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "original_max_position_embeddings": 128,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0] * 8,
        "long_factor": [1.0 + i for i in range(8)],
    },
}
PHI = ModelConfig.from_hf(HF)
SCALINGS: tuple[Scaling, ...] = (
    LinearScaling(2.0),
    Llama3Scaling(8.0, 1.0, 4.0, 512),
    YarnScaling(4.0, 512, 1.1),
    FactorScaling((1.0, 2.0)),
    LongScaling((1.0,), (2.0,), 128, 1.1, is_long=True),
)
# With all that a config can hold.
FULL = replace(
    PHI,
    rope=RopeConfig(10_000.0),
    ropes=(None, *(RopeConfig(5_000.0, scaling) for scaling in SCALINGS)),
    traits=Traits(
        qk_norm=QueryKeyNorms(),
        windows=(None, 64),
        activation=Clamped(1.0, 2.0),
        experts=Experts(8, 2, 32, renormalised=True, routing=GroupedRouting()),
        latents=LatentSizes(8, 8, 8, 8),
    ),
    eos_token_ids=frozenset({1, 258}),
)


def named(value: Any) -> dict[str, Any] | None:
    """The fields of what has some."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return value._asdict() if hasattr(value, "_asdict") else None


def changed(value: Any) -> Iterator[tuple[str, Any]]:
    """Where something in a value was changed, and the value then."""
    if (parts := named(value)) is not None:
        for name, part in parts.items():
            for place, other in changed(part):
                made = replace(value, **{name: other}) if is_dataclass(value) else None
                yield f".{name}{place}", made or value._replace(**{name: other})
    elif isinstance(value, frozenset):
        yield "", value | {7}
    elif isinstance(value, tuple):
        yield "", (*value, 1)
        for index, part in enumerate(value):
            for place, other in changed(part):
                yield f"[{index}]{place}", (*value[:index], other, *value[index + 1 :])
    elif isinstance(value, bool):
        yield "", not value
    elif isinstance(value, str):
        yield "", f"{value}x"
    elif isinstance(value, torch.dtype):
        yield "", torch.float64
    else:
        yield "", 1 if value is None else value + 1


def test_every_field_of_a_config_counts() -> None:
    own = digest_of(shape_of(FULL))
    seen, without_effect = {own}, set()
    for place, other in changed(FULL):
        digest = digest_of(shape_of(other))
        if digest == own:
            without_effect.add(place)
        else:
            assert digest not in seen, place
            seen.add(digest)
    assert without_effect == {".context_length"}
    assert len(seen) > 100


def test_scalings_with_the_same_numbers_are_apart() -> None:
    made = [replace(PHI, rope=RopeConfig(1e4, each)) for each in (LinearScaling(2.0), None)]
    made.append(replace(PHI, rope=RopeConfig(1e4, FactorScaling((2.0,)))))
    assert len({digest_of(shape_of(each)) for each in made}) == 3


def test_a_value_that_has_no_words_is_refused() -> None:
    with pytest.raises(TypeError, match="has no place"):
        shape_of(replace(PHI, bos_token_id=object()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flags", "short_length"),
    [
        ({}, 128),
        ({"context_length": 129}, 128),
        ({"context_length": 128}, None),
        ({"kv_tokens": 100}, None),
        ({"context_length": 100, "kv_tokens": 1000}, None),
    ],
)
def test_requests_turn_keys_in_two_ways_where_they_can_be_long(
    flags: dict[str, int], short_length: int | None
) -> None:
    """And each way is the same in any context: stored keys are of one of them."""
    reached = reached_of(EngineConfig(**flags), PHI)
    assert reached.context_length == min(flags.values(), default=512)
    assert reached.short_length == short_length
    assert reached.rope == PHI.rope


class Model:
    """A folder with weights, and what identifies what is computed with it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, folder.parent / "store"
        self.folder.mkdir(parents=True)
        self.store.mkdir(exist_ok=True)
        self.write("config.json", json.dumps(HF).encode())
        self.write("model.safetensors", b"weights")

    def write(self, name: str, content: bytes) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_bytes(content)

    def shard(self, *names: str) -> None:
        (self.folder / "model.safetensors").unlink(missing_ok=True)
        index = {"weight_map": {f"tensor {name}": name for name in names}}
        self.write("model.safetensors.index.json", json.dumps(index).encode())

    def identity(self, *, heads: int = 1, kv: torch.dtype = torch.float32, **flags: Any) -> str:
        config = EngineConfig(model=str(self.folder), **flags)
        files, device = ModelFolder(self.folder), torch.device("cpu")
        pool = KVPool(1, 8, heads, 16, kv, device, coded=config.kv_cache_dtype == "int8")
        model = reached_of(config, ModelConfig.from_hf(files.config()))
        source = EngineFacts(files, stamped(files.weights()), model, threads=2)
        made = source.identity(
            config, pool, PoolBlocks(pool, 8), WeightSums(self.store), progress=False
        )
        return made.digest(8, 64)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path / "model")


def test_what_changes_keys_changes_the_identity(model: Model) -> None:
    found = [
        model.identity(**flags)
        for flags in (
            {},
            {"kv": torch.bfloat16},
            {"kv_cache_dtype": "int8"},
            {"quantization": "int8"},
            {"page_size": 2},
            {"deterministic": True},
            {"model_impl": "transformers"},
        )
    ]
    assert len(set(found)) == len(found)
    same = ({"context_length": 128}, {"kv_tokens": 100}, {"kv_tokens": 5000}, {"threads": 1})
    assert {model.identity(**flags) for flags in same} == {found[0]}
    model.write("config.json", json.dumps({**HF, "rope_theta": 9e3}).encode())
    assert model.identity() not in found


@pytest.mark.parametrize("name", ["shards/all.safetensors", "weights.bin", "a/b"])
def test_the_shards_that_are_loaded_are_those_that_count(model: Model, name: str) -> None:
    model.write(name, b"one")
    model.shard(name)
    first = model.identity()
    model.write("beside.safetensors", b"which the index has not")
    assert model.identity() == first
    model.write(name, b"two")
    assert model.identity() != first
    model.write("more", b"three")
    before = model.identity()
    model.shard(name, "more")
    assert model.identity() != before


def test_a_copy_under_another_name_is_the_same_model(model: Model, tmp_path: Path) -> None:
    copied = Model(tmp_path / "copies" / "of it")
    shutil.copytree(model.folder, copied.folder, dirs_exist_ok=True)
    assert copied.identity() == model.identity()
