"""`radixlm batch`: a file of JSON lines in, a file of answers out."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from radixlm.cli.options import (
    REPLICAS,
    HeadedCommand,
    at_hand,
    check_ray,
    engine_options,
    model_path_option,
    option,
    options_of_server,
    say_loading,
)
from radixlm.cli.start import later
from radixlm.core.config import EngineConfig
from radixlm.core.errors import counted
from radixlm.server.config.server_config import ServerConfig

answer_file = later("radixlm.server.offline:answer_file")
over_replicas = later("radixlm.ray.batch_replicas:over_replicas")

_SERVER_FLAGS = (
    *("served_model_name", "sampling_defaults", "tool_call_parser", "reasoning_parser"),
    *("max_request_bytes", "strict_fields"),
)


class Progress:
    """A bar of lines, with the hit rate and the time left. None is shown without a terminal."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self.failed = self.done = 0
        self.stats: Any = None

    def __call__(self, completed: int, failed: int, total: int, stats: Any) -> None:
        self.done, self.failed, self.stats = completed + failed, failed, stats
        if self._bar is None:
            self._bar = tqdm(
                total=total, initial=self.done, unit=" lines", dynamic_ncols=True, disable=None
            )
        self._bar.set_postfix_str(f"hit rate {stats.hit_rate:.1%}, {failed} failed", refresh=False)
        self._bar.update(self.done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


@click.command("batch", cls=HeadedCommand)
@click.argument("source", metavar="IN.jsonl", type=click.Path(exists=True, dir_okay=False))
@click.argument("output", metavar="OUT.jsonl", type=click.Path(dir_okay=False))
@option("--replicas", "Engines on this machine, by Ray; each takes a part.", REPLICAS, default=1)
@model_path_option
@engine_options
@options_of_server(*_SERVER_FLAGS)
def command(source: str, output: str, replicas: int, model_path: str | None, **flags: Any) -> None:
    """Answer each line of IN.jsonl, as OpenAI's batches have them, into OUT.jsonl.

    Answers come in an order in which each prefix that prompts share is computed once; `custom_id`
    says whose one is. Started again, what OUT.jsonl holds is done. Exits with 1 where a line could
    not be answered; its record says why.
    """
    settings = ServerConfig(**{name: flags.pop(name) for name in _SERVER_FLAGS})
    place = at_hand(model_path, flags["revision"])
    config = EngineConfig.from_flags(model=place, **flags)
    several: dict[str, Any] = {}
    if replicas > 1:
        check_ray("--replicas")
        several["engines"] = partial(over_replicas, replicas=replicas)
    say_loading(model_path)
    progress = Progress()
    try:
        answer_file(config, settings, Path(source), Path(output), progress, **several)
    finally:
        progress.close()
    stats = progress.stats
    click.secho(
        f"{counted(progress.done, 'line')} answered, {progress.failed} with an error; "
        f"{stats.hit_rate:.1%} of {stats.prompt_tokens:,} prompt tokens from the cache",
        dim=True,
        err=True,
    )
    sys.exit(1 if progress.failed else 0)
