"""Damaged GGUF files: each is an error in words or loads; none takes the process, memory or time.

    python -m fuzz.damaged_gguf [--files 10000] [--seed 0]

Small models' files, of both kinds of tokenizers, of several families and types, are damaged in
their heads: bytes flipped, places overwritten by numbers that lengths, counts and types have, ends
cut off, stretches moved; and in their data, where scales become no numbers.
Each is loaded whole: config, tokenizer, template, weights. A process of its own loads a thousand;
what ends it, or takes more than the limits below, is a crash. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from radixlm.core.errors import RadixLMError
from radixlm.formats.gguf_file import GGUFFile
from radixlm.formats.model_files import ModelFile
from radixlm.models import GGUFCheckpoint, load_config, load_model
from radixlm.testing.gguf_writer import UNSAID, write_gguf
from radixlm.testing.reference import make_checkpoint
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.tokenizer import Tokenizer

_AT_ONCE = 1000
_SECONDS = 20
_BYTES = 1 << 30  # beyond what the process has before the first file
_LARGE = (2**n + d for n in (16, 31, 32, 40, 63) for d in (-1, 0))
_VALUES = (0, 1, 2, 7, 8, 9, 12, 30, 255, *_LARGE)
_WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
_LONG = [1.0 + at / 4 for at in range(6)]
_KINDS, _DELTA = ["full_attention", "sliding_attention"], ["linear_attention", "full_attention"]
_LONG_ROPE = {"rope_type": "longrope", "short_factor": _LONG, "long_factor": _LONG}
_OTHERS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("gemma3_text", "IQ4_NL", {"layer_types": ["sliding_attention"]}),
    ("gpt_oss", "MXFP4", {"layer_types": ["sliding_attention"]}),
    ("deepseek_v3", "Q8_0", {"first_k_dense_replace": 0}),
    ("phi3", "Q5_0", {"rope_parameters": _LONG_ROPE | {"partial_rotary_factor": 0.75}}),
    ("granitemoe", "Q3_K", _WIDE),
    ("qwen3_moe", "Q2_K", {**_WIDE, "moe_intermediate_size": 256}),
    ("mixtral", "IQ4_XS", _WIDE),
    ("stablelm", "F16", {"qk_layernorm": True}),
    ("qwen2_moe", "IQ2_XS", {**_WIDE, "moe_intermediate_size": 256}),
    ("apertus", "F16", {}),
    ("mimo_v2_flash", "Q8_0", {"num_hidden_layers": 2, "layer_types": _KINDS}),
    ("qwen3_5_moe_text", "Q8_0", {"num_hidden_layers": 2, "layer_types": _DELTA}),
    ("falcon_h1", "Q8_0", {}),
    ("lfm2_moe", "Q8_0", {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}),
)
_TEXT = "hello  <|im_end|> ü 你好 123"


class SlowError(Exception):
    """A file took more than `_SECONDS`."""


def damaged(content: bytes, head: int, chance: random.Random) -> bytes:
    """content: a whole file, whose first `head` bytes are not data."""
    made = bytearray(content)
    match chance.randrange(6):
        case 0:
            for _ in range(chance.randint(1, 8)):
                made[chance.randrange(head)] ^= 1 << chance.randrange(8)
        case 1:
            for _ in range(chance.randint(1, 3)):
                made[chance.randrange(head)] = chance.randrange(256)
        case 2:
            del made[chance.choice((chance.randrange(head), chance.randrange(len(made)))) :]
        case 3:
            form = chance.choice("BIQ")
            size = struct.calcsize(form)
            at = chance.choice((8, 16, chance.randrange(head - size)))
            made[at : at + size] = struct.pack(f"<{form}", chance.choice(_VALUES) % 256**size)
        case 4:
            for _ in range(chance.randint(1, 50)):
                made[chance.randrange(head, len(made))] = chance.choice((0x7C, 0xFC, 0xFF))
        case _:
            start, stop = sorted(chance.randrange(head) for _ in range(2))
            part = made[start : min(stop, start + 200)]
            at = chance.randrange(head)
            made[at : at + (len(part) if chance.random() < 0.5 else 0)] = part
    return bytes(made)


def load_all(path: Path) -> None:
    files = ModelFile(path)
    config = load_config(files)
    tokenizer = Tokenizer.load(files)
    tokenizer.decode(tokenizer.encode(_TEXT))
    template = ChatTemplate.load(files)
    if template is not None:
        template.render([{"role": "user", "content": "x"}])
    checkpoint = GGUFCheckpoint(files.gguf, config)
    cpu = torch.device("cpu")
    load_model(checkpoint, config, dtype=torch.float32, device=cpu, progress=False)


def outcome(path: Path) -> str:
    """errors, loaded or crashes; what crashed goes to stderr."""
    signal.alarm(_SECONDS)
    try:
        load_all(path)
    except RadixLMError:
        return "errors"
    except BaseException as error:  # a library may panic
        print(f"{path}: {type(error).__name__}: {error}"[:500], file=sys.stderr)
        return "crashes"
    finally:
        signal.alarm(0)
    return "loaded"


def too_slow(_number: int, _frame: FrameType | None) -> None:
    raise SlowError


def load_some(folder: Path, first: int, seed: int) -> None:
    """Load the files of some numbers, and print what came of each."""
    torch.set_num_threads(1)
    sources = sorted(folder.glob("whole-*.gguf"))
    heads = [min(each.start for each in GGUFFile(path).tensors.values()) for path in sources]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _BYTES, used + _BYTES))
    signal.signal(signal.SIGALRM, too_slow)
    for number in range(first, first + _AT_ONCE):
        chance, which = random.Random(f"{seed}-{number}"), number % len(sources)
        path = folder / f"{number}.gguf"
        path.write_bytes(damaged(sources[which].read_bytes(), heads[which], chance))
        found = outcome(path)
        print(found, flush=True)
        if found != "crashes":
            path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", nargs=2, help="a folder and a number: load its files from there")
    args = parser.parse_args()
    if args.part:
        load_some(Path(args.part[0]), int(args.part[1]), args.seed)
        return
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sources(folder)
        for first in range(0, args.files, _AT_ONCE):
            command = [
                sys.executable,
                __file__,
                "--seed",
                str(args.seed),
                "--part",
                name,
                str(first),
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            counts.update(done.stdout.split())
            counts["crashes"] += done.returncode != 0
    print(
        json.dumps({"files": args.files} | {k: counts[k] for k in ("errors", "loaded", "crashes")})
    )


def write_sources(folder: Path) -> None:
    """One file of each kind of tokenizer, and some of each family and type that has changes of its
    own; their weights are small.
    """
    model = make_checkpoint(folder / "model", "llama", num_hidden_layers=1, intermediate_size=64)
    write_gguf(model, folder / "whole-0.gguf", "Q8_0")
    scores = {"tokenizer.ggml.scores": [float(-at) for at in range(320)]}
    pieces = {"tokenizer.ggml.model": "llama"} | scores
    write_gguf(model, folder / "whole-1.gguf", "Q4_0", further=pieces)
    for number, (family, kind, fields) in enumerate(_OTHERS):
        sizes = {"num_hidden_layers": 1} | dict(UNSAID.get(family, {})) | fields
        model = make_checkpoint(folder / f"{family}-{kind}", family, **sizes)
        write_gguf(model, folder / f"whole-2{number}.gguf", kind)


if __name__ == "__main__":
    main()
