"""One pass over freshly written text: short rows first, long rows last, Muon for the matrices."""

from __future__ import annotations

import contextlib
import ctypes
import time
from dataclasses import dataclass
from itertools import islice
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from tqdm import tqdm

from .corpus import long_documents, short_documents
from .model import CONTEXT, DemoModel, rotary_table, save_model
from .questions import Rng
from .tokenizer import Packer, special_ids

# (until this share of the run, row length, rows per step and worker)
STAGES = ((0.7, 256, 8), (0.84, 1024, 2), (9.9, CONTEXT - 1, 1))
OTHER_WEIGHT = 0.05  # loss weight of what users and system prompts say
CHECKPOINT_SECONDS = 240.0
MUON_LR, ADAM_LR = 0.02, 4e-3


@dataclass(frozen=True)
class Budget:
    """A run ends after `steps` if given, else after `minutes`; schedules follow its progress."""

    minutes: float
    steps: int | None
    done: float = 0.0  # a resumed run begins here

    def progress(self, started: float, step: int) -> float:
        if self.steps is not None:
            part = step / self.steps
        else:
            part = (time.monotonic() - started) / (60 * self.minutes)
        return self.done + (1 - self.done) * part


@dataclass
class Result:
    tokens: int = 0
    steps: int = 0
    minutes: float = 0.0
    loss: float = 0.0


class Muon:
    """Momentum whose update is made orthogonal: twice the learning per token on small models."""

    def __init__(self, weights: list[nn.Parameter], momentum: float = 0.95) -> None:
        self.weights = weights
        self._momentum = momentum
        self._groups: dict[torch.Size, list[nn.Parameter]] = {}
        for weight in weights:
            self._groups.setdefault(weight.shape, []).append(weight)
        self._averages = {id(w): torch.zeros(w.shape) for w in weights}

    @torch.no_grad()
    def step(self, gradients: dict[int, Tensor], lr: float, decay: float = 0.02) -> None:
        """`gradients` by id of the weight; matrices of one shape are made orthogonal together."""
        for (rows, columns), weights in self._groups.items():
            updates = []
            for weight in weights:
                gradient = gradients[id(weight)]
                average = self._averages[id(weight)].lerp_(gradient, 1 - self._momentum)
                updates.append(gradient.lerp(average, self._momentum))
            scale = max(1.0, rows / columns) ** 0.5
            for weight, update in zip(weights, orthogonal(torch.stack(updates)), strict=True):
                weight.mul_(1 - lr * decay)
                weight.add_(update.to(weight.dtype), alpha=-lr * scale)


def orthogonal(matrices: Tensor) -> Tensor:
    """Newton-Schulz: pushes all singular values towards 1 with matrix products alone."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    out: Tensor = x.mT if tall else x
    return out


def learning_rate(progress: float) -> float:
    """Warm up, hold, then fall in a straight line to almost nothing."""
    return min(1.0, 0.05 + progress / 0.02, 0.03 + (1 - progress) / 0.55)


def keep_freed_memory() -> None:
    """Tells glibc to reuse big buffers instead of handing them back after every step."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
        libc.mallopt(-3, 1 << 25)  # M_MMAP_THRESHOLD; glibc refuses more than this


class Rows:
    """Batches of ids and loss weights, written just in time."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._packer = Packer(tokenizer)
        self._seed = seed
        self._documents = short_documents(Rng(seed), 3)
        self._ready: list[tuple[np.ndarray, np.ndarray]] = []
        self._length = 0

    def take(self, length: int, count: int) -> tuple[Tensor, Tensor]:
        if length != self._length:
            self._ready, self._length = [], length
            rng = Rng(self._seed + length)
            if length >= CONTEXT - 1:
                self._documents = long_documents(rng)
            else:  # a long system prompt would leave no room for answers in a short row
                self._documents = short_documents(rng, 3 if length < 512 else 24)
        while len(self._ready) < count:
            batch = list(islice(self._documents, 120 if length > 2048 else 1000))
            self._ready += self._packer.rows(batch, length, OTHER_WEIGHT)
        rows = [self._ready.pop() for _ in range(count)]
        ids, weights = (torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True))
        return ids, weights


def positions(rng: Rng, length: int) -> Tensor:
    """Now and then a short row jumps ahead, so far distances are met long before long rows are."""
    place = torch.arange(length)
    if length < CONTEXT - 1 and rng.random() < 0.4:
        place[rng.randrange(length) :] += rng.randint(0, CONTEXT - length)
    return place


@dataclass
class Shared:
    """What the worker processes share: weights, everyone's gradients, and two numbers each."""

    model: DemoModel
    tokenizer: str
    seed: int
    gradients: list[list[Tensor]]
    losses: Tensor
    progress: Tensor
    barrier: Barrier


