"""The socket on which the server listens, a port's or a Unix one, and the certificate it shows."""

from __future__ import annotations

import contextlib
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

from radixlm.core.errors import ConfigError
from radixlm.server.config.server_config import ServerConfig

_BACKLOG = 2048


@contextlib.contextmanager
def listening(config: ServerConfig) -> Iterator[socket.socket]:
    """A listening socket, closed at the end. Raises ConfigError that says what to do."""
    if config.uds is None:
        with contextlib.closing(bind(config.host, config.port)) as listener:
            yield listener
        return
    path = Path(config.uds)
    with contextlib.closing(bind_unix(path)) as listener:
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def listening_beside(config: ServerConfig) -> Iterator[list[socket.socket]]:
    """The socket of --ollama-port, if there is to be one. Raises ConfigError."""
    if config.ollama_port is None:
        yield []
        return
    with contextlib.closing(bind(config.host, config.ollama_port, "--ollama-port")) as listener:
        yield [listener]


def bind(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A listening socket. flag: the port's. Raises ConfigError that says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error}; choose another with --host, {flag}"
        ) from None


def bind_unix(path: Path) -> socket.socket:
    """A listening Unix socket at `path`; one that a dead server left there is replaced.

    Raises ConfigError when somebody listens there, or when it is no socket.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _make_room(path)
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except (OSError, ValueError) as error:
        listener.close()
        raise ConfigError(f"cannot listen on --uds {str(path)!r}: {error}") from None
    return listener


def _make_room(path: Path) -> None:
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise FileExistsError("there is a file that is no socket")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise FileExistsError("another server listens there")


def check_certificate(config: ServerConfig) -> None:
    """Raise ConfigError unless the files of --ssl-certfile and --ssl-keyfile work together."""
    if config.ssl_certfile is None:
        return
    for flag, file in (
        ("--ssl-certfile", config.ssl_certfile),
        ("--ssl-keyfile", config.ssl_keyfile),
    ):
        try:
            _ = file is None or Path(file).read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read {flag}: {error}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Were the key encrypted, its password would be asked for at the terminal.
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=lambda: "")
    except OSError as error:
        raise ConfigError(
            f"--ssl-certfile {config.ssl_certfile!r} with --ssl-keyfile {config.ssl_keyfile!r} "
            f"cannot be used: {error}; give a certificate and its key, not encrypted, as PEM"
        ) from None
