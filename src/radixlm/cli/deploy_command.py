"""`radixlm deploy`: several replicas behind one address."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import click

from radixlm.cli.options import HeadedCommand, serving_options, take_serving
from radixlm.cli.start import later
from radixlm.core.errors import ConfigError
from radixlm.server.http.logs import log_to_stderr
from radixlm.text.model_folder import resolve_model

run = later("radixlm.ray.deploy:deploy")


@click.command("deploy", cls=HeadedCommand)
@click.option(
    "--replicas", type=click.IntRange(1, 256), default=2, show_default=True, help="Engines."
)
@click.option(
    "--max-replicas",
    type=click.IntRange(1, 256),
    help="Add engines up to this many while requests wait.",
)
@click.option(
    "--ray-address",
    metavar="ADDRESS",
    help="A Ray cluster, as `auto` or ray://HOST:10001; by default one on this machine alone.",
)
@serving_options
def command(
    model: str | None,
    model_path: str | None,
    replicas: int,
    max_replicas: int | None,
    ray_address: str | None,
    **flags: Any,
) -> None:
    """Serve MODEL by several replicas on Ray Serve, routed by what each has cached.

    Without MODEL it is the embedded demo model. Ctrl-C ends it.
    """
    config, settings = take_serving(model, model_path, flags)
    log_to_stderr(settings.log_format)
    resolve_model(config.model)  # a wrong one is an error before Ray is started
    with _ray_is_there():
        run(config, settings, replicas=replicas, max_replicas=max_replicas, address=ray_address)


@contextlib.contextmanager
def _ray_is_there() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "ray":
            raise
        raise ConfigError("radixlm deploy needs Ray: pip install 'radixlm[ray]'") from None
