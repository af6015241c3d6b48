from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from radixlm.core.errors import CheckpointError
from radixlm.formats.model_files import ModelFolder
from radixlm.layers.linear import LMHead
from radixlm.models import CausalLM, PlainCheckpoint, load_config, load_model
from radixlm.models.safetensors_files import survey
from radixlm.products.gemm_choice import one_way
from radixlm.testing.reference import make_checkpoint

Tensors = dict[str, Tensor]


def load(folder: Path, dtype: torch.dtype = torch.float32) -> CausalLM:
    cpu = torch.device("cpu")
    checkpoint = PlainCheckpoint(folder)
    return load_model(checkpoint, load_config(folder), dtype=dtype, device=cpu, progress=False)


def edit(folder: Path, change: Callable[[Tensors], object]) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "single", "llama")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = make_checkpoint(tmp_path / "sharded", "llama", max_shard_size="100KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    return folder


def index_of(folder: Path) -> Path:
    return folder / "model.safetensors.index.json"


def test_sharded_equals_single_equals_the_file(single: Path, sharded: Path) -> None:
    stored = load_file(single / "model.safetensors")
    one, many = load(single).weights(), load(sharded).weights()
    assert one.keys() == many.keys() == stored.keys()
    for name, tensor in stored.items():
        assert torch.equal(one[name], tensor), name
        assert torch.equal(many[name], tensor), name


def test_weights_are_converted_on_the_way(single: Path) -> None:
    stored = load_file(single / "model.safetensors")
    for name, tensor in load(single, torch.bfloat16).weights().items():
        assert torch.equal(tensor, stored[name].bfloat16()), name


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stderr", "shown"), [(_Terminal(), True), (io.StringIO(), False)])
def test_a_bar_in_bytes_on_a_terminal(
    single: Path, monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, shown: bool
) -> None:
    monkeypatch.setattr("sys.stderr", stderr)
    checkpoint = PlainCheckpoint(single)
    load_model(
        checkpoint,
        load_config(single),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    written = stderr.getvalue()
    assert ("loading weights: 100%" in written) == shown
    assert ("B/s" in written) == shown


STRAY = {
    "lm_head.k_scale": torch.ones(1),
    "model.layers.0.self_attn.attn.v_scale": torch.ones(1),
    "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8),
    "model.layers.0.self_attn.rotary_emb.cos_cached": torch.zeros(8),
    "model.embeddings.position_ids": torch.zeros(8, dtype=torch.int64),
    "mtp.layers.0.mlp.up_proj.weight": torch.zeros(8, dtype=torch.float8_e4m3fn),
    "model.mtp.fc.weight": torch.zeros(8),
    "v_head.summary.weight": torch.zeros(8),
}


def test_stray_tensors_are_passed_over_with_one_line(
    single: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit(single, lambda tensors: tensors.update(STRAY))
    caplog.set_level("INFO", "radixlm.models")
    load(single)
    [line] = [each.message for each in caplog.records]
    assert "8 tensors" in line
    assert "lm_head.k_scale" in line
    assert "and 3 more" in line


class _Read(PlainCheckpoint):
    """Calls `seen` with the name of each weight that is read."""

    def __init__(self, folder: Path, seen: Callable[[str], object]) -> None:
        super().__init__(folder)
        self._seen = seen

    def read(self, name: str) -> Tensor:
        self._seen(name)
        return super().read(name)


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_is_packed_before_the_layers_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    """What that takes beside the weights is free again when the most of them are there."""
    folder, steps = make_checkpoint(tmp_path, "llama", tie_word_embeddings=tied), list[str]()
    pack = LMHead.pack

    def packing(head: LMHead, *args: Any) -> None:
        if not head.is_compiled:
            steps.append("pack")
        pack(head, *args)

    monkeypatch.setattr(LMHead, "pack", packing)
    load_model(
        _Read(folder, steps.append),
        load_config(folder),
        dtype=torch.float32,
        device=torch.device("cpu"),
        choose=one_way,
        progress=False,
    )
    assert steps.count("pack") == 1
    assert {*steps[: 2 if tied else 3]} == {
        *("model.embed_tokens.weight", "pack"),
        *(() if tied else ("lm_head.weight",)),
    }


def test_a_head_of_its_own_in_a_tied_model(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "llama", tie_word_embeddings=True)
    own = torch.randn(load_config(folder).vocab_size, 64)
    edit(folder, lambda tensors: tensors.update({"lm_head.weight": own}))
    model = load(folder)
    assert torch.equal(model.weights()["lm_head.weight"], own)
    assert not torch.equal(model.embedding.weight, own)


def test_a_copy_of_the_embedding_is_no_head_of_its_own(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "llama", tie_word_embeddings=True)
    name = "model.embed_tokens.weight"
    edit(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[name].clone()}))
    model = load(folder)
    assert "lm_head.weight" not in model.weights()
    assert model.head.weight is model.embedding.weight


def test_missing_tensor(single: Path) -> None:
    edit(single, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(CheckpointError, match=r"lacks.*model\.layers\.1\.mlp\.up_proj\.weight"):
        load(single)


def test_many_missing_tensors_are_not_all_listed(single: Path) -> None:
    edit(single, lambda tensors: [tensors.pop(name) for name in list(tensors) if "mlp" in name])
    with pytest.raises(CheckpointError, match=r"9 tensors.* and 4 more"):
        load(single)


def test_unexpected_tensor(single: Path) -> None:
    edit(single, lambda tensors: tensors.update({"model.layers.3.extra": torch.zeros(1)}))
    with pytest.raises(CheckpointError, match=r"model\.layers\.3\.extra"):
        load(single)


def test_one_weight_by_two_names(single: Path) -> None:
    edit(single, lambda its: its.update({"backbone.norm.weight": its["model.norm.weight"].clone()}))
    with pytest.raises(CheckpointError, match=r"'backbone.norm.weight' and 'model.norm.weight'"):
        load(single)


def test_wrong_shape_names_both(single: Path) -> None:
    edit(single, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(63)}))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight.*\(63,\).*\(64,\)"):
        load(single)


