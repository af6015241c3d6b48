"""Do damaged checkpoints end in an error of ours, in bounded time and memory?

    python -m fuzz.damaged [--format compressed-tensors] [--files 10000] [--seed 0]

Each round writes a small folder with one file damaged (bits turned, cut, spliced, its header or an
object of its JSON changed), and serves it as far as that goes: config, weights, one step. What is
right to come out is CheckpointError, UnsupportedModelError, or an answer. Anything else is printed
with its round; a crash, or a round that takes too long, ends the process. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from radixlm.core.errors import CheckpointError, UnsupportedModelError
from radixlm.memory.pools import MOST_TOKENS
from radixlm.models import load_config, load_model, open_checkpoint
from radixlm.products.gemm_choice import one_way
from radixlm.testing.float_folders import FloatRecipe, write_floats
from radixlm.testing.quantized_folders import Recipe, quantize_folder
from radixlm.testing.reference import make_checkpoint
from radixlm.text.model_folder import resolve_model

Damage = Callable[[random.Random, bytes], bytes]

# Seconds of a round, kernels that are compiled in it included; memory beyond that of the first
# rounds.
MOST_SECONDS, MOST_BYTES = 60, 256 << 20
_WARM = 20
_NUMBERS = (0, 1, -1, 2, 3, 7, 16, 31, 64, 2**31 - 1, 2**31, 2**63, -(2**63), 2**70, 0.5, 1e308)
_VALUES: tuple[Any, ...] = (
    *(
        *_NUMBERS,
        None,
        True,
        False,
        "",
        "x" * 5_000,
        "int",
        "float",
        "group",
        "channel",
        "gptq",
        "block",
        "FP8",
        "fp8",
        "NVFP4",
        [32, 16],
    ),
    *([], {}, [[]], [-1], {"a": 0}, float("nan"), float("inf")),
)
_TYPES = (
    "BOOL",
    "U8",
    "I8",
    "I16",
    "F16",
    "BF16",
    "I32",
    "F32",
    "F8_E4M3",
    "F8_E8M0",
    "I64",
    "F64",
    "?",
)
_SPECIAL = (
    b"\x7f\xff",
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x00\x7c",
    b"\x00\xfc",
    b"\xc0\x7f",
    b"\x01\x00",
)


class Format(NamedTuple):
    """make: writes undamaged folders below a folder, and returns them. damages: by file's name."""

    make: Callable[[Path], Sequence[Path]]
    damages: Mapping[str, Sequence[Damage]]


def flipped(draw: random.Random, content: bytes, within: int = 0) -> bytes:
    """Up to eight bits turned; within: of how many first bytes, 0: of all."""
    made = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        made[draw.randrange(min(within or len(made), len(made)))] ^= 1 << draw.randrange(8)
    return bytes(made)


def cut(draw: random.Random, content: bytes) -> bytes:
    return content[: draw.randrange(len(content))]


def spliced(draw: random.Random, content: bytes) -> bytes:
    """A stretch left out, doubled, or made of other bytes."""
    start = draw.randrange(len(content))
    stop = min(start + draw.choice((1, 4, 8, 100, 5_000)), len(content))
    middle = draw.choice((b"", content[start:stop] * 2, draw.randbytes(stop - start)))
    return content[:start] + middle + content[stop:]


