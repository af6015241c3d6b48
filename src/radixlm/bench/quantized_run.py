"""Measures engines with weights of several formats, beside llama.cpp, in turns.

Ours are in this process, llama.cpp is in another (`llama_side`). Both decode one stream after a
short prompt, and prefill a prompt of which nothing is cached. Ours answer requests: they sample and
make text of it; llama.cpp only computes.
"""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import gguf
import numpy as np
import torch

from radixlm.assembly import Engine
from radixlm.assembly.loading import QUANTIZERS
from radixlm.core.errors import ConfigError
from radixlm.core.sampling import SamplingParams
from radixlm.kernels.openmp import team
from radixlm.models import CausalLM, ModelConfig, load_config
from radixlm.testing.gguf_writer import write_gguf

# What llama.cpp has with as many bits, and whether all of its matrices are to have them: of Q4_K_M
# some have more, as it is always made.
PEERS: Mapping[str, Mapping[str, bool]] = MappingProxyType(
    {
        "bf16": {"BF16": True},
        "int8": {"Q8_0": True},
        "fp8": {},
        "int4": {"Q4_0": True, "Q4_K_M": False},
    }
)
# Types of llama.cpp's own files, in which some matrices have more bits.
GGUF_TYPES = (
    *("Q2_K", "Q3_K_M", "Q4_0", "Q4_1", "Q4_K_S", "Q4_K_M", "Q5_0", "Q5_1", "Q5_K_M", "Q6_K"),
    *("Q8_0", "IQ4_NL", "IQ4_XS"),
)
CONTEXT = 1024
_SIDE = Path(__file__).with_name("llama_side.py")
_PEAK = Path(__file__).with_name("load_peak.py")


class Sizes(NamedTuple):
    """Sizes in tokens: prompt and answer of the one stream, and the prompt that is prefilled."""

    prompt: int = 16
    answer: int = 96
    prefill: int = 512


@dataclass(frozen=True, slots=True)
class Contest:
    """Weights that are measured. model, flags: what our engine loads; bytes_read, bytes_held: of
    weights, for each token of one stream and in memory; peers: llama.cpp's files by their names,
    made when they are called for.
    """

    name: str
    model: Path
    flags: Mapping[str, Any]
    bytes_read: int
    bytes_held: int
    peers: Mapping[str, Callable[[], Path]]


class MeasuredSide(Protocol):
    """A side of the comparison. Both give seconds: of one token of an answer, and of a whole
    prompt.
    """

    def decode(self, prompt: list[int], out: int) -> float: ...

    def prefill(self, prompt: list[int]) -> float: ...


@dataclass(frozen=True, slots=True)
class QuantizedTimes:
    """format: of ours; name: that of the side itself. bytes_read: of weights, for each token of one
    stream. decode, prefill: seconds, of each round. flash: whether that was faster.
    """

    format: str
    name: str
    bytes_read: int
    flash: bool | None = None
    decode: list[float] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)

    @property
    def is_ours(self) -> bool:
        return self.format == self.name

    def add(self, side: MeasuredSide, draw: Callable[[int], list[int]], sizes: Sizes) -> None:
        """The better of two: in the first one ours see that somebody else had the processors, and
        let them have some still.
        """
        prompts = [draw(sizes.prompt) for _ in range(2)]
        self.decode.append(min(side.decode(prompt, sizes.answer) for prompt in prompts))
        prompts = [draw(sizes.prefill) for _ in range(2)]
        self.prefill.append(min(side.prefill(prompt) for prompt in prompts))


