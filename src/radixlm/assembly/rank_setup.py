"""The ranks that a config asks for: whether they can be, and what each has to load."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import cached_property
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch

from radixlm.assembly.model_impl import by_transformers
from radixlm.assembly.places import Places
from radixlm.assembly.resolve import processors_seen
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError, EngineDeadError
from radixlm.engine.loop import Fail, Inbound
from radixlm.formats.model_files import ModelFiles
from radixlm.layers.split import Split
from radixlm.models.model_config import ModelConfig
from radixlm.models.parts import check_parts, part_of
from radixlm.runner.rank_group import RankGroup
from radixlm.runner.ranks import RankProcesses

_MAIN = "radixlm.assembly.rank_process:main"


class ParallelRanks(RankProcesses):
    """The ranks of an engine that `check_ranks` let pass, with what rank 0 itself has to know."""

    def __init__(
        self,
        config: EngineConfig,
        files: ModelFiles,
        model: ModelConfig,
        device: torch.device,
        threads: int,
    ) -> None:
        """model: the sizes of all of it. threads: of each rank."""
        self._model, self._on_cpu = model, device.type == "cpu"
        settings = {"config": settings_of(config, files), "threads": threads}
        super().__init__(config.tp_size, device_of_rank(device, 0), _MAIN, settings)

    @cached_property
    def split(self) -> Split:
        """The split of rank 0."""
        return split_of(self.group, self._model)

    @property
    def heads(self) -> int:
        """The heads of keys and values, that lie in one memory with those of rank 0, its own among
        them.
        """
        ranks = range(self.group.size if self._on_cpu else 1)
        return sum(part_of(self._model, rank, self.group.size).n_kv_heads for rank in ranks)


class BackgroundWorkers(NamedTuple):
    """The work beside the engine's thread (a `Background`)."""

    places: Places
    ranks: ParallelRanks
    inbox: SimpleQueue[Inbound]

    def start(self) -> None:
        self.places.start()
        self.ranks.watch(self._lost)

    def stop(self) -> None:
        self.places.stop()
        self.ranks.stop()

    def _lost(self, reason: str) -> None:
        self.inbox.put(Fail(EngineDeadError(reason)))


def start_ranks(
    config: EngineConfig,
    files: ModelFiles,
    model: ModelConfig,
    device: torch.device,
    threads: int,
    ending: ExitStack,
) -> ParallelRanks | None:
    """The other ranks, which load their parts from now on; `ending` stops them. None: there are
    none.
    """
    if config.tp_size == 1:
        return None
    ranks = ParallelRanks(config, files, model, device, threads)
    ending.callback(ranks.stop)
    return ranks


def device_of_rank(device: torch.device, rank: int) -> torch.device:
    """All ranks have the one CPU, or a GPU each."""
    return device if device.type == "cpu" else torch.device(device.type, rank)


def split_of(group: RankGroup, model: ModelConfig) -> Split:
    """A rank's part. model: the sizes of all of it."""
    return Split(group.rank, group.size, model.vocab_size, group.reduce, group.gather)


def check_ranks(
    config: EngineConfig, files: ModelFiles, model: ModelConfig, device: torch.device
) -> None:
    """Raises ConfigError, with the flag or the model's field, where these ranks can not be."""
    size = config.tp_size
    if by_transformers(config, files):
        raise ConfigError(
            f"--tp-size {size} is for models with a file here; transformers computes this one "
            f"({model.model_type})"
        )
    if device.index is not None:
        raise ConfigError(f"--tp-size {size} takes a device for each rank: --device {device.type}")
    what, there = "processors", processors_seen()
    if device.type == "cuda":
        what, there = "CUDA devices", torch.cuda.device_count()
    if size > there:
        raise ConfigError(f"--tp-size {size} is more than the {there} {what} of this machine")
    check_parts(model, size)


def settings_of(config: EngineConfig, files: ModelFiles) -> Mapping[str, Any]:
    """The config as JSON, the model by its whole path."""
    return asdict(config) | {"model": str(files.path.resolve())}


def config_of_rank(settings: Mapping[str, Any]) -> EngineConfig:
    """The config that `settings_of` gave."""
    flags = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    return EngineConfig.from_flags(**flags)
