"""`radixlm pull`, and models by their names on the Hub, from a Hub of our own on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from radixlm.assembly import DEMO_MODEL
from tests.loopback_hub import SHA, LoopbackHub

PROGRAM = [sys.executable, "-c", "from radixlm.cli.start import main; main()"]
OTHERS = {
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"twice",
    "run.py": b"code",
    "onnx/model.onnx": b"other",
    "README.md": b"# Demo\n",
}


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    demo = {its.name: its.read_bytes() for its in DEMO_MODEL.iterdir() if its.is_file()}
    ggufs = {f"b-{kind}.gguf": b"GGUF" for kind in ("Q8_0", "Q4_0")} | {"mmproj-F16.gguf": b""}
    with LoopbackHub({"a/demo": demo | OTHERS, "a/b": ggufs}).running() as running:
        yield running


def run(hub: LoopbackHub, home: Path, *arguments: str, **more: str) -> tuple[int, str, str]:
    """Exit status, standard output and errors."""
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    kept: Mapping[str, str] = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    done = subprocess.run(  # noqa: S603
        [*PROGRAM, *arguments],
        capture_output=True,
        text=True,
        env={**kept, **own, **more},
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


def test_what_is_read_is_fetched_once_and_served_without_the_hub(hub, tmp_path):
    status, out, err = run(hub, tmp_path, "pull", "a/demo")
    assert status == 0, err
    folder = Path(out.strip())
    assert folder == tmp_path / "hub" / "models--a--demo" / "snapshots" / SHA
    assert not hub.downloaded() & (OTHERS.keys() - {"README.md"})
    assert (folder / "model.safetensors").read_bytes() == (
        DEMO_MODEL / "model.safetensors"
    ).read_bytes()
    hub.asked.clear()
    asked = "generate", "a/demo", "The capital of France is", "--max-tokens", "3"
    status, out, err = run(hub, tmp_path, *asked, "--temperature", "0", HF_HUB_OFFLINE="1")
    assert (status, hub.asked) == (0, []), err
    assert "Paris" in out


def test_a_model_of_the_hub_has_its_name(hub, tmp_path):
    status, out, err = run(hub, tmp_path, "check", "a/demo", "--json")
    assert status == 0, err
    assert '"a/demo"' in out


def test_a_download_that_broke_off_goes_on(hub, tmp_path):
    large = bytes(range(256)) * 100_000
    hub.models["a/b"] = {"large.gguf": large}
    hub.breaks["large.gguf"] = len(large) - 1_000_000
    status, out, err = run(hub, tmp_path, "pull", "a/b")
    if status:  # the library gave up
        assert "the same command goes on" in err
        status, out, err = run(hub, tmp_path, "pull", "a/b")
    assert status == 0, err
    assert Path(out.strip()).read_bytes() == large
    assert [where for *_, where in hub.asked if where.startswith("bytes=2")]


def test_ggufs_are_chosen_by_kind(hub, tmp_path):
    status, _, err = run(hub, tmp_path, "pull", "a/b")
    assert status == 1
    assert "a/b holds GGUF files of Q4_0, Q8_0; name one" in err
    status, out, err = run(hub, tmp_path, "pull", "a/b:q8_0")
    assert status == 0, err
    assert out.strip().endswith("b-Q8_0.gguf")
    assert hub.downloaded() == {"b-Q8_0.gguf"}


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("gated", "a/b is for those who have accepted its terms at http"),
        ("private", "has no such model, or a private one"),
    ],
)
def test_what_can_not_be_fetched_says_what_to_do(hub, tmp_path, why, said):
    hub.refused["a/b"] = why
    status, _, err = run(hub, tmp_path, "serve", "a/b", "--port", "0")
    assert status == 1
    assert said in " ".join(err.split())
    assert "hf auth login" in err


def test_a_revision_that_is_not_there_and_a_hub_that_does_not_answer(hub, tmp_path):
    status, _, err = run(hub, tmp_path, "pull", "a/demo", "--revision", "v9")
    assert (status, "a/demo has no revision 'v9'" in err) == (1, True)
    status, _, err = run(hub, tmp_path, "pull", "a/demo", HF_HUB_OFFLINE="1")
    assert (status, "none in the Hub's cache" in err, "HF_HUB_OFFLINE is set" in err) == (
        1,
        True,
        True,
    )
    status, _, err = run(hub, tmp_path, "pull", "a/demo", HF_ENDPOINT="http://127.0.0.1:9")
    assert (status, "http://127.0.0.1:9 does not answer" in " ".join(err.split())) == (1, True)


def test_a_hub_that_says_nothing_is_not_waited_for(hub, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        more = {"HF_ENDPOINT": url, "HF_HUB_ETAG_TIMEOUT": "1"}
        status, _, err = run(hub, tmp_path, "pull", "a/demo", **more)
    assert (status, "does not answer" in " ".join(err.split())) == (1, True)


@pytest.mark.parametrize("page", [b"<html>Log in</html>", b"[]", b'{"id": 5, "siblings": 5}'])
def test_what_is_no_hub_is_told_so(hub, tmp_path, page):
    hub.pages["a/demo"] = page
    status, _, err = run(hub, tmp_path, "pull", "a/demo")
    assert (status, "does not answer as the Hub does" in " ".join(err.split())) == (1, True)


def test_a_name_that_no_file_may_have_is_no_traceback(hub, tmp_path):
    hub.models["a/demo"]["..\\x.json"] = b"{}"
    status, _, err = run(hub, tmp_path, "pull", "a/demo")
    assert (status, "Invalid filename" in err, "Traceback" in err) == (1, True, False)
