"""Which files of a model on the Hub are fetched."""

from __future__ import annotations

import pytest

from radixlm.core.errors import ModelError
from radixlm.text.hub import chosen
from radixlm.text.model_folder import HubModel, hub_model, on_hub

MODEL = HubModel("a/b")


def test_parts_of_a_file_come_together_from_a_folder():
    names = [f"Q4_K_M/m-Q4_K_M-0000{part}-of-00002.gguf" for part in (2, 1)]
    assert chosen([*names, "m.Q8_0.gguf", "config.json"], MODEL) == sorted(names)
    assert chosen(names, HubModel("a/b", "q4_k_m")) == sorted(names)
    assert chosen(["m-BF16.gguf"], MODEL) == ["m-BF16.gguf"]
    assert chosen(["model.gguf"], MODEL) == ["model.gguf"]


def test_shards_and_what_is_beside_them():
    names = ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.model"]
    more = ["original/consolidated.00.pth", "consolidated.safetensors", "../x.json", "a.bin"]
    assert sorted(chosen(names + more, MODEL)) == sorted(names)


@pytest.mark.parametrize("names", [[], ["pytorch_model.bin"], ["config.json", "mmproj-F16.gguf"]])
def test_no_weights_that_are_read(names):
    with pytest.raises(ModelError, match="a/b holds neither"):
        chosen(names, MODEL)


def test_a_kind_that_is_not_there():
    with pytest.raises(ModelError, match="of BF16, Q8_0; name one") as caught:
        chosen(["m-Q8_0.gguf", "m-bf16.gguf"], HubModel("a/b", "Q2_K"))
    assert caught.value.commands[0].endswith("serve a/b:BF16")
    with pytest.raises(ModelError, match="a/b holds no GGUF files"):
        chosen(["model.safetensors"], HubModel("a/b", "Q2_K"))


@pytest.mark.parametrize("text", ["./a/b", "a/b/c", "/a/b", "~/a", "a", "a/b:", "a/..", "a/b c"])
def test_other_texts_are_no_names(text):
    assert hub_model(text) is None


def test_a_folder_comes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert on_hub("a/b") == ("a/b", "")
    assert on_hub("a/b:Q4_0") == ("a/b", "Q4_0")
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert on_hub("a/b") is None
    assert on_hub("c/d.gguf") is None
    assert on_hub(None) is None