class OurSide:
    """An engine with these flags."""

    def __init__(
        self, model: Path, flags: Mapping[str, Any], threads: int, kv_tokens: int = 2 * CONTEXT
    ) -> None:
        # A token a step: a random model's answers repeat themselves.
        drafts = {"speculative_algorithm": "off"}
        self._engine = Engine(str(model), threads=threads, kv_tokens=kv_tokens, **drafts, **flags)

    def decode(self, prompt: list[int], out: int) -> float:
        """The seconds of a token from the first output on, which may hold several tokens, or all of
        them.
        """
        return self.decode_streams([prompt], out)

    def decode_streams(self, prompts: list[list[int]], out: int) -> float:
        """The seconds of a token of each, from when all have begun."""

        async def together() -> list[list[tuple[float, int]]]:
            return await asyncio.gather(*(self._moments(prompt, out) for prompt in prompts))

        found = asyncio.run(together())
        began = max(moments[len(moments) > 2][0] for moments in found)
        ended = max(moments[-1][0] for moments in found)
        before = sum(max(count for at, count in moments if at <= began) for moments in found)
        return (ended - began) * len(prompts) / (len(prompts) * out - before)

    def prefill(self, prompt: list[int]) -> float:
        (began, _), (ended, _) = asyncio.run(self._moments(prompt, 1))
        return ended - began

    async def _moments(self, prompt: list[int], out: int) -> list[tuple[float, int]]:
        """The times when it was sent, and when outputs came; with the tokens that were there
        then.
        """
        params = SamplingParams(max_tokens=out, temperature=0, ignore_eos=True)
        moments = [(time.perf_counter(), 0)]
        async for output in self._engine.stream(prompt, params):
            moments.append((time.perf_counter(), moments[-1][1] + len(output.token_ids)))
        return moments

    def close(self) -> None:
        self._engine.close()


def flags(name: str) -> dict[str, str | None]:
    """Flags of an engine for one of our formats."""
    return {"dtype": "bfloat16", "quantization": None if name == "bf16" else name}


def of_format(folder: Path, name: str, scratch: Path, python: str | None) -> Contest:
    """A checkpoint in one of our formats, beside llama.cpp's types of as many bits."""
    config = load_config(folder)
    peers = {
        kind: functools.partial(gguf_file, folder, scratch, str(python), kind, pure=pure)
        for kind, pure in (PEERS[name].items() if python else ())
    }
    return Contest(
        name, folder, flags(name), bytes_read(config, name), bytes_held(config, name), peers
    )


def of_file(path: Path, python: str | None) -> Contest:
    """A GGUF file, as it is."""
    tied = load_config(path).tie_word_embeddings
    read, held = (_bytes_in(path, tied=its) for its in (tied, True))
    peers: dict[str, Callable[[], Path]] = {path.stem: lambda: path} if python else {}
    return Contest(path.name, path, {"dtype": "bfloat16"}, read, held, peers)


