"""A rank that is not rank 0: a process that loads its part of the model and computes it."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import torch

from radixlm.assembly.chosen import reached_of
from radixlm.assembly.loading import make_model
from radixlm.assembly.model_impl import config_of
from radixlm.assembly.pool_sizes import default_tokens, make_memory
from radixlm.assembly.rank_setup import config_of_rank, device_of_rank, split_of
from radixlm.assembly.resolve import resolve_device, resolve_dtype
from radixlm.assembly.windows import Windows
from radixlm.core.errors import RadixLMError
from radixlm.formats.model_files import files_of
from radixlm.memory.pools import MOST_TOKENS, WindowLayers
from radixlm.runner.model_runner import ModelRunner
from radixlm.runner.rank_channel import Channel, beat
from radixlm.runner.rank_group import RankGroup
from radixlm.runner.ranks import follow

_logger = logging.getLogger("radixlm.assembly")


def main(talk: int, heart: int) -> None:
    """Handles of sockets, whose other ends rank 0 has. Ends the process, soon after rank 0's."""
    beat(socket.socket(fileno=heart))
    channel, status = Channel(socket.socket(fileno=talk)), 1
    try:
        _run(channel)
        status = 0
    except RadixLMError as error:
        channel.say(error=str(error), kind=type(error).__name__)
    except Exception:
        _logger.exception("a rank failed")
    finally:
        os._exit(status)  # without a word with the others, who may be gone


def _run(channel: Channel) -> None:
    given = channel.heard()
    config, rank, size = config_of_rank(given["config"]), given["rank"], given["size"]
    torch.set_num_threads(given["threads"])
    files = files_of(Path(str(config.model)))
    whole = config_of(config, files)
    device = device_of_rank(resolve_device(config.device), rank)
    dtype = resolve_dtype(config, whole, device)
    group = RankGroup(rank, size, device)
    reached = reached_of(config, whole)
    split = split_of(group, whole)
    model = make_model(config, files, reached, dtype, device, progress=False, split=split)
    windows = Windows.of(config, model.config)
    on_cpu = device.type == "cpu"  # rank 0 counts memory for all
    room = MOST_TOKENS if on_cpu else default_tokens(config, model.config, windows, dtype, device)
    channel.say(tokens=config.kv_tokens or room)
    sizes = channel.heard()
    own = sizes["window_capacity"]
    in_windows = None if own is None else WindowLayers(windows.layers, own)
    counts = sizes["capacity"], sizes["longest"], in_windows
    pool, table = make_memory(config, model.config, *counts, dtype, device)
    runner = ModelRunner(model, pool, table, device)
    channel.say(kv_bytes=pool.nbytes)
    group.join(Path(given["folder"]))
    follow(channel, runner, pool)
