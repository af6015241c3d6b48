"""From flags and config files to an application, before anything is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("ray", reason="Ray has no wheel for this platform")
ROOT = Path(__file__).parents[3]
BUILD = "from radixlm.ray import app; import json, sys; app(json.loads(sys.argv[1]))"
VALID = (
    "import sys, yaml; from ray.serve.schema import ServeDeploySchema; "
    "ServeDeploySchema(**yaml.safe_load(sys.stdin))"
)


def run(program: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """In a process of its own: Ray warns, and keeps threads."""
    return subprocess.run(  # noqa: S603
        [sys.executable, "-c", program, *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )


def configs() -> dict[str, str]:
    manifest = yaml.safe_load((ROOT / "deploy/kuberay.yaml").read_text())
    return {
        "replicas.yaml": (ROOT / "deploy/replicas.yaml").read_text(),
        "kuberay.yaml": manifest["spec"]["serveConfigV2"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["replicas.yaml", "kuberay.yaml"])
def test_config_files_are_ray_serves_and_ours(name: str) -> None:
    text = configs()[name]
    valid = run(VALID, given=text)
    assert valid.returncode == 0, valid.stderr
    [application] = yaml.safe_load(text)["applications"]
    built = run(BUILD, json.dumps(application["args"]))
    assert built.returncode == 0, built.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"replicas": "two"}, "replicas is a number, got 'two'"),
        ({"replicas": 0}, "there may be 1 to 256 replicas"),
        ({"replicas": 4, "max_replicas": 2}, "there may be 1 to 256 replicas"),
        ({"uds": "/run/x"}, "--uds is of one server"),
        ({"disable_radix_cache": True}, "leaves nothing to route by"),
        ({"kv_token": 5}, "kv_token"),
    ],
)
def test_what_cannot_be_is_refused(args: dict[str, object], message: str) -> None:
    refused = run(BUILD, json.dumps(args))
    assert refused.returncode != 0
    assert message in refused.stderr
