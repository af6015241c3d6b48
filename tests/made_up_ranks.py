"""Another rank's process that computes nothing, and ends as it is told."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import time
from typing import Any

HEAD = struct.Struct("<q")


def main(talk: int, heart: int) -> None:
    channel, beats = socket.socket(fileno=talk), socket.socket(fileno=heart)
    beats.send(b".")
    settings = heard(channel)
    end = settings["ends"].get(str(settings["rank"]), "waits")
    if "loads" in settings:
        say(channel, tokens=5)
    if end == "complains":
        say(channel, error="a field is missing", kind="CheckpointError")
        os._exit(1)
    if end == "fails":
        os._exit(3)
    if end == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "fails for another":
        time.sleep(0.05)
        os._exit(1)
    while channel.recv(1000):
        pass


def heard(channel: socket.socket) -> dict[str, Any]:
    stream = channel.makefile("rb")
    (size,) = HEAD.unpack(stream.read(HEAD.size))
    return dict(json.loads(stream.read(size)))


def say(channel: socket.socket, **values: object) -> None:
    text = json.dumps(values).encode()
    channel.sendall(HEAD.pack(len(text)) + text)