class Worker:
    """One process on one thread: computes its own rows, then updates its share of the weights.

    Two such processes keep two cores busier than two threads in lockstep, and lose far less when
    somebody else wants a core.
    """

    def __init__(self, rank: int, shared: Shared) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        self._rank, self._shared = rank, shared
        self._workers = len(shared.gradients)
        self._rows = Rows(Tokenizer.from_str(shared.tokenizer), shared.seed + 10 * rank)
        self._rng = Rng(shared.seed + 10 * rank + 3)
        self._cos, self._sin = rotary_table()
        self._compiled = torch.compile(shared.model, dynamic=False)
        matrices, self._others = [], []
        for i, (name, weight) in enumerate(shared.model.named_parameters()):
            weight.grad = shared.gradients[rank][i]
            if weight.dim() == 1 or "layers" not in name:
                self._others.append(weight)
            elif (int(name.split(".")[1]) + 1) % self._workers == rank:
                matrices.append(weight)
        self._muon = Muon(matrices)
        self._adam = torch.optim.AdamW(self._others, ADAM_LR, (0.9, 0.98), weight_decay=0.0)

    def step(self) -> int:
        """One step in lockstep with the other workers; returns the tokens of this one."""
        progress = self._shared.progress.item()
        _, length, count = next(stage for stage in STAGES if progress < stage[0])
        ids, weights = self._rows.take(length, count)
        place = positions(self._rng, ids.shape[1] - 1)
        model = self._compiled if length == STAGES[0][1] else self._shared.model
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(ids, weights, self._cos[place], self._sin[place])
        loss.backward()
        self._shared.losses[self._rank] = loss.item()
        self._shared.barrier.wait()
        self._update(learning_rate(progress))
        return ids[:, 1:].numel()

    @torch.no_grad()
    def _update(self, rate: float) -> None:
        """Reads everyone's gradients, writes the weights that this worker owns."""
        others = {id(w) for w in self._others} if self._rank == 0 else set()
        owned = {id(w) for w in self._muon.weights} | others
        mean: dict[int, Tensor] = {}
        for i, weight in enumerate(self._shared.model.parameters()):
            if id(weight) in owned:
                mean[id(weight)] = torch.stack([g[i] for g in self._shared.gradients]).mean(0)
        self._muon.step(mean, MUON_LR * rate)
        if self._rank == 0:
            mine = [weight.grad for weight in self._others]
            for weight in self._others:
                weight.grad = mean[id(weight)]
            torch.nn.utils.clip_grad_norm_(self._others, 1.0)
            self._adam.param_groups[0]["lr"] = ADAM_LR * rate
            self._adam.step()
            for weight, gradient in zip(self._others, mine, strict=True):
                weight.grad = gradient

    def finish_step(self) -> None:
        """Nobody reads a weight or clears a gradient before all are done."""
        self._shared.barrier.wait()
        for gradient in self._shared.gradients[self._rank]:
            gradient.zero_()


def _follow(rank: int, shared: Shared) -> None:
    worker = Worker(rank, shared)
    while shared.progress.item() < 1:
        worker.step()
        worker.finish_step()


def train(
    model: DemoModel, tokenizer: Tokenizer, budget: Budget, seed: int, workers: int, out: Path
) -> Result:
    """Trains `model` in place; `out` holds a usable one from the first checkpoint on."""
    model.share_memory()
    context = torch.multiprocessing.get_context("spawn")
    gradients = [
        [torch.zeros(weight.shape).share_memory_() for weight in model.parameters()]
        for _ in range(workers)
    ]
    shared = Shared(
        model, tokenizer.to_str(), seed, gradients, torch.zeros(workers).share_memory_(),
        torch.full((1,), budget.done).share_memory_(), context.Barrier(workers),
    )  # fmt: skip
    followers = [
        context.Process(target=_follow, args=(rank, shared), daemon=True)
        for rank in range(1, workers)
    ]
    for follower in followers:
        follower.start()
    result = _lead(shared, budget, out, special_ids(tokenizer))
    for follower in followers:
        follower.join()
    return result


def _lead(shared: Shared, budget: Budget, out: Path, special: tuple[int, int, int]) -> Result:
    """Rank 0: a worker like the others, which also keeps the clock, the bar and the checkpoints."""
    worker, result = Worker(0, shared), Result()
    started = saved = time.monotonic()
    progress = budget.done
    with tqdm(total=100.0, unit="%", bar_format="{l_bar}{bar}| {elapsed} {postfix}") as bar:
        while progress < 1:
            result.tokens += worker.step() * len(shared.gradients)
            result.steps += 1
            result.loss += (shared.losses.mean().item() - result.loss) * max(0.02, 1 / result.steps)
            progress = budget.progress(started, result.steps)
            shared.progress.fill_(progress)
            worker.finish_step()
            bar.set_postfix_str(f"{result.tokens / 1e6:.2f} M tokens, loss {result.loss:.3f}")
            bar.update(min(100.0, 100 * progress) - bar.n)
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                saved = time.monotonic()
                save_model(shared.model, out, *special)
    result.minutes = (time.monotonic() - started) / 60
    save_model(shared.model, out, *special)
    return result
