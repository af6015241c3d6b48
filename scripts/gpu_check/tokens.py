"""Whether engines on the device answer in float32 as transformers does on the CPU."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from radixlm import Engine, SamplingParams
from radixlm.assembly import DEMO_MODEL
from radixlm.core.grammar import Grammar
from radixlm.testing.gguf_writer import write_gguf
from radixlm.testing.quantized_folders import Recipe, quantize_folder, write_mxfp4, write_plain
from radixlm.testing.reference import Greedy, greedy, load_reference, make_checkpoint
from scripts.gpu_check.place import Finding, Place

_COUNT = 16
_GREEDY = SamplingParams(max_tokens=_COUNT, temperature=0, ignore_eos=True)
_LETTERS = "[a-f]{9,20}"
# Where the two best are this near, rounding chooses.
_TIE = 1e-3
_SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
_SHARED = np.random.default_rng(0).integers(0, 250, 400).tolist()
_PROMPTS = [*([*_SHARED, n, n + 1] for n in range(6)), *(_SHARED[: 30 * n] for n in (1, 5, 13))]
_QUESTIONS = ["What is the capital of France?", "Water is made of", "Two and two are"]


class Pair(NamedTuple):
    """A model for the device, and the folder of one that has the same weights in full. flags: of
    the device's engine. lora: the adapter that is asked for.
    """

    model: Path
    plain: Path
    flags: Mapping[str, Any]
    lora: str | None = None

    @property
    def plain_products(self) -> bool:
        """Whether its weights are in floats as they are stored."""
        return self.model == self.plain or self.lora is not None


def tokens(place: Place) -> Iterator[Finding]:
    """The demo model, folders and files of every format, and what else changes a token's way: cold,
    cached, and with a shared prefix.
    """
    with _engine(DEMO_MODEL, place) as engine:
        prompts = [engine.tokenizer.encode(text).tolist() for text in _QUESTIONS]
        yield _compared("demo model", engine, prompts, DEMO_MODEL)
        masked = SamplingParams(max_tokens=_COUNT, temperature=0, grammar=Grammar.regex(_LETTERS))
        texts = [output.text for output in engine.generate(_QUESTIONS, masked)]
        yield {"what": "grammar", "ok": all(re.match("[a-f]+$", text) for text in texts)}
    for name, make in _MAKERS.items():
        with tempfile.TemporaryDirectory() as folder:
            pair = make(Path(folder))
            with _engine(pair.model, place, **pair.flags) as engine:
                found = _compared(name, engine, _PROMPTS, pair.plain, pair.lora)
            # The CPU multiplies codes by bytes, which rounds more.
            yield found if place.on_gpu or pair.plain_products else {"what": name}


def _engine(model: Path, place: Place, **flags: Any) -> Engine:
    given = {"dtype": "float32", "kv_tokens": 8_000} | flags
    return Engine(str(model), device=place.device, **given)


def _compared(
    name: str,
    engine: Engine,
    prompts: Sequence[list[int]],
    plain: Path,
    lora: str | None = None,
) -> Finding:
    wanted = greedy(load_reference(plain), prompts, _COUNT)
    turns = [
        [list(each.token_ids) for each in engine.generate(list(prompts), _GREEDY, lora_path=lora)]
        for _ in ("cold", "cached")
    ]
    wrong = [prompt for turn in turns for prompt in _wrong(turn, wanted)]
    return {"what": name, "wrong": len(wrong), "of": 2 * len(prompts), "ok": not wrong}


def _wrong(ours: Sequence[list[int]], wanted: Greedy) -> Iterator[int]:
    """Answers that differ where rounding does not choose, by their numbers."""
    for number, gaps in enumerate(wanted.gaps):
        sure = next((place for place, gap in enumerate(gaps) if gap < _TIE), len(gaps))
        if ours[number][:sure] != wanted.tokens[number][:sure]:
            yield number


def _quantized(recipe: Recipe, folder: Path) -> Pair:
    base = make_checkpoint(folder / "base", "qwen3", **_SIZES)
    whole = quantize_folder(base, folder / "quantized", recipe)
    return Pair(folder / "quantized", write_plain(base, folder / "plain", whole), {})


def _gguf(kind: str, folder: Path) -> Pair:
    base = make_checkpoint(folder / "base", "llama", **_SIZES, tie_word_embeddings=True)
    whole = write_gguf(base, folder / "m.gguf", kind)
    return Pair(folder / "m.gguf", write_plain(base, folder / "plain", whole), {})


def _mxfp4(folder: Path) -> Pair:
    base = make_checkpoint(folder / "base", "gpt_oss")
    whole = write_mxfp4(base, folder / "quantized")
    return Pair(folder / "quantized", write_plain(base, folder / "plain", whole), {})


def _family(family: str, folder: Path, **flags: Any) -> Pair:
    base = make_checkpoint(folder / "base", family)
    return Pair(base, base, flags)


def _adapter(folder: Path) -> Pair:
    """One of PEFT's kind, for the queries of all layers; and the model with what it adds."""
    base, own = make_checkpoint(folder / "base", "llama", **_SIZES), folder / "own"
    own.mkdir()
    generator = torch.Generator().manual_seed(0)
    whole, parts = load_file(base / "model.safetensors"), dict[str, Tensor]()
    for name in [name for name in whole if name.endswith("q_proj.weight")]:
        outputs, inputs = whole[name].shape
        a, b = (torch.randn(size, 4, generator=generator) * 0.15 for size in (inputs, outputs))
        place = f"base_model.model.{name.removesuffix('.weight')}.lora_"
        parts |= {f"{place}A.weight": a.t().contiguous(), f"{place}B.weight": b}
        whole[name] = whole[name] + 2 * b @ a.t()
    save_file(parts, own / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (own / "adapter_config.json").write_text(json.dumps(config))
    plain = write_plain(base, folder / "plain", whole)
    return Pair(base, plain, {"lora_paths": (f"own={own}",)}, "own")


_MAKERS: Mapping[str, Callable[[Path], Pair]] = {
    "GPTQ": partial(_quantized, Recipe("gptq", symmetric=False)),
    "GGUF Q8_0": partial(_gguf, "Q8_0"),
    "MXFP4, sinks, windows": _mxfp4,
    "experts": partial(_family, "qwen3_moe"),
    "adapter": _adapter,
    # So few tokens that what is asked again comes from the host.
    "host memory": partial(_family, "llama", kv_tokens=700, host_kv_tokens=4_000),
    "AWQ": partial(_quantized, Recipe("awq", group=64, symmetric=False)),
    "capped scores": partial(_family, "gemma2"),
    "latents": partial(_family, "deepseek_v3"),
    "GGUF Q4_K": partial(_gguf, "Q4_K"),
    "int8 by row": partial(_quantized, Recipe("int-quantized", bits=8, group=0)),
}