class LlamaSide:
    """llama.cpp in a process of its own."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._process = subprocess.Popen(  # noqa: S603 - the Python that the user names
            [python, str(_SIDE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, **command: object) -> dict[str, Any]:
        """Raises ConfigError where llama.cpp can not do it, or is not there."""
        try:
            print(json.dumps(command), file=self._process.stdin, flush=True)
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())  # type: ignore[union-attr]
        except (OSError, ValueError):
            self._process.kill()
            answer = {"error": f"it ended with {self._process.wait()}; does it have llama_cpp?"}
        if "error" in answer:
            raise ConfigError(f"--llama-python {self._python}: {answer['error']}")
        return answer

    def decode(self, prompt: list[int], out: int) -> float:
        return float(self.ask(do="decode", prompt=prompt, out=out)["seconds"])

    def prefill(self, prompt: list[int]) -> float:
        return float(self.ask(do="prefill", prompt=prompt)["seconds"])

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def measure(
    contests: Sequence[Contest],
    *,
    threads: int,
    rounds: int,
    sizes: Sizes,
    python: str | None,
    started: Callable[[str], object] = lambda _name: None,
) -> list[QuantizedTimes]:
    """Each of the contests, whose peers a python that has llama_cpp opens, in turns; one more
    round, before the others, is not counted. started: called with what is done next.
    """
    draw = np.random.default_rng(0)
    found: list[QuantizedTimes] = []
    for contest in contests:
        config = load_config(contest.model)
        tokens = functools.partial(random_tokens, draw, config.vocab_size)
        # One engine at a time: see below.
        with ExitStack() as stack:
            started(f"loading {contest.name}")
            ours = stack.enter_context(closing(OurSide(contest.model, contest.flags, threads)))
            sides: list[tuple[QuantizedTimes, MeasuredSide]] = [
                (QuantizedTimes(contest.name, contest.name, contest.bytes_read), ours)
            ]
            for peer, made_file in contest.peers.items():
                started(f"loading {peer}")
                path = made_file()
                theirs = stack.enter_context(closing(LlamaSide(str(python))))
                flash = theirs.ask(do="open", path=str(path), threads=threads, context=CONTEXT)
                read = _bytes_in(path, tied=config.tie_word_embeddings)
                sides.append((QuantizedTimes(contest.name, peer, read, flash["flash"]), theirs))
            # Files were made in this thread, and with its idle threads beside the engine's OpenMP
            # would count more than there are processors, and let all sleep.
            team().leave()
            for number in range(rounds + 1):
                for made, side in sides:
                    started(f"{made.name}, round {number} of {rounds}")
                    made.add(side, tokens, sizes)
        for made, _ in sides:
            del made.decode[0], made.prefill[0]
            found.append(made)
    return found


def random_tokens(draw: np.random.Generator, vocab: int, count: int) -> list[int]:
    """A prompt of `count` tokens of which nothing is cached."""
    drawn: list[int] = draw.integers(0, vocab, count).tolist()
    return drawn


def gguf_file(folder: Path, scratch: Path, python: str, kind: str, *, pure: bool) -> Path:
    """The checkpoint as a GGUF file in `scratch`, of one of llama.cpp's types; pure: all matrices,
    of which it gives some more bits else.
    """
    source, made = scratch / "BF16.gguf", scratch / ("pure" if pure else ".") / f"{kind}.gguf"
    if not source.exists():
        bf16_file(folder, source)
    if kind == "BF16":
        return source
    if not made.exists():
        made.parent.mkdir(exist_ok=True)
        with closing(LlamaSide(python)) as llama:
            llama.ask(do="quantize", source=str(source), target=str(made), kind=kind, pure=pure)
    return made


def bf16_file(folder: Path, path: Path) -> Path:
    """A checkpoint with made-up words as a GGUF file. llama.cpp reads no such tokenizer without a
    merge, and ours none to a word that is not there: the last word becomes one.
    """
    read = (folder / "tokenizer.json").read_text(encoding="utf-8")
    vocab: dict[str, int] = json.loads(read)["model"]["vocab"]
    words = [*sorted(vocab, key=vocab.__getitem__)[:-1], "Ġw"]
    further = {"tokenizer.ggml.tokens": words, "tokenizer.ggml.merges": ["Ġ w"]}
    write_gguf(folder, path, "BF16", further=further)
    return path


def bytes_read(config: ModelConfig, name: str) -> int:
    """The bytes of weights that each token of one stream reads, as they are held: panels with their
    scales. The head is read whole, of the embedding a row.
    """
    model = CausalLM(config, dtype=torch.bfloat16, device=torch.device("meta"))
    return sum(_held(linear.weight, name) for _, linear in model.linears())


def bytes_held(config: ModelConfig, name: str) -> int:
    """The bytes of all weights. A tied head is held beside the embedding, see `Linear.pack`."""
    return bytes_read(config, name) + 2 * config.vocab_size * config.hidden_size


def _held(weight: torch.Tensor, name: str) -> int:
    """Scales of groups are held in float16, those of whole rows in float32."""
    if name not in QUANTIZERS:
        return weight.nbytes
    outputs, inputs = weight.shape
    row = QUANTIZERS[name](torch.ones(1, inputs))
    scale = 4 if row.is_whole else 2
    return outputs * (inputs * row.bits // 8 + row.scales.numel() * scale)


def _bytes_in(path: Path, *, tied: bool) -> int:
    """The bytes of a GGUF file's weights that a token reads."""
    tensors = gguf.GGUFReader(path).tensors
    return sum(int(each.n_bytes) for each in tensors if tied or each.name != "token_embd.weight")


class Growth(NamedTuple):
    """Bytes by which a fresh process grows when it loads an engine."""

    most: int
    stays: int


def growth(model: Path, flags: Mapping[str, Any]) -> Growth:
    """Load a model in a fresh process, with the smallest KV pool."""
    command = [sys.executable, str(_PEAK), str(model), json.dumps(dict(flags))]
    said = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    return Growth(*map(int, said.stdout.splitlines()[-1].split()))
