"""A file of JSON lines answered without a server, by the same routes."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from radixlm.assembly import AsyncEngine
from radixlm.batch.batch_run import answer_all
from radixlm.batch.order import plan
from radixlm.batch.results import LineAnswer, Results
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError
from radixlm.engine.engine_stats import EngineStats
from radixlm.server.app import create_app
from radixlm.server.batches.asking import LINE_BYTES, Asking
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.pipeline.served_engine import ServedEngine
from radixlm.server.pipeline.service import MOST_BYTES

# Called with how many lines succeeded, failed, and are there; and the engine's figures.
Report = Callable[[int, int, int, EngineStats], None]
# What is done with an engine that is several, or one.
Work = Callable[[ServedEngine, int], Coroutine[Any, Any, None]]
# Several tell their figures about each second.
_SECONDS_FOR_FIGURES = 3.0


class Whom:
    """Keeps whom an application made with it has lines asked."""

    asking: Asking

    def connect(self, asking: Asking) -> None:
        self.asking = asking


def alone(config: EngineConfig, work: Work) -> None:
    """Do `work` with an engine in this process. Raises what loading the model raises."""
    engine = AsyncEngine.from_config(config)
    try:
        asyncio.run(work(engine, 1))
    finally:
        asyncio.run(engine.close())


def answer_file(
    config: EngineConfig,
    settings: ServerConfig,
    source: Path,
    output: Path,
    report: Report,
    engines: Callable[[EngineConfig, Work], None] = alone,
) -> None:
    """Answer each line of `source` that `output` holds no answer of, and add it there.

    The lines are looked at before the model is loaded. engines: has the work done with those of a
    configuration, each of which takes a part of the lines. Raises ConfigError for an output that is
    not of this input, or in use; LineError; OSError; what `engines` raises.
    """
    longest = (settings.max_request_bytes or MOST_BYTES) + LINE_BYTES
    with _locked(output), contextlib.ExitStack() as ending:
        whole = plan(source, longest, scratch=output.parent)
        results = Results(whole.mark, whole.numbers, output, output)
        ending.callback(results.close)

        async def work(engine: ServedEngine, parts: int) -> None:
            name, whom = settings.first_name(engine.info.name), Whom()
            create_app(engine, served_model_name=name, config=settings, batches=whom)
            ask, room = whom.asking.on_behalf_of(""), whom.asking.room_alone

            def tell(_: LineAnswer | None = None) -> None:
                report(results.completed, results.failed, len(whole), engine.stats())

            tell()
            await answer_all(whole, results, ask, lambda: room, tell, parts)
            await asyncio.sleep(_SECONDS_FOR_FIGURES if parts > 1 else 0)
            tell()

        engines(config, work)


@contextlib.contextmanager
def _locked(output: Path) -> Iterator[None]:
    """Hold a file, which is made, for this process alone. Raises ConfigError."""
    try:
        with open(output, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError:
        raise ConfigError(f"another radixlm batch writes {output}") from None
