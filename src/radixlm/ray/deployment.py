"""The application that Ray Serve runs: an ingress over replicas."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.deployment import Application

from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError, ModelError
from radixlm.core.flags import flags_of
from radixlm.formats.model_files import files_of
from radixlm.formats.weight_files import stamped
from radixlm.ray.autoscaling import by_queues
from radixlm.ray.ingress import Ingress
from radixlm.ray.replica import Replica
from radixlm.ray.request_router import TokenRouter
from radixlm.server.config.server_config import ServerConfig
from radixlm.text.model_folder import resolve_model

APP = "radixlm"
MOST_REPLICAS = 256
# Ours are the limits: see --max-queued-requests. Ray's are above all that these let in.
_BEYOND = 2
_HEALTH_EVERY_SECONDS, _HEALTH_PATIENCE_SECONDS = 2.0, 10.0
_DRAINING = MappingProxyType(
    {"graceful_shutdown_timeout_s": 600.0, "graceful_shutdown_wait_loop_s": 0.5}
)
# In a config file, and for `serve start`, they are Ray Serve's own.
_RAYS = frozenset({"host", "port", "ssl_keyfile", "ssl_certfile", "keep_alive_timeout"})
_SCALE: Mapping[str, Callable[[Any], float]] = MappingProxyType(
    {"replicas": int, "max_replicas": int, "cpus": float, "gpus": float}
)


def build(
    config: EngineConfig,
    settings: ServerConfig,
    *,
    replicas: int = 1,
    max_replicas: int | None = None,
    cpus: float = 1.0,
    gpus: float | None = None,
) -> Application:
    """cpus, gpus: of each replica. Without gpus: with `--device cuda` one for each rank, else none.
    max_replicas: how many queues may add. Raises ConfigError.
    """
    most = replicas if max_replicas is None else max_replicas
    _check(config, settings, replicas, most)
    if gpus is None:
        gpus = float(config.tp_size) if config.device == "cuda" else 0.0
    _check_share(config, cpus, gpus)
    if config.device == "auto":  # a GPU that it was not given is another one's
        config = replace(config, device="cuda" if gpus else "cpu")
    room = _BEYOND * config.max_queued_requests
    scaled: dict[str, Any] = {"num_replicas": replicas}
    if most > replicas:
        scaling = AutoscalingConfig(
            min_replicas=replicas,
            max_replicas=most,
            target_ongoing_requests=config.max_running_requests,
            policy=AutoscalingPolicy(policy_function=_place(by_queues)),
        )
        scaled = {"autoscaling_config": scaling}
    deployed: Any = serve.deployment  # its types know the decorator alone
    replica = deployed(Replica).options(
        name="replica",
        max_ongoing_requests=room,
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        health_check_period_s=_HEALTH_EVERY_SECONDS,
        health_check_timeout_s=_HEALTH_PATIENCE_SECONDS,
        request_router_config={"request_router_class": _place(TokenRouter)},
        **_DRAINING,
        **scaled,
    )
    ingress = deployed(serve.ingress()(Ingress)).options(
        name="ingress",
        max_ongoing_requests=room * most,
        max_surge_percent=100,  # the old one answers until the new one has found its model
        ray_actor_options={"num_cpus": 0},
        **_DRAINING,
    )
    version = _version_of(config)
    bound: Application = ingress.bind(
        replica.bind(config, settings.otlp_endpoint, version), settings, version
    )
    return bound


def _place(made: type | Callable[..., Any]) -> str:
    return f"{made.__module__}:{made.__name__}"


def _check(config: EngineConfig, settings: ServerConfig, replicas: int, most: int) -> None:
    """Raises ConfigError for what replicas can not be or have."""
    if not 1 <= replicas <= most <= MOST_REPLICAS:
        raise ConfigError(
            f"--replicas {replicas}, --max-replicas {most}: the second must not be less than the "
            f"first, and both must be 1 to {MOST_REPLICAS}"
        )
    for name in ("kv_events", "uds", "ollama_port"):
        if getattr(settings, name) is not None:
            flag = "kv-events-config" if name == "kv_events" else name.replace("_", "-")
            raise ConfigError(f"--{flag} is of one server; it has no use with replicas")
    if settings.header_timeout != ServerConfig().header_timeout:
        raise ConfigError("--header-timeout has no use with replicas: Ray's proxy reads headers")
    if config.device not in ("auto", "cpu", "cuda"):
        raise ConfigError(
            f"--device {config.device}: Ray gives each replica GPUs of its own; give cuda"
        )
    if config.disable_radix_cache:
        raise ConfigError("--disable-radix-cache leaves nothing to route by")


def _check_share(config: EngineConfig, cpus: float, gpus: float) -> None:
    """Check a replica's share of a machine. Raises ConfigError."""
    if not all(0 <= each < math.inf for each in (cpus, gpus)):
        raise ConfigError(f"cpus and gpus are 0 or more, got {cpus:g} and {gpus:g}")
    if gpus > 1 and gpus != int(gpus):
        raise ConfigError(f"gpus is a part of one, or a whole number of them, got {gpus:g}")
    if 0 < gpus < config.tp_size and config.tp_size > 1:
        raise ConfigError(f"each of {config.tp_size} ranks needs a GPU, and gpus is {gpus:g}")


def _version_of(config: EngineConfig) -> str:
    """Another one, where a model's folder or flags are others, or its files were replaced."""
    facts = [repr(config)]
    with contextlib.suppress(ModelError, OSError):  # it may be on the replicas' machines alone
        model = resolve_model(config.model)
        beside = filter(Path.is_file, model.iterdir() if model.is_dir() else ())
        facts += map(repr, stamped(sorted({*beside, *files_of(model).weights()})))
    return blake2b("\n".join(facts).encode(), digest_size=8).hexdigest()


def app(args: Mapping[str, Any]) -> Application:
    """The application for `serve run radixlm.ray:app model=... replicas=2` and config files: the
    flags of `radixlm serve` by their names, and `replicas`, `max_replicas`, `cpus`, `gpus`. Raises
    ConfigError.
    """
    given: dict[str, Any] = {
        name.replace("-", "_"): tuple(value) if isinstance(value, list) else value
        for name, value in args.items()
    }
    scale: dict[str, Any] = {
        name: _number(name, given.pop(name)) for name in _SCALE if name in given
    }
    served = {item.name for item, _ in flags_of(ServerConfig)}
    if ours := _RAYS & given.keys():
        raise ConfigError(f"{min(ours)} belongs to Ray Serve's http_options, beside applications")
    if not isinstance(given.get("model"), str | None):
        raise ConfigError(f"model names a folder or a file, got {given['model']!r:.80}")
    settings = ServerConfig(**{name: given.pop(name) for name in served & given.keys()})
    return build(EngineConfig.from_flags(**given), settings, **scale)


def _number(name: str, value: Any) -> Any:
    """`serve run` passes text."""
    try:
        number = float(value)
        if _SCALE[name](number) == number:  # a count is whole; and no number equals NaN
            return _SCALE[name](number)
    except (TypeError, ValueError, OverflowError):
        pass
    kind = "a whole number" if _SCALE[name] is int else "a number"
    raise ConfigError(f"{name} is {kind}, got {value!r:.80}")


def on_one_machine(config: EngineConfig, replicas: int, processors: float) -> EngineConfig:
    """The processors are shared out among the ranks of the replicas, unless a flag says how many
    threads each of them has.
    """
    if config.threads is not None:
        return config
    return replace(config, threads=max(int(processors / (replicas * config.tp_size)), 1))
