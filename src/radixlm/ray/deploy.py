"""`radixlm deploy`: an application on a Ray of its own, or on a cluster that is there."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

import ray
from ray import serve
from ray.exceptions import AuthenticationError
from ray.serve.config import ControllerOptions, HTTPOptions
from ray.serve.schema import LoggingConfig

from radixlm.assembly import chosen
from radixlm.assembly.resolve import processors_allowed, resolve_device
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError, counted
from radixlm.core.signals import EndOnce
from radixlm.ray.deployment import APP, build, on_one_machine
from radixlm.ray.private_ray import check_token, folder_for_sessions
from radixlm.ray.router_handle import RouterHandle
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.listen import bind, check_certificate

_logger = logging.getLogger("radixlm.ray")

_LOOPBACK = "127.0.0.1"
_SECONDS_TO_CONNECT = 10.0
# Replicas end what they answer before.
_SECONDS_TO_END = 60.0
# Of its processes that compute. Ray's own is 15: they would wait for all else on this machine.
_NICENESS = 0
# A replica that hangs is not asked to end: its requests would wait for that.
_RAY_SETTINGS = MappingProxyType({"RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1"})


@contextmanager
def deployed(
    config: EngineConfig,
    settings: ServerConfig,
    *,
    replicas: int,
    max_replicas: int | None = None,
    address: str | None = None,
) -> Iterator[str]:
    """Serve while the block lasts; yields the address for clients.

    address: of a Ray cluster; without one, Ray is started on this machine, for it alone, and ends
    with the block. Raises ConfigError, and what the replicas raise when they start.
    """
    check_certificate(settings)
    if address is None:
        config = on_one_machine(config, max_replicas or replicas, processors_allowed())
        chosen(config)  # what can not be is an error before Ray is started
        # Ray's proxy would share a port with another one's, and take half of its requests.
        with closing(bind(settings.host, settings.port)) as place:
            settings = replace(settings, port=place.getsockname()[1])
    else:
        _check_address(address)
    if config.device == "auto":
        config = replace(config, device=resolve_device(config.device).type)
    cpus = float((config.threads or 1) * config.tp_size)
    app = build(
        config,
        settings,
        replicas=replicas,
        max_replicas=max_replicas,
        # Of its own machine Ray need not count processors: they are shared out already.
        cpus=cpus if address else 0.0,
    )
    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)  # the way in has its own
    signals = EndOnce()  # a script's background processes begin with Ctrl-C's signal ignored
    _connect(address)
    signals.take()  # Ray has taken them, and ends by SIGTERM with an account of its stack
    before, since, is_ours = None, None, address is None
    try:
        _start(settings, quiet)
        before = _deployed_since()
        is_ours = is_ours or before is None
        _logger.info("starting %s", counted(replicas, "replica"))
        serve.run(app, name=APP, route_prefix=settings.root_path or "/", logging_config=quiet)
        since, is_ours = _deployed_since(), True
        scheme = "http" if settings.ssl_certfile is None else "https"
        host = _LOOPBACK if settings.host == "0.0.0.0" else settings.host  # noqa: S104
        yield f"{scheme}://{host}:{settings.port}"
    finally:
        # On a cluster another one may have been there, or have replaced it since: that one goes on.
        if is_ours and (address is None or since in (None, _deployed_since())):
            end = serve.shutdown if address is None else partial(serve.delete, APP)
            _within(_SECONDS_TO_END, end)
            _within(_SECONDS_TO_END, RouterHandle(APP).end)
        elif before is not None and since is None:
            _logger.warning(
                "the application that was on the cluster is not ended; its replicas may be "
                "replaced by these all the same, until it is deployed again"
            )
        ray.shutdown()


def _start(settings: ServerConfig, logs: LoggingConfig) -> None:
    """Ray Serve, without an application; where it runs already, nothing is changed."""
    serve.start(
        http_options=HTTPOptions(
            host=settings.host,
            port=settings.port,
            ssl_keyfile=settings.ssl_keyfile,
            ssl_certfile=settings.ssl_certfile,
            keep_alive_timeout_s=math.ceil(settings.keep_alive_timeout),
        ),
        controller_options=ControllerOptions(runtime_env={"env_vars": dict(_RAY_SETTINGS)}),
        logging_config=logs,
    )


def _deployed_since() -> float | None:
    """The time when the application was deployed last; None: there is none."""
    found = serve.status().applications.get(APP)
    return None if found is None else found.last_deployed_time_s


def _within(seconds: float, end: Callable[[], object]) -> None:
    """Wait for an end no longer than this: a controller that has lost processes may not answer, and
    what is on this machine ends with Ray all the same.
    """
    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    ending.join(seconds)
    if ending.is_alive():
        _logger.warning("Ray Serve has not ended in %.0f s", seconds)


def deploy(
    config: EngineConfig,
    settings: ServerConfig,
    *,
    replicas: int,
    max_replicas: int | None,
    address: str | None,
) -> None:
    """The same until a signal comes; a later one ends the process at once."""
    with deployed(
        config, settings, replicas=replicas, max_replicas=max_replicas, address=address
    ) as url:
        name = settings.first_name(config.model or "the demo model")
        print(
            f"RadixLM serves {name} on {url}, with {counted(replicas, 'replica')}\n"
            f"  page     {url}/ui\n"
            f"  router   {url}/router/replicas\n"
            f"try:\n  curl {url}/v1/completions "
            '-d \'{"prompt": "Once upon a time", "max_tokens": 32}\'',
            flush=True,
        )
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


def _connect(address: str | None) -> None:
    """Raises ConfigError where no cluster is there, or none can be started."""
    check_token(os.environ, Path.home(), make=address is None)
    if address is None:
        sessions = folder_for_sessions(os.environ)
        try:
            ray.init(
                address="local",
                include_dashboard=False,
                _system_config={"worker_niceness": _NICENESS},
                _temp_dir=str(sessions),
                logging_level=logging.WARNING,
            )
        except (OSError, ValueError, AuthenticationError) as error:
            raise ConfigError(f"Ray can not be started in {sessions}: {error}") from None
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, ValueError, AuthenticationError) as error:
        raise ConfigError(f"--ray-address {address!r}: {error}{_hint(error)}") from None


def _check_address(address: str) -> None:
    """Ray tries for minutes. Raises ConfigError where nobody listens there."""
    place = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        if place.hostname is None or place.port is None:
            return  # `auto`, and what else Ray knows
        with socket.create_connection((place.hostname, place.port), _SECONDS_TO_CONNECT):
            return
    except (OSError, ValueError) as error:
        raise ConfigError(f"--ray-address {address!r}: {error}") from None


def _hint(error: Exception) -> str:
    """Ray's own text says where the token should be, and not why it is not looked for there."""
    if not isinstance(error, AuthenticationError):
        return ""
    return (
        " Set RAY_AUTH_MODE=token and copy ~/.ray/auth_token of a machine of the cluster, or give "
        "the address as `auto` on one of them."
    )