def test_quantized_tensors_are_refused(single: Path) -> None:
    name = "model.norm.weight"
    edit(single, lambda tensors: tensors.update({name: torch.zeros(64, dtype=torch.int8)}))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight.*I8"):
        load(single)


@pytest.mark.parametrize("keep", [0, 4, 100, -1000, -1])
def test_truncated_file(single: Path, keep: int) -> None:
    path = single / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or not"):
        load(single)


def test_a_pipe_that_took_a_files_place_is_not_waited_for(single: Path) -> None:
    checkpoint = PlainCheckpoint(single)
    (single / "model.safetensors").unlink()
    os.mkfifo(single / "model.safetensors")
    with pytest.raises(CheckpointError, match="cannot be read: it is not a regular file"):
        checkpoint.read("model.norm.weight")


def test_corrupt_header(single: Path) -> None:
    (single / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 4)
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        load(single)


def test_missing_shard(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=shard.name):
        load(sharded)


def test_the_index_says_which_shard_a_tensor_is_in(sharded: Path) -> None:
    """The other has a stale one, and one that the index leaves out."""
    right = load(sharded).weights()
    first, second = sorted(sharded.glob("model-*.safetensors"))[:2]
    stale = {name: torch.zeros_like(its) for name, its in load_file(second).items()}
    save_file(load_file(first) | stale | {"model.layers.0.old": torch.ones(1)}, first)
    loaded = load(sharded).weights()
    assert all(torch.equal(loaded[name], its) for name, its in right.items())


@pytest.mark.parametrize(
    "name", ["../single/model.safetensors", "/etc/passwd", "a\\..\\..\\b", "C:\\x"]
)
def test_index_that_leaves_the_folder(sharded: Path, single: Path, name: str) -> None:
    index = json.loads(index_of(sharded).read_text())
    index["weight_map"]["model.norm.weight"] = name
    index_of(sharded).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="outside of its folder"):
        load(sharded)


@pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": {}}', "[]"])
def test_broken_index(sharded: Path, content: str) -> None:
    index_of(sharded).write_text(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        load(sharded)


def test_shards_may_be_links_to_elsewhere(sharded: Path, tmp_path: Path) -> None:
    for shard in sharded.glob("model-*.safetensors"):
        blob = tmp_path / f"blob-{shard.name}"
        shard.rename(blob)
        shard.symlink_to(blob)
    load(sharded)


def test_pickled_weights_are_refused(single: Path) -> None:
    (single / "model.safetensors").rename(single / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*save_pretrained"):
        load(single)


def test_no_weights_at_all(single: Path) -> None:
    (single / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        load(single)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": 10**6},
        {"vocab_size": 10**9},
        {"hidden_size": 2**31 - 2},
        {"intermediate_size": 10**9},
        {"head_dim": 10**9},
        {"head_dim": 2**31 - 2, "num_attention_heads": 2**31 - 2, "num_key_value_heads": 1},
    ],
)
def test_what_the_config_says_costs_nothing_before_it_is_true(
    single: Path, fields: dict[str, int]
) -> None:
    """Memory would be taken for it, or forty seconds; a terabyte of weights is no header's say."""
    path = single / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(CheckpointError, match=r"config asks for"):
        load(single)


@pytest.mark.parametrize("name", ["model.safetensors", "shards/all.safetensors", "weights.bin"])
def test_what_is_loaded_is_what_is_listed(single: Path, name: str) -> None:
    """Identities of stores count the files of the list."""
    stored, path = single / "model.safetensors", single / name
    if path != stored:
        names = list(load_file(stored))
        index_of(single).write_text(json.dumps({"weight_map": dict.fromkeys(names, name)}))
        path.parent.mkdir(exist_ok=True)
        stored.rename(path)
    save_file({"model.norm.weight": torch.ones(64)}, single / "beside.safetensors")
    load(single)
    assert {tensor.shard for tensor in survey(single).values()} == {path}
    assert ModelFolder(single).weights() == [path]


@pytest.mark.parametrize("named", [{}, {"torch_dtype": "auto"}, {"dtype": None}])
def test_weights_have_the_type_that_they_are_stored_in(
    single: Path, named: dict[str, str | None]
) -> None:
    """Where config.json names none. A norm in float32 changes nothing."""
    config = json.loads((single / "config.json").read_text())
    config = {name: its for name, its in config.items() if name not in ("dtype", "torch_dtype")}
    (single / "config.json").write_text(json.dumps(config | named))

    def halved(tensors: Tensors) -> None:
        norm = tensors["model.norm.weight"]
        tensors |= {name: its.to(torch.float16) for name, its in tensors.items()}
        tensors["model.norm.weight"] = norm

    edit(single, halved)
    assert load_config(single).dtype == torch.float16
    (single / "model.safetensors").write_bytes(b"no header at all")
    assert load_config(single).dtype == torch.float32