def overwritten(draw: random.Random, content: bytes) -> bytes:
    """A stretch in the second half, where data is, of numbers that are none, the largest, zeros."""
    size = draw.choice((2, 64, 1_000, 20_000))
    start = draw.randrange(len(content) // 2, len(content)) & ~1
    pattern = draw.choice(_SPECIAL)
    size = min(size, len(content) - start)
    return content[:start] + (pattern * size)[:size] + content[start + size :]


def json_changed(draw: random.Random, content: bytes) -> bytes:
    """One value of an object, however deep, is another, is gone, or has another name."""
    whole = json.loads(content)
    owner, key = draw.choice(list(_places(whole)))
    match draw.randrange(4):
        case 0:
            del owner[key]
        case 1 if isinstance(owner, dict):
            owner[draw.choice(("", "bits", "group_size", "weights"))] = owner.pop(key)
        case _:
            owner[key] = draw.choice(_VALUES)
    return json.dumps(whole).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a JSON value, with each key or index."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    made = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], dict | list):
            made += _places(value[key])
    return made


def header_changed(draw: random.Random, content: bytes) -> bytes:
    """A safetensors file whose header says something else of a tensor, or of its own length."""
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    names = [name for name in header if name != "__metadata__"]
    name, other = draw.sample(names, 2)
    entry = header[name]
    match draw.randrange(8):
        case 0:
            del header[name]
        case 1:
            entry["dtype"] = draw.choice(_TYPES)
        case 2:
            entry["shape"] = draw.choice(_alike(entry["shape"]))
        case 3:
            entry["shape"] = [draw.choice(_NUMBERS) for _ in range(draw.randint(0, 3))]
        case 4:
            entry["data_offsets"] = [draw.choice((*_NUMBERS, *header[other]["data_offsets"]))] * 2
        case 5:
            header[name], header[other] = header[other], entry
        case 6:
            header[draw.choice((other, name + "_", name.rpartition(".")[0]))] = header.pop(name)
        case _:
            size = draw.choice((0, 1, size - 1, size + 1, len(content), 2**63, 2**64 - 1))
            return size.to_bytes(8, "little") + content[8:]
    made = json.dumps(header).encode()
    return len(made).to_bytes(8, "little") + made + data


def _alike(shape: list[int]) -> list[list[int]]:
    """Other shapes of as many elements."""
    first, *rest = shape or [1]
    flat = first
    for size in rest:
        flat *= size
    return [shape[::-1], [flat], [1, flat], [flat, 1], [*shape, 1], [first * 2, flat // first // 2]]


def safetensors(*recipes: Recipe | FloatRecipe) -> Format:
    def make(root: Path) -> list[Path]:
        sizes: dict[str, Any] = {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
        }
        plain = make_checkpoint(root / "plain", "qwen2", **sizes)
        folders = [root / f"{number}" for number in range(len(recipes))]
        for folder, recipe in zip(folders, recipes, strict=True):
            if isinstance(recipe, FloatRecipe):
                write_floats(plain, folder, recipe)
            else:
                quantize_folder(plain, folder, recipe)
        return folders

    in_header = partial(flipped, within=4_000)
    damages = (flipped, in_header, cut, spliced, overwritten, header_changed, header_changed)
    changes = (flipped, cut, json_changed, json_changed, json_changed)
    return Format(make, {"model.safetensors": damages, "config.json": changes})


FORMATS: Mapping[str, Format] = {
    "compressed-tensors": safetensors(
        Recipe("pack-quantized"),
        Recipe("pack-quantized", symmetric=False),
        Recipe("int-quantized", bits=8, group=0),
        Recipe("int-quantized", bits=8, symmetric=False),
        Recipe("naive-quantized", bits=8, group=-1),
    ),
    "gptq": safetensors(Recipe("gptq"), Recipe("gptq", symmetric=False), Recipe("gptq_v2", bits=8)),
    "awq": safetensors(Recipe("awq", group=64, symmetric=False), Recipe("awq", group=64)),
    "fp8": safetensors(
        FloatRecipe("fp8", (128, 128)),
        FloatRecipe("fp8"),
        FloatRecipe("fbgemm_fp8", (1, 0)),
        FloatRecipe("float-quantized", (1, 0)),
        FloatRecipe("float-quantized", (32, 32)),
        FloatRecipe("modelopt", (1, 0)),
    ),
    "fp4": safetensors(FloatRecipe("nvfp4"), FloatRecipe("modelopt_nvfp4"), FloatRecipe("mxfp4")),
}


@torch.inference_mode()
def serve(folder: Path) -> None:
    """All that reads a folder's model, then one step with attention left out."""
    config = load_config(resolve_model(str(folder)))
    # Tables of a context that no pool could hold are not made, whatever the config says.
    config = replace(config, context_length=min(config.context_length, MOST_TOKENS))
    model = load_model(
        open_checkpoint(folder),
        config,
        dtype=torch.float32,
        device=torch.device("cpu"),
        choose=one_way,
        progress=False,
    )
    rows = torch.arange(min(3, config.vocab_size, config.context_length))
    width = config.n_heads * config.head_dim

    model.forward(rows, rows, _Nothing(width), rows)


class _Nothing:
    """In place of attention: the queries, `width` numbers of each token."""

    def __init__(self, width: int) -> None:
        self._width = width

    def __call__(self, layer: int, qkv: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ARG002
        return qkv[:, : self._width]


def outcome(folder: Path) -> str:
    """`served`, the name of an error that is right, or `wrong`, which is printed."""
    try:
        serve(folder)
    except (CheckpointError, UnsupportedModelError) as error:
        return type(error).__name__
    except Exception:
        traceback.print_exc()
        return "wrong"
    return "served"


def measure(name: str, files: int, seed: int) -> dict[str, Any]:
    made, slowest, first_peak = FORMATS[name], 0.0, 0
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as root:
        folders = list(made.make(Path(root)))
        for folder in folders:
            serve(folder)
        contents = {
            (folder, file): (folder / file).read_bytes()
            for folder in folders
            for file in made.damages
        }
        for number in tqdm(range(files), disable=None):
            draw = random.Random(f"{seed} {number}")
            folder, file = draw.choice(folders), draw.choice(list(made.damages))
            content = contents[folder, file]
            (folder / file).write_bytes(draw.choice(made.damages[file])(draw, content))
            faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
            started = time.perf_counter()
            found = outcome(folder)
            slowest = max(slowest, time.perf_counter() - started)
            faulthandler.cancel_dump_traceback_later()
            (folder / file).write_bytes(content)
            outcomes[found] += 1
            if found == "wrong":
                print(f"round {number}: {file} of {folder.name}", file=sys.stderr)
            if number == min(_WARM, files - 1):
                first_peak = _peak()
    grown = _peak() - first_peak
    return {
        "benchmark": "damaged",
        "format": name,
        "files": files,
        "seed": seed,
        "outcomes": dict(sorted(outcomes.items())),
        "slowest_s": round(slowest, 2),
        "grown_mb": round(grown / 1e6, 1),
        "passed": not outcomes["wrong"] and grown <= MOST_BYTES,
    }


def _peak() -> int:
    """The most memory that this process had, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--format", choices=FORMATS, default="compressed-tensors")
    parser.add_argument("--files", type=int, default=10_000, help="default: 10000")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report = measure(options.format, options.files, options.seed)
    print(json.dumps(report))
    sys.exit(not report["passed"])


if __name__ == "__main__":
    main()
