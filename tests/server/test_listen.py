"""Unix sockets, certificates, the path that a proxy takes away."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from radixlm.cli.top_command import command as top
from radixlm.cli.top_feed import WatchError
from radixlm.core.errors import ConfigError
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.listen import bind_unix, check_certificate, listening
from radixlm.server.pages import tree_routes
from tests.server_support import running


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cert.pem, key.pem, other.pem (another key) and locked.pem (encrypted)."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate")
    folder = tmp_path_factory.mktemp("pem")

    def run(*arguments: str) -> None:
        done = [openssl, *arguments]
        subprocess.run(done, cwd=folder, check=True, capture_output=True)  # noqa: S603

    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    run(*new, "-keyout", "key.pem", "-out", "cert.pem", *subject)
    run("genrsa", "-out", "other.pem", "2048")
    run("rsa", "-in", "key.pem", "-aes128", "-passout", "pass:word", "-out", "locked.pem")
    return folder


def test_a_unix_socket_serves_and_is_gone_afterwards(monkeypatch, tmp_path):
    path = tmp_path / "radixlm.sock"
    with running(monkeypatch, uds=str(path)):
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://localhost") as client:
            assert client.get("/health").json() == {"status": "ok"}
            body = {"prompt": "a", "max_tokens": 2}
            answer = client.post("/v1/completions", json=body)
            assert answer.json()["usage"]["completion_tokens"] == 2
    assert not path.exists()


def test_a_dead_servers_socket_is_replaced_a_living_ones_is_not(tmp_path):
    path = tmp_path / "radixlm.sock"
    with closing(bind_unix(path)):
        with pytest.raises(ConfigError, match="another server listens there"):
            bind_unix(path)
        assert path.exists()
    assert path.exists()  # left behind, as by a crash
    with closing(bind_unix(path)), closing(socket.socket(socket.AF_UNIX)) as client:
        client.connect(str(path))


def test_unix_sockets_that_can_not_be(tmp_path):
    file = tmp_path / "file"
    file.write_text("precious")
    for path, text in (
        (file, "no socket"),
        (tmp_path / "no" / "folder", "No such file"),
        (tmp_path / ("x" * 200), "too long"),
    ):
        with pytest.raises(ConfigError, match=f"cannot listen on --uds.*{text}"):
            bind_unix(path)
    assert file.read_text() == "precious"


def test_a_port_is_given_back():
    with listening(ServerConfig(port=0)) as listener:
        port = listener.getsockname()[1]
    with listening(ServerConfig(port=port)):
        pass


def test_https_by_a_certificate(monkeypatch, pem):
    files = {"ssl_certfile": str(pem / "cert.pem"), "ssl_keyfile": str(pem / "key.pem")}
    trust = ssl.create_default_context(cafile=str(pem / "cert.pem"))
    with running(monkeypatch, **files) as port:
        assert httpx.get(f"https://127.0.0.1:{port}/health", verify=trust).status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{port}/health")


def test_tls_is_not_old(monkeypatch, pem):
    """Of 1.2 only ciphers that are still thought well of, and nothing before it."""
    files = {"ssl_certfile": str(pem / "cert.pem"), "ssl_keyfile": str(pem / "key.pem")}
    client = ssl.create_default_context(cafile=str(pem / "cert.pem"))
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with running(monkeypatch, **files) as port:
        with closing(socket.create_connection(("127.0.0.1", port))) as plain:
            wrapped = client.wrap_socket(plain, server_hostname="127.0.0.1")
            with closing(wrapped) as connection:
                name, version, _ = connection.cipher()
        assert version == "TLSv1.2"
        assert name.startswith("ECDHE")
        assert "GCM" in name or "CHACHA20" in name


@pytest.mark.parametrize(
    ("cert", "key", "text"),
    [
        ("no.pem", "key.pem", "cannot read --ssl-certfile: .*no.pem"),
        ("cert.pem", "no.pem", "cannot read --ssl-keyfile: .*no.pem"),
        ("cert.pem", "other.pem", "cannot be used: .*; give a certificate and its key"),
        ("key.pem", "key.pem", "cannot be used"),
        ("cert.pem", None, "cannot be used"),
        ("cert.pem", "locked.pem", "cannot be used"),
    ],
)
def test_wrong_certificates_are_refused(pem, cert, key, text):
    settings = ServerConfig(
        port=0, ssl_certfile=str(pem / cert), ssl_keyfile=None if key is None else str(pem / key)
    )
    with pytest.raises(ConfigError, match=text):
        check_certificate(settings)


def test_no_certificate_is_fine():
    check_certificate(ServerConfig())


def test_behind_a_proxy_that_takes_a_path_away(monkeypatch):
    with running(monkeypatch, root_path="/llm", api_key=("k",)) as port:
        url = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/v1/models").status_code == 401
        headers = {"Authorization": "Bearer k"}
        assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 200


def test_top_says_what_is_wrong_with_a_certificate(monkeypatch, pem):
    monkeypatch.setattr(tree_routes, "SECONDS_BETWEEN_STATS", 0.01)
    files = {"ssl_certfile": str(pem / "cert.pem"), "ssl_keyfile": str(pem / "key.pem")}
    with running(monkeypatch, **files) as port:
        arguments = [f"https://127.0.0.1:{port}", "--once"]
        distrusted = CliRunner().invoke(top, arguments)
        assert isinstance(distrusted.exception, WatchError)
        assert "can not be trusted (self" in str(distrusted.exception)
        assert "--cacert FILE" in str(distrusted.exception)
        for trust in (["--insecure"], ["--cacert", str(pem / "cert.pem")]):
            assert CliRunner().invoke(top, [*arguments, *trust]).exit_code == 0
    with pytest.raises(ConfigError, match=r"--cacert '.*' can not be read as PEM"):
        CliRunner().invoke(top, ["--cacert", str(pem / "none.pem")], catch_exceptions=False)
